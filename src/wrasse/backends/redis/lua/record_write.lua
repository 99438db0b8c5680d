-- One write to one record: create, put or delete, under its condition; a write that was made before is found again.
-- KEYS  1 values: hash, name to "<version> <due>\n<value>"      2 names: zset, all scores 0
--       3 due: zset, all scores 0, "<due><name>"                4 writes: hash, name to its newest writes
--       5 gone: zset, deleted names by the number of the delete 6 meta: hash, `number` and `forgotten`
--       7 namespaces: zset, all scores 0, the collections of keys
-- ARGV  2 name  3 version expected, '' for none  4 its number  5 nonce or ''  6 salt of the new version
--       7 'write' or 'delete'  8 due, 19 digits, or ''  9 value  10 writes kept  11 deleted names kept
--       12 what the collection is listed as among the namespaces, or ''
-- gives {now in us, 'done' | 'lost' | 'unknown', version or ''}
local name, at, nonce, due = ARGV[2], ARGV[3], ARGV[5], ARGV[8]
local at_us = string.format('%.0f', us)

local past = redis.call('HGET', KEYS[4], name)
if past then
  past = cmsgpack.unpack(past)
else
  past = { since = tonumber(redis.call('HGET', KEYS[6], 'forgotten') or 0), due = '', writes = {} }
end
local writes = past.writes
local last = writes[#writes]
local version = ''
if last and not last[3] then version = last[2] end

if nonce ~= '' then
  for _, write in ipairs(writes) do
    if write[1] == nonce then
      return { at_us, 'done', write[3] and '' or write[2] }
    end
  end
end
if version ~= at then
  -- A write with this nonce may have been made and forgotten, unless all since the version it names is known.
  local certain = nonce == '' or (at == '' and past.since == 0) or (at ~= '' and tonumber(ARGV[4]) >= past.since)
  return { at_us, certain and 'lost' or 'unknown', '' }
end

local deletes = ARGV[7] == 'delete'
local number = redis.call('HINCRBY', KEYS[6], 'number', 1)
version = string.format('%.0f-%s', number, ARGV[6])
writes[#writes + 1] = { nonce, version, deletes }
while #writes > tonumber(ARGV[10]) do
  local oldest = table.remove(writes, 1)
  past.since = math.max(past.since, tonumber(string.match(oldest[2], '^%d+')))
end
if past.due ~= '' then
  redis.call('ZREM', KEYS[3], past.due .. name)
end
past.due = due
redis.call('HSET', KEYS[4], name, cmsgpack.pack(past))

if deletes then
  redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[2], name)
  redis.call('ZADD', KEYS[5], number, name)
  if redis.call('ZCARD', KEYS[5]) > tonumber(ARGV[11]) then
    local oldest = redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')
    redis.call('ZREM', KEYS[5], oldest[1])
    redis.call('HDEL', KEYS[4], oldest[1])
    redis.call('HSET', KEYS[6], 'forgotten', oldest[2])
  end
  return { at_us, 'done', '' }
end
redis.call('HSET', KEYS[1], name, version .. ' ' .. due .. '\n' .. ARGV[9])
redis.call('ZADD', KEYS[2], 0, name)
redis.call('ZREM', KEYS[5], name)
if due ~= '' then
  redis.call('ZADD', KEYS[3], 0, due .. name)
end
if at == '' and ARGV[12] ~= '' then
  redis.call('ZADD', KEYS[7], 0, ARGV[12])
end
return { at_us, 'done', version }
