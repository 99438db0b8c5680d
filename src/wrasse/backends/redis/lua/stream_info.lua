-- One stream with its groups.
-- KEYS: [1] the stream, [2] what is known of it
-- Gives nothing if there is no such stream; else us, length, bytes, entries ever added, first and last id ('' for none), then of
--   each group: name, delivered, number of pending entries, lowest of them (''), lag ('' where it cannot be told), number
--   of consumers. The group that the origin makes and nobody reads is left out.
-- include entry_ids
local log = KEYS[1]
if redis.call('EXISTS', log) == 0 then return {} end
local stream = described('STREAM', log)
local facts = redis.call('HMGET', KEYS[2], 'bytes', 'ours')
local added, length = stream['entries-added'], stream['length']
local first, last = stream['first-entry'] and stream['first-entry'][1] or '', stream['last-generated-id']
local ours = tonumber(facts[2] or 0) == added
local bytes = ours and tonumber(facts[1] or 0) or redis.call('MEMORY', 'USAGE', log)

local function seq_of(id) return tonumber(string.match(id, '%-(%d+)$')) end

-- Where all entries are ours and none was deleted out of turn, their ids count them. What the server says itself is wrong or
-- missing after a trim.
local exact = length == 0 or (ours and seq_of(last) - seq_of(first) + 1 == length)

local function lag_of(delivered, said)
  if length == 0 then return '0' end
  if not exact then return said and whole(said) or '' end
  local after = redis.call('XRANGE', log, '(' .. delivered, '+', 'COUNT', 1)
  return after[1] and whole(seq_of(last) - seq_of(after[1][1]) + 1) or '0'
end

-- All but the one that stands for nobody.
local function consumers_of(group, number)
  for _, consumer in ipairs(number > 0 and redis.call('XINFO', 'CONSUMERS', log, group) or {}) do
    if consumer[2] == NOBODY then return number - 1 end
  end
  return number
end

local found = {us, length, bytes, added, first, last == '0-0' and '' or last}
for _, group in ipairs(redis.call('XINFO', 'GROUPS', log)) do
  local facts = {}
  for i = 1, #group, 2 do facts[group[i]] = group[i + 1] end
  if facts['name'] ~= '_init' then
    local pending = redis.call('XPENDING', log, facts['name'], '-', '+', 1)
    local add = {facts['name'], facts['last-delivered-id'], facts['pending'], pending[1] and pending[1][1] or '',
      lag_of(facts['last-delivered-id'], facts['lag']), consumers_of(facts['name'], facts['consumers'])}
    for _, value in ipairs(add) do found[#found + 1] = value end
  end
end
return found
