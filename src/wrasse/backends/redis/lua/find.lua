-- Waiting jobs by id, among so many entries of one list or sorted set. What begins as our encoder and the seed's begin
-- is known by its id at once; of anything else that has such an id somewhere, the caller decides.
-- KEYS: [1] a queue, or its delayed set
-- ARGV: [2] 'list' or 'set', [3] first and [4] last index, [5] bytes after which no more are
--   examined, [6] on: the ids as they stand in JSON, without quotes
-- Result: how many entries were examined, which are fewer if they are long, 1 if there may be more of them, then of each that
--   may be one of them: entry, score ('' in a list), and where it stands, counted from the same end as [3]
local CHUNK, BYTES_MAX = 500, tonumber(ARGV[5])
local set, first, last = ARGV[2] == 'set', tonumber(ARGV[3]), tonumber(ARGV[4])
local width = set and 2 or 1
local wanted = {}
for i = 6, #ARGV do wanted[ARGV[i]] = true end

local function may_be(entry)
  local id = entry:match('^%d*:?{"id":"([^"\\]*)"')
  if id then return wanted[id] end
  for text in entry:gmatch('"[iI][dD]"%s*:%s*"(.-[^\\])"') do
    if wanted[text] then return true end
  end
  return false
end

-- Counted from the end, the last ones first.
local function read(from, to)
  if set then return redis.call('ZRANGE', KEYS[1], from, to, 'WITHSCORES') end
  return redis.call('LRANGE', KEYS[1], from, to)
end

local found, seen, bytes, step, ended = {0, 0}, 0, 0, 1, false
while not ended and first + seen <= last and bytes < BYTES_MAX do
  local most = math.min(step, last - first + 1 - seen)
  local from = first < 0 and last - seen - most + 1 or first + seen
  local entries = read(from, from + most - 1)
  local count = #entries / width
  if first < 0 then from = from + most - count end
  for i = 1, #entries, width do
    bytes = bytes + #entries[i]
    if may_be(entries[i]) then
      found[#found + 1] = entries[i]
      found[#found + 1] = set and entries[i + 1] or ''
      found[#found + 1] = from + (i - 1) / width
    end
  end
  seen, ended = seen + count, count < most
  step = math.max(1, math.min(CHUNK, math.floor((BYTES_MAX - bytes) * seen / math.max(bytes, 1))))
end
found[1], found[2] = seen, ended and 0 or 1
return found
