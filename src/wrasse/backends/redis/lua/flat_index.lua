-- Notes when a record is due, and that its fields were looked at; the record itself stays as it is.
-- KEYS: [1] the record, [2] names, [3] due, [4] writes, [5] gone, [6] meta
-- ARGV: [2] name, [3] the version it is to have, [4] due, 19 digits, or ''
-- Gives 'done' or 'conflict'
-- include flat_fields
local name = ARGV[2]
local past, digest = past_of(KEYS[4], KEYS[6], name), digest_of(KEYS[1])
if not digest or flat_version(past, digest) ~= ARGV[3] then return 'conflict' end
if past.due ~= '' then redis.call('ZREM', KEYS[3], past.due .. name) end
past.due, past.seen, past.lost = ARGV[4], digest, nil
redis.call('HSET', KEYS[4], name, cmsgpack.pack(past))
redis.call('ZADD', KEYS[2], 0, name)
redis.call('ZREM', KEYS[5], name)
if past.due ~= '' then redis.call('ZADD', KEYS[3], 0, past.due .. name) end
return 'done'
