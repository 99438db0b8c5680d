-- The consumers of a group.
-- KEYS: [1] the stream, [2] its consumers as they showed themselves
-- ARGV: [2] group
-- Gives us, then of each consumer: name, number of pending entries, ms since it last did something, and when it was seen and
--   until when it is alive, us ('' where it is another program's).
-- include entry_ids
local found = {us}
if redis.call('EXISTS', KEYS[1]) == 0 or not delivered_to(KEYS[1], ARGV[2]) then return found end
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[2])) do
  local facts = {}
  for i = 1, #consumer, 2 do facts[consumer[i]] = consumer[i + 1] end
  if facts['name'] ~= NOBODY then
    local _, row = row_of(KEYS[2], facts['name'])
    for _, value in ipairs({facts['name'], facts['pending'], facts['idle'], row or ''}) do found[#found + 1] = value end
  end
end
return found
