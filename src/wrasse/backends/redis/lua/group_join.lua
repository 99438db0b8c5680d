-- Makes a group exist, and its stream.
-- KEYS: [1] the registry of streams, [2] the stream
-- ARGV: [2] subject, [3] group, [4] the id behind which it begins, or $
-- Gives 1 if it is new.
local made = redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[3], ARGV[4], 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
redis.call('ZADD', KEYS[1], 0, ARGV[2])
return made.err and 0 or 1
