-- One stream with its groups.
-- KEYS: [1] the stream, [2] what is known of it
-- Gives nothing if there is no such stream; else us, and what `describing` has.
-- include entry_ids
-- include describing
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local found = {us}
describe(KEYS[1], KEYS[2], found)
return found
