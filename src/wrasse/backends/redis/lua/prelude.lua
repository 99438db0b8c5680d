-- Stands before every script. `now` is the server's clock in ms; ARGV[1] is added to it, and is 0 outside tests; from
-- 1e12 on, which is a date in this century, it is the time itself, so that a test's clock may stand still.
local now = tonumber(ARGV[1])
if now < 1e12 then local clock = redis.call('TIME'); now = clock[1] * 1000 + math.floor(clock[2] / 1000) + now end
