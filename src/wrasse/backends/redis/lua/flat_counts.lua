-- How many names stand on shelves, or on parts of them.
-- KEYS: [1] shelves
-- ARGV: [2] on: of each part lower bound, upper bound, as ZLEXCOUNT takes them
-- Gives us, then of each part its number.
local counts = { string.format('%.0f', us) }
for i = 2, #ARGV, 2 do counts[#counts + 1] = redis.call('ZLEXCOUNT', KEYS[1], ARGV[i], ARGV[i + 1]) end
return counts
