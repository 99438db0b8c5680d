-- Ids of entries, `ms-seq`. They are compared as texts: a seq may have twenty digits, and a number of Lua is exact to fifteen.
local NOBODY = '.wrasse' -- the consumer of what waits to be due

-- A number as Redis reads it, without an exponent.
local function whole(number) return string.format('%.0f', number) end

-- Of equal length, so that their order as texts is the order of the ids.
local function padded(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return string.rep('0', 16 - #ms) .. ms .. '-' .. string.rep('0', 20 - #seq) .. seq
end

-- What `padded` was given.
local function bare(member)
  return (string.gsub(string.gsub(member, '^0+(%d)', '%1'), '%-0+(%d)', '-%1'))
end

-- The highest id below this one, as the port has it.
local function previous(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  if seq == '0' then
    if ms == '0' then return id end
    return whole(tonumber(ms) - 1) .. '-9223372036854775807'
  end
  local head, zeros = string.match(seq, '^(%d-)(0*)$')
  local lower = string.sub(head, 1, -2) .. string.char(string.byte(head, -1) - 1) .. string.rep('9', #zeros)
  return ms .. '-' .. string.gsub(lower, '^0+(%d)', '%1')
end

-- A whole number of ours; nil for what another program wrote in its place.
local function counted(text) return text and #text <= 16 and string.match(text, '^%d+$') and tonumber(text) or nil end

-- When a consumer was seen and until when it is alive, as its row says; nil if it has none of ours.
local function row_of(rows, name)
  local seen, ends = string.match(redis.call('HGET', rows, name) or '', '^(%d+) (%d+)$')
  if counted(seen) and counted(ends) then return tonumber(ends), seen .. ' ' .. ends end
end

-- Counts in what is known of a stream. Where another program wrote over that, it is counted anew.
local function add(facts, field, by)
  if type(redis.pcall('HINCRBY', facts, field, by)) ~= 'number' then redis.pcall('HDEL', facts, field, 'ours') end
end

-- What XINFO says, by name.
local function described(...)
  local facts, found = {}, redis.call('XINFO', ...)
  for i = 1, #found, 2 do facts[found[i]] = found[i + 1] end
  return facts
end

-- How far a group has read; nil if there is no such group.
local function delivered_to(log, group)
  for _, found in ipairs(redis.call('XINFO', 'GROUPS', log)) do
    local mine, delivered
    for i = 1, #found, 2 do
      if found[i] == 'name' then mine = found[i + 1] == group end
      if found[i] == 'last-delivered-id' then delivered = found[i + 1] end
    end
    if mine then return delivered end
  end
  return nil
end

-- Everything at or below this id is acked.
local function floor_of(log, group, delivered)
  local first = redis.call('XPENDING', log, group, '-', '+', 1)
  if first[1] then return previous(first[1][1]) end
  return delivered
end

-- Wakes consumers that wait for this group.
local function wake(key)
  redis.call('XADD', key, 'MAXLEN', 1, '*', '', '')
  redis.call('PEXPIRE', key, 3600000)
end
