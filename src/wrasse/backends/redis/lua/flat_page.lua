-- A page of records of a flat collection, by name, by when they are due, or of a shelf by turn. Names whose record another program deleted, or let
-- expire, leave the indexes here.
-- KEYS: [1] names, due or shelves, whichever is read, [2] names, [3] due, [4] writes, [5] gone, [6] meta, [7] shelves; of records
--   only the beginning of their keys is known before, and that has the same slot
-- ARGV: [2] lower bound, [3] upper bound, as ZRANGEBYLEX takes them; '' for everything that is due now, [4] names wanted,
--   [5] bytes of fields at most, unless the first alone is longer, [6] how many letters of a member are not its name,
--   [7] what the key of a record begins with, [8] '1' for the last ones first, and downwards
-- Gives us, '1' if there are more, then of each: name, version, due or '', its fields, what stands before the name in the member.
-- include flat_fields
local upper = ARGV[3]
if upper == '' then upper = string.format('(1%018.0f\255', us) end
local wanted, room, letters = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local page, lower, shown = { string.format('%.0f', us), '0' }, ARGV[2], 0
local own = KEYS[1] == KEYS[3] and 'due' or KEYS[1] == KEYS[7] and 'spot' -- what stands before the name in this index

local function vanished(name, past)
  redis.call('ZREM', KEYS[2], name)
  if past.due ~= '' then redis.call('ZREM', KEYS[3], past.due .. name) end
  past.due = ''
  stand(KEYS[7], name, past, '')
  redis.call('HSET', KEYS[4], name, cmsgpack.pack(past))
  redis.call('ZADD', KEYS[5], next_number(KEYS[6]), name)
end

for _ = 1, 10 do
  local members
  if ARGV[8] == '1' then
    members = redis.call('ZREVRANGEBYLEX', KEYS[1], upper, lower, 'LIMIT', 0, wanted + 1 - shown)
  else
    members = redis.call('ZRANGEBYLEX', KEYS[1], lower, upper, 'LIMIT', 0, wanted + 1 - shown)
  end
  if #members == 0 then return page end
  for _, member in ipairs(members) do
    local name = string.sub(member, letters + 1)
    local past = past_of(KEYS[4], KEYS[6], name)
    local key, before = ARGV[7] .. name, string.sub(member, 1, letters)
    if own and past.lost and #string.match(before, '%d*$') >= math.min(letters, 20) then past[own] = before end
    if own and before ~= (past[own] or '') then
      redis.call('ZREM', KEYS[1], member) -- it stood here before somebody wrote over what is known of it
    elseif redis.call('TYPE', key).ok ~= 'hash' then
      vanished(name, past)
      redis.call('ZREM', KEYS[1], member)
    else
      local digest, words = digest_of(key)
      for _, word in ipairs(words) do room = room - #word end
      if shown == wanted or (shown > 0 and room < 0) then
        page[2] = '1'
        return page
      end
      for _, value in ipairs({ name, flat_version(past, digest), past.due, words, before }) do page[#page + 1] = value end
      shown = shown + 1
    end
    if ARGV[8] == '1' then upper = '(' .. member else lower = '(' .. member end
  end
end
return page
