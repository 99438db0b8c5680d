-- Some members of a sorted set in order, after a cursor that may be gone by now, each with its score and its text.
-- KEYS: [1] the sorted set, [2] the hash of texts, or the sorted set again if its members are the texts
-- ARGV: [2] 'up' or 'down', [3] lowest and [4] highest score as ZRANGEBYSCORE has them or 'now', [5] how many at most,
--       [6] score and [7] member that stand between what was read and what is to be read ('' and '': from the first)
-- Result: now, 1 if there is more, then for each: member, score, text (false if it is gone; '' if the member is the text)
local CHUNK, BYTES_MAX = 50, 4194304
local set, texts = KEYS[1], KEYS[2]
local up = ARGV[2] == 'up'
local low, high, limit, score, member = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
if high == 'now' then high = string.format('%.0f', now) end

-- Members of one score are in the order of their bytes; Lua's own comparison would follow the server's language.
local function before(a, b)
  local shorter = math.min(#a, #b)
  for i = 1, shorter do
    local x, y = a:byte(i), b:byte(i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- Ranks from `first` to `last` are within the scores asked for.
local first = low == '-inf' and 0 or redis.call('ZCOUNT', set, '-inf', (low:sub(1, 1) == '(') and low:sub(2) or '(' .. low)
local last = (high == '+inf' and redis.call('ZCARD', set) or redis.call('ZCOUNT', set, '-inf', high)) - 1
if score ~= '' then
  -- The first rank whose member stands behind the cursor, found by halving those of the same score.
  local left = redis.call('ZCOUNT', set, '-inf', '(' .. score)
  local right = left + redis.call('ZCOUNT', set, score, score)
  while left < right do
    local middle = math.floor((left + right) / 2)
    local found = redis.call('ZRANGE', set, middle, middle)[1]
    if before(found, member) then left = middle + 1 else right = middle end
  end
  if up then first = math.max(first, left) else last = math.min(last, left - 1) end
end

local from, to = first, last
if up then to = math.min(last, first + limit - 1) else from = math.max(first, last - limit + 1) end
local result = {string.format('%.0f', now), (from > first or to < last) and 1 or 0}
if from > to then return result end
-- Read in steps that follow from how long they are, so that a slice of large jobs ends early: neither side has to hold
-- more than a few of them.
local size, bytes, longest, step, at = redis.call('ZCARD', set), 0, 1, 1, 0
local count = to - from + 1
while at < count do
  if bytes > BYTES_MAX then
    result[2] = 1
    break
  end
  local least, most = at, math.min(at + step, count) - 1
  local found
  if up then
    found = redis.call('ZRANGE', set, from + least, from + most, 'WITHSCORES')
  else
    found = redis.call('ZREVRANGE', set, size - 1 - to + least, size - 1 - to + most, 'WITHSCORES')
  end
  local names = {}
  for i = 1, #found, 2 do names[#names + 1] = found[i] end
  local said = texts == set and {} or redis.call('HMGET', texts, unpack(names))
  for i, name in ipairs(names) do
    local text = texts == set and '' or said[i]
    local length, last = #name + (text and #text or 0), #result
    bytes, longest = bytes + length, math.max(longest, length)
    result[last + 1], result[last + 2], result[last + 3] = name, found[2 * i], text
  end
  at = most + 1
  step = math.max(1, math.min(CHUNK, math.floor((BYTES_MAX - bytes) / longest)))
end
return result
