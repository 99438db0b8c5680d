-- Deletes keys and says what each had. Nothing is deleted while a heartbeat is there, unless it is forced.
-- KEYS: the heartbeats, then all others
-- ARGV: [2] 'look' to delete nothing, 'ask', or 'force'; [3] number of heartbeats
-- Returns how many heartbeats are there; then their keys if it was refused, else of each key how many entries it had.
local sizes = {list = 'LLEN', zset = 'ZCARD', hash = 'HLEN', set = 'SCARD'}
local what, result = ARGV[2], {0}
for i = 1, tonumber(ARGV[3]) do
  if redis.call('EXISTS', KEYS[i]) == 1 then result[#result + 1] = KEYS[i] end
end
result[1] = #result - 1
if result[1] > 0 and what == 'ask' then return result end
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  result[i + 1] = kind == 'none' and 0 or sizes[kind] and redis.call(sizes[kind], key) or 1
  if what ~= 'look' then redis.call('UNLINK', key) end
end
return result
