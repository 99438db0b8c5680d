-- A budget per second: takes from it, and gives back what was not needed.

-- script allow
-- Takes out of a budget per second. The key is a counter that lives one second from its first use: what the Go producer
-- counts with INCR and EXPIRE, so that both count into one budget. Within the second it is let out evenly, a burst ahead.
-- KEYS  1 the counter
-- ARGV  2 how many are wanted   3 rate a second   4 burst
-- result: how many are allowed, and after how many ms to ask for the rest
local wanted, rate, burst = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local used = redis.call('GET', KEYS[1])
local left = 1000
if used then
  used = tonumber(used)
  if not used then return redis.error_reply('WRONGTYPE the key of the rate limit is not a counter') end
  left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > 1000 then
    -- Its producer died between counting and setting the time to live; without one it would count for ever.
    redis.call('PEXPIRE', KEYS[1], 1000)
    left = 1000
  end
else
  used = 0
end
local free = math.min(rate, burst + math.floor(rate * (1000 - left) / 1000)) - used
local granted = math.max(0, math.min(wanted, free))
if granted > 0 then
  if redis.call('INCRBY', KEYS[1], granted) == granted then
    redis.call('PEXPIRE', KEYS[1], 1000)
    left = 1000
  end
  used = used + granted
end
local rest = math.min(wanted - granted, burst)
if rest == 0 then return {granted, 0} end
if used >= rate then return {granted, math.max(1, left)} end
-- When the next few of this second are free; those beyond it come with the next second.
local due = math.ceil((math.min(used + rest, rate) - burst) * 1000 / rate)
return {granted, math.max(1, math.min(due - (1000 - left), left))}

-- script give_back
-- Returns back to a budget per second what was taken and not needed. Never below zero: the second may be another one.
-- KEYS  1 the counter
-- ARGV  2 how many
local used = tonumber(redis.call('GET', KEYS[1]) or 0)
if used and used > 0 then redis.call('DECRBY', KEYS[1], math.min(used, tonumber(ARGV[2]))) end
return 0
