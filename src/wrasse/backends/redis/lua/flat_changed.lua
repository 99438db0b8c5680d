-- Of these records those that another program wrote or changed since we wrote them or looked at them.
-- KEYS: [1] the writes of the collection, [2] meta, [3] on: records
-- ARGV: [2] on: their names
-- Gives us, then of each: name, version, due or '', its fields
-- include flat_fields
local found = { string.format('%.0f', us) }
for i = 3, #KEYS do
  local name = ARGV[i - 1]
  local digest, words = nil, nil
  if redis.call('TYPE', KEYS[i]).ok == 'hash' then digest, words = digest_of(KEYS[i]) end
  if digest then
    local past = past_of(KEYS[1], KEYS[2], name)
    if not is_known(past, digest) then
      for _, value in ipairs({ name, flat_version(past, digest), past.due, words }) do found[#found + 1] = value end
    end
  end
end
return found
