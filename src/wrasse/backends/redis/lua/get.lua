-- What the indexes know of one job.
-- KEYS: [1] where, [2] held, [3] holds, [4] finished, [5] progress
-- ARGV: [2] the id; [3] K of an entry that has no id, where that is asked for; [4] anything: [3] goes before the index
-- Result: now, progress, K (false: it was never claimed), its deadline and text if it is held, its text if it is finished
local take = ARGV[4] and ARGV[3] or redis.call('HGET', KEYS[1], ARGV[2]) or ARGV[3]
local progress = redis.pcall('HGET', KEYS[5], ARGV[2]) -- of a key of a wrong type: none
local known = {string.format('%.0f', now), type(progress) == 'string' and progress, take}
if take then
  known[4] = redis.call('ZSCORE', KEYS[2], take)
  known[5] = redis.call('HGET', KEYS[3], take)
  known[6] = redis.call('HGET', KEYS[4], take)
end
return known
