-- Stands before every script. `us` and `now` are the server's clock in us and ms; ARGV[1] is 0, except in tests that let
-- hours pass: there it is the time to believe in, in us.
local us = tonumber(ARGV[1])
if us == 0 then local clock = redis.call('TIME') us = clock[1] * 1000000 + clock[2] end
local now = math.floor(us / 1000)
