-- Gives back to a budget per second what was taken and not needed. Never below zero: the second may be another one.
-- KEYS  1 the counter
-- ARGV  2 how many
local used = tonumber(redis.call('GET', KEYS[1]) or 0)
if used and used > 0 then redis.call('DECRBY', KEYS[1], math.min(used, tonumber(ARGV[2]))) end
return 0
