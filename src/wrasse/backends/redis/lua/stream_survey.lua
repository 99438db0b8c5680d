-- Several streams with their groups.
-- KEYS: two of each stream: the stream, what is known of it
-- Gives us, then of each: 0 if there is no such stream; else 1 and what `describing` has.
-- include entry_ids
-- include describing
local found = {us}
for i = 1, #KEYS, 2 do
  local there = redis.call('TYPE', KEYS[i]).ok == 'stream'
  found[#found + 1] = there and 1 or 0
  if there then describe(KEYS[i], KEYS[i + 1], found) end
end
return found
