-- Stands before every script. `now` is the server's clock in ms; ARGV[1] is added to it, and is 0 outside tests.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000) + ARGV[1]
