-- What the indexes know of one job.
-- KEYS: 1 R:where, 2 R:held, 3 R:holds, 4 R:finished
-- ARGV: 2 the id
-- Result: now, K (false: it was never taken), its deadline and its text if it is held, its text if it is finished
local take = redis.call('HGET', KEYS[1], ARGV[2])
local at = string.format('%.0f', now)
if not take then return {at} end
return {
  at, take, redis.call('ZSCORE', KEYS[2], take), redis.call('HGET', KEYS[3], take), redis.call('HGET', KEYS[4], take)
}
