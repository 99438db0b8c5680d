-- One write to one record: create, put or delete, under its condition; a write that was made before is found again.
-- KEYS  1 the registry of streams                                2 values: hash, name to "<version> <due>\n<value>";
--         of a flat collection the record itself: hash, its fields  3 names: zset, all scores 0
--       4 due: zset, all scores 0, "<due><name>"                5 writes: hash, name to its newest writes
--       6 gone: zset, deleted names by the number of the delete 7 meta: hash, `number` and `forgotten`
--       8 namespaces: zset, all scores 0, the collections of keys   9 status index: zset, all scores 0, "<status> <position><name>"
-- ARGV  2 name  3 version expected, '' for none  4 its number  5 nonce or ''  6 salt of the new version
--       7 'write' or 'delete'  8 due, 19 digits, or ''  9 value  10 writes kept  11 deleted names kept
--       12 what the collection is listed as among the namespaces, or ''  13 'flat' or ''  14 "<status> <position>", or ''
--       15 how many words the fields of a flat record are; the words
-- include flat_records
local name, at, nonce, due = ARGV[2], ARGV[3], ARGV[5], ARGV[8]
local at_us, flat = string.format('%.0f', us), ARGV[13] == 'flat'
local past = past_of(KEYS[5], KEYS[7], name)
if past.lost then
  past.lost = nil
  local version, listed = string.match(not flat and redis.call('HGET', KEYS[2], name) or '', '^(%d+%-%S+) (%d*)\n')
  if version then past.due, past.writes = listed, { { '', version, false } } end
end
local writes = past.writes

-- What a write is answered that is not to be made now; nil if it is.
local function answered()
  local version = ''
  if flat then
    version = flat_version(past, digest_of(KEYS[2]))
  elseif writes[#writes] and not writes[#writes][3] then
    version = writes[#writes][2]
  end
  if nonce ~= '' then
    for _, write in ipairs(writes) do
      if write[1] == nonce then return { at_us, 'done', write[3] and '' or write[2] } end
    end
  end
  if version == at then return nil end
  -- A write with this nonce may have been made and forgotten, unless all since the version it names is known.
  local certain = nonce == '' or (at == '' and past.since == 0) or (at ~= '' and tonumber(ARGV[4]) >= past.since)
  return { at_us, certain and 'conflict' or 'unknown', '' }
end

local function store(version)
  if flat then
    redis.call('DEL', KEYS[2]) -- with the fields and the expiry that it had
    redis.call('HSET', KEYS[2], unpack(ARGV, 16, 15 + tonumber(ARGV[15])))
    return version .. '-' .. digest_of(KEYS[2])
  end
  redis.call('HSET', KEYS[2], name, version .. ' ' .. due .. '\n' .. ARGV[9])
  return version
end

local function forget(number)
  if flat then redis.call('DEL', KEYS[2]) else redis.call('HDEL', KEYS[2], name) end
  redis.call('ZREM', KEYS[3], name)
  redis.call('ZADD', KEYS[6], number, name)
  if redis.call('ZCARD', KEYS[6]) > tonumber(ARGV[11]) then
    local oldest = redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')
    redis.call('ZREM', KEYS[6], oldest[1])
    redis.call('HDEL', KEYS[5], oldest[1])
    redis.call('HSET', KEYS[7], 'forgotten', oldest[2])
  end
end

local function made()
  local deletes = ARGV[7] == 'delete'
  local number = next_number(KEYS[7])
  local version = string.format('%.0f-%s', number, ARGV[6])
  if not deletes then version = store(version) end
  writes[#writes + 1] = { nonce, version, deletes }
  while #writes > tonumber(ARGV[10]) do
    local oldest = table.remove(writes, 1)
    past.since = math.max(past.since, tonumber(string.match(oldest[2], '^%d+')))
  end
  if past.due ~= '' then redis.call('ZREM', KEYS[4], past.due .. name) end
  past.due, past.seen = due, nil
  stand(KEYS[9], name, past, ARGV[14])
  redis.call('HSET', KEYS[5], name, cmsgpack.pack(past))
  if deletes then
    forget(number)
    return { at_us, 'done', '' }
  end
  redis.call('ZADD', KEYS[3], 0, name)
  redis.call('ZREM', KEYS[6], name)
  if due ~= '' then redis.call('ZADD', KEYS[4], 0, due .. name) end
  if at == '' and ARGV[12] ~= '' then redis.call('ZADD', KEYS[8], 0, ARGV[12]) end
  return { at_us, 'done', version }
end

-- script write
-- One write to one record: create, put or delete, under its condition; a write that was made before is found again.
-- KEYS and ARGV: as above.
-- Returns {now in us, 'done' | 'conflict' | 'unknown', version or ''}
return answered() or made()

-- script emit
-- One write to one record together with entries of streams: all of it happens, or nothing.
-- KEYS: as above; then four of each stream, as `stream_log` has them.
-- ARGV: as above; then the number of streams, and of each: subject, number of drafts, drafts as `stream_log` has
--   them
-- Returns what `write` returns.
-- include entry_ids
-- include stream_log
local answer = answered()
if answer then return answer end
local where = 16 + tonumber(ARGV[15])
local streams, from = {}, where + 1
for i = 1, tonumber(ARGV[where]) do
  local log, drafts = open_log(6 + 4 * i, ARGV[from]), tonumber(ARGV[from + 1])
  streams[i] = { log, drafts, from + 2 }
  from = after_drafts(from + 2, drafts)
end
for _, stream in ipairs(streams) do
  local first = stream[3]
  for _ = 1, stream[2] do _, first = append_draft(stream[1], first) end
end
close_logs()
return made()
