-- Makes a stream exist with these limits.
-- KEYS: [1] the registry of streams, [2] the stream, [3] what is known of it
-- ARGV: [2] subject, [3] entries at most, [4] bytes at most; '' for any number
-- Gives 1 if that changed something.
local same = redis.call('EXISTS', KEYS[2]) == 1
local limits = redis.call('HMGET', KEYS[3], 'entries_max', 'bytes_max')
redis.call('ZADD', KEYS[1], 0, ARGV[2])
if not same then
  -- The only ways to an empty stream are a group or an entry that is removed again.
  redis.call('XGROUP', 'CREATE', KEYS[2], '.wrasse', '$', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', KEYS[2], '.wrasse')
end
for i, name in ipairs({'entries_max', 'bytes_max'}) do
  local wanted = ARGV[i + 2]
  if wanted ~= (limits[i] or '') then
    same = false
    if wanted == '' then redis.call('HDEL', KEYS[3], name) else redis.call('HSET', KEYS[3], name, wanted) end
  end
end
return same and 0 or 1
