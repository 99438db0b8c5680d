-- Records that are hashes of their own, which other programs read and write too. The version of one is that of our newest write
-- and a digest of its fields, so that whatever another program changes is noticed.

-- What is known of a name: `since`, the newest version that was forgotten; `due`, as it stands in the index; its newest
-- `writes`; `seen`, the digest of fields that are another program's and were indexed; and `spot`, its entry in the status index.
-- `lost`: another program wrote over it, so that all writes up to now are forgotten.
local function past_of(writes, meta, name)
  local packed = redis.call('HGET', writes, name)
  if not packed then return { since = tonumber(redis.call('HGET', meta, 'forgotten') or 0) or us, due = '', writes = {} } end
  local read, past = pcall(cmsgpack.unpack, packed)
  local whole = read and type(past) == 'table' and type(past.since) == 'number' and type(past.due) == 'string'
    and type(past.writes) == 'table' and type(past.seen or '') == 'string' and type(past.spot or '') == 'string'
  for _, write in pairs(whole and past.writes or {}) do
    whole = whole and type(write) == 'table' and type(write[1]) == 'string' and string.match(tostring(write[2]), '^%d+%-')
  end
  return whole and past or { since = us, due = '', writes = {}, lost = true }
end

-- The number of the next write of a collection. Where another program wrote over the last one, they go on from the clock, which
-- is above all that were counted.
local function next_number(meta)
  local number = redis.pcall('HINCRBY', meta, 'number', 1)
  if type(number) == 'number' and number > 0 and number < 9e15 then return number end
  redis.call('HSET', meta, 'number', string.format('%.0f', us))
  return us
end

-- A digest of the fields in whatever order the server has them; nil if there is no such record. And the fields.
local function digest_of(key)
  local words = redis.call('HGETALL', key)
  if #words == 0 then return nil, words end
  local fields = {}
  for i = 1, #words, 2 do
    fields[#fields + 1] = #words[i] .. ':' .. words[i] .. #words[i + 1] .. ':' .. words[i + 1]
  end
  table.sort(fields)
  return redis.sha1hex(table.concat(fields)), words
end

-- The version of a record whose fields have this digest; '' for none.
local function flat_version(past, digest)
  if not digest then return '' end
  local last = past.writes[#past.writes]
  local stamp = last and not last[3] and string.match(last[2], '^(%d+%-%x+)%-') or '0-0'
  return stamp .. '-' .. digest
end

-- Whether the fields are what we wrote, or what we have indexed.
local function is_known(past, digest)
  local last = past.writes[#past.writes]
  if past.seen == digest then return true end
  return last and not last[3] and string.match(last[2], '%-(%x+)$') == digest
end

-- Moves a name in the status index to this entry, '' for none, and notes it in what is known; whether it had another one.
local function stand(shelves, name, past, spot)
  local before = past.spot or ''
  if before == spot then return false end
  if before ~= '' then redis.call('ZREM', shelves, before .. name) end
  if spot ~= '' then redis.call('ZADD', shelves, 0, spot .. name) end
  past.spot = spot ~= '' and spot or nil
  return true
end

-- script get
-- One record of a flat collection.
-- KEYS: [1] the record, [2] the writes of its collection, [3] meta
-- ARGV: [2] name
-- Returns nothing if there is none; else version, due or '', and its fields, names and values.
local past = past_of(KEYS[2], KEYS[3], ARGV[2])
local digest, words = digest_of(KEYS[1])
if not digest then return {} end
return { flat_version(past, digest), past.due, words }

-- script page
-- A page of records of a flat collection, by name, by when they are due, or of one status by position.
-- Names whose record another program deleted, or let expire, leave the indexes here.
-- KEYS: [1] names, due or status index, whichever is read, [2] names, [3] due, [4] writes, [5] gone, [6] meta, [7] status index; of records
--   only the beginning of their keys is known before, and that has the same slot
-- ARGV: [2] lower bound, [3] upper bound, as ZRANGEBYLEX takes them; '' for everything that is due now, [4] names wanted,
--   [5] bytes of fields at most, unless the first alone is longer, [6] how many letters of a member are not its name,
--   [7] what the key of a record begins with, [8] '1' for the last ones first, and downwards
-- Returns us, '1' if there are more, then of each: name, version, due or '', its fields, what stands before the name in the member.
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

-- script counts
-- How many names have a status, or a part of its positions.
-- KEYS: [1] status index
-- ARGV: [2] on: of each part lower bound, upper bound, as ZLEXCOUNT takes them
-- Returns us, then of each part its number.
local counts = { string.format('%.0f', us) }
for i = 2, #ARGV, 2 do counts[#counts + 1] = redis.call('ZLEXCOUNT', KEYS[1], ARGV[i], ARGV[i + 1]) end
return counts

-- script changed
-- Of these records those that another program wrote or changed since we wrote or indexed them.
-- KEYS: [1] the writes of the collection, [2] meta, [3] on: records
-- ARGV: [2] on: their names
-- Returns us, then of each: name, version, due or '', its fields
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

-- script index_due
-- Notes when a record is due, and that its fields were indexed; the record itself stays as it is.
-- KEYS: [1] the record, [2] names, [3] due, [4] writes, [5] gone, [6] meta
-- ARGV: [2] name, [3] the version it is to have, [4] due, 19 digits, or ''
-- Returns 'done' or 'conflict'
local name = ARGV[2]
local past, digest = past_of(KEYS[4], KEYS[6], name), digest_of(KEYS[1])
if not digest or flat_version(past, digest) ~= ARGV[3] then return 'conflict' end
if past.due ~= '' then redis.call('ZREM', KEYS[3], past.due .. name) end
past.due, past.seen, past.lost = ARGV[4], digest, nil
redis.call('HSET', KEYS[4], name, cmsgpack.pack(past))
redis.call('ZADD', KEYS[2], 0, name)
redis.call('ZREM', KEYS[5], name)
if past.due ~= '' then redis.call('ZADD', KEYS[3], 0, past.due .. name) end
return 'done'

-- script index_status
-- Moves records to their entries in the status index, each if it is still the one that was read. Records themselves stay as they are.
-- KEYS: [1] status index, [2] writes, [3] meta, [4] on: records
-- ARGV: [2] on: of each record: name, the version it is to have, "<status> <position>" or ''
-- Returns how many had another entry.
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
