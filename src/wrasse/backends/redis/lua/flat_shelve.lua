-- Puts records where they belong, each if it is still the one that was read. Records themselves stay as they are.
-- KEYS: [1] shelves, [2] writes, [3] meta, [4] on: records
-- ARGV: [2] on: of each record: name, the version it is to have, "<shelf> <turn>" or ''
-- Gives how many stood elsewhere.
-- include flat_fields
local moved = 0
for i = 4, #KEYS do
  local at = 2 + 3 * (i - 4)
  local name, past = ARGV[at], past_of(KEYS[2], KEYS[3], ARGV[at])
  local digest = digest_of(KEYS[i])
  past.lost = nil
  if digest and flat_version(past, digest) == ARGV[at + 1] and stand(KEYS[1], name, past, ARGV[at + 2]) then
    redis.call('HSET', KEYS[2], name, cmsgpack.pack(past))
    moved = moved + 1
  end
end
return moved
