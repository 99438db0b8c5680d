-- Waiting jobs by id, among so many entries of one list or sorted set. Only what begins as our encoder and the seed's
-- begin is known by its id at once; of anything else that has such an id somewhere, the caller decides.
-- KEYS: 1 a queue, or its delayed set
-- ARGV: 2 'list' or 'set', 3 first and 4 last index, 5 on: the ids, each followed by the same as JSON without quotes
-- Result: how many entries were looked at, then each that may be one of them
local first, last = ARGV[3], ARGV[4]
local entries = redis.call(ARGV[2] == 'list' and 'LRANGE' or 'ZRANGE', KEYS[1], first, last)
local wanted = {}
for i = 5, #ARGV do wanted[ARGV[i]] = true end
local found = {#entries}
for _, entry in ipairs(entries) do
  local id = entry:match('^%d*:?{"id":"([^"\\]*)"')
  if id then
    if wanted[id] then found[#found + 1] = entry end
  else
    for text in entry:gmatch('"[iI][dD]"%s*:%s*"(.-[^\\])"') do
      if wanted[text] then
        found[#found + 1] = entry
        break
      end
    end
  end
end
return found
