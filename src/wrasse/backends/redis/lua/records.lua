-- Records that are values of one hash, and what is kept of a whole collection.

-- script page
-- A page of records, by name or by when they are due.
-- KEYS  1 values: hash  2 names or due: zset, all scores 0
-- ARGV  2 lower bound  3 upper bound, as ZRANGEBYLEX takes them; '' for everything that is due now  4 names wanted
--       5 bytes of values at most, unless the first alone is longer  6 how many letters of a member are not its name
-- Returns {now in us, '1' if there are more, member, stored, member, stored, ...}; '' for what another program removed
local upper = ARGV[3]
if upper == '' then
  -- Above every name that may follow: no byte of UTF-8 is 255.
  upper = string.format('(1%018.0f\255', us)
end
local wanted, room, letters = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local members, odd
repeat
  members, odd = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[2], upper, 'LIMIT', 0, wanted + 1), 0
  for _, member in ipairs(members) do
    -- In an index of due times, but no due time: another program put it there.
    if letters > 0 and #(string.match(member, '^[01]%d*') or '') < letters then odd = odd + redis.call('ZREM', KEYS[2], member) end
  end
until odd == 0
local page = { string.format('%.0f', us), '0' }
for number, member in ipairs(members) do
  local name = string.sub(member, letters + 1)
  local stored = redis.call('HGET', KEYS[1], name) or ''
  room = room - #stored
  if number > wanted or (number > 1 and room < 0) then
    page[2] = '1'
    break
  end
  page[#page + 1] = member
  page[#page + 1] = stored
end
return page

-- script forget
-- Forgets what is kept of the deleted records of a collection, if it has no others.
-- KEYS: [1] the names of its records; the keys to forget
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('DEL', unpack(KEYS, 2)) end
return 0
