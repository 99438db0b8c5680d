-- Waiting jobs by id, among so many entries of one list or sorted set. What begins as our encoder and the seed's begin
-- is known by its id at once; of anything else that has such an id somewhere, the caller decides.
-- KEYS: [1] a queue, or its delayed set
-- ARGV: [2] 'list' or 'set', [3] first and [4] last index, [5] on: the ids as they stand in JSON, without quotes
-- Result: how many entries were looked at, then of each that may be one of them: entry, score ('' in a list), and where
--   it stands, counted from the same end as [3]
local set = ARGV[2] == 'set'
local entries
if set then entries = redis.call('ZRANGE', KEYS[1], ARGV[3], ARGV[4], 'WITHSCORES')
else entries = redis.call('LRANGE', KEYS[1], ARGV[3], ARGV[4]) end
local step, first = set and 2 or 1, tonumber(ARGV[3])
local wanted = {}
for i = 5, #ARGV do wanted[ARGV[i]] = true end

local function may_be(entry)
  local id = entry:match('^%d*:?{"id":"([^"\\]*)"')
  if id then return wanted[id] end
  for text in entry:gmatch('"[iI][dD]"%s*:%s*"(.-[^\\])"') do
    if wanted[text] then return true end
  end
  return false
end

local found = {#entries / step}
for i = 1, #entries, step do
  if may_be(entries[i]) then
    found[#found + 1] = entries[i]
    found[#found + 1] = set and entries[i + 1] or ''
    found[#found + 1] = first < 0 and (i - 1) / step - #entries / step or first + (i - 1) / step
  end
end
return found
