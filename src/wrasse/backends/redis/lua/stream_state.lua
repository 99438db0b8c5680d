-- One stream with its groups, added to `found`: length, bytes, entries ever added, first and last id ('' for none), number of
-- groups, then of each group: name, delivered, number of pending entries, lowest of them (''), lag ('' where it cannot be
-- told), number of consumers, entries lost while pending. The group that the origin makes and no consumer reads is left out.
-- include entry_ids
local function seq_of(id) return tonumber(string.match(id, '%-(%d+)$')) end

-- All but the consumer of what waits to be due.
local function consumers_of(log, group, number)
  for _, consumer in ipairs(number > 0 and redis.call('XINFO', 'CONSUMERS', log, group) or {}) do
    if consumer[2] == NOBODY then return number - 1 end
  end
  return number
end

local function describe(log, facts_key, found)
  local stream = described('STREAM', log)
  local facts = redis.pcall('HMGET', facts_key, 'bytes', 'ours')
  local added, length = stream['entries-added'], stream['length']
  local first, last = stream['first-entry'] and stream['first-entry'][1] or '', stream['last-generated-id']
  local ours = (counted(facts[2]) or 0) == added
  local bytes = ours and counted(facts[1] or '0') or redis.call('MEMORY', 'USAGE', log)

  -- Where all entries are ours and none was deleted out of turn, their ids count them. What the server says itself is wrong
  -- or missing after a trim.
  local exact = length == 0 or (ours and seq_of(last) - seq_of(first) + 1 == length)
  local function lag_of(delivered, said)
    if length == 0 then return '0' end
    if not exact then return said and whole(said) or '' end
    local after = redis.call('XRANGE', log, '(' .. delivered, '+', 'COUNT', 1)
    return after[1] and whole(seq_of(last) - seq_of(after[1][1]) + 1) or '0'
  end

  local groups = {}
  for _, group in ipairs(stream['groups'] > 0 and redis.call('XINFO', 'GROUPS', log) or {}) do
    local about = {}
    for i = 1, #group, 2 do about[group[i]] = group[i + 1] end
    local name = about['name']
    if name ~= '_init' then
      local pending = redis.call('XPENDING', log, name, '-', '+', 1)
      local lost = redis.pcall('HGET', facts_key, 'lost ' .. name)
      lost = type(lost) == 'string' and counted(lost) or 0
      groups[#groups + 1] = {name, about['last-delivered-id'], about['pending'], pending[1] and pending[1][1] or '',
        lag_of(about['last-delivered-id'], about['lag']), consumers_of(log, name, about['consumers']), lost}
    end
  end
  for _, value in ipairs({length, bytes, added, first, last == '0-0' and '' or last, #groups}) do
    found[#found + 1] = value
  end
  for _, group in ipairs(groups) do
    for i = 1, 7 do found[#found + 1] = group[i] end
  end
end

-- script info
-- One stream with its groups.
-- KEYS: [1] the stream, [2] what is known of it
-- Returns nothing if there is no such stream; else us, and what `describe` adds.
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local found = {us}
describe(KEYS[1], KEYS[2], found)
return found

-- script survey
-- Several streams with their groups.
-- KEYS: two of each stream: the stream, what is known of it
-- Returns us, then of each: 0 if there is no such stream; else 1 and what `describe` adds.
local found = {us}
for i = 1, #KEYS, 2 do
  local there = redis.call('TYPE', KEYS[i]).ok == 'stream'
  found[#found + 1] = there and 1 or 0
  if there then describe(KEYS[i], KEYS[i + 1], found) end
end
return found
