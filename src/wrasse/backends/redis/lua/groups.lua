-- What is done to one group of a stream, apart from deliveries and answers.
-- include entry_ids

-- script join
-- Makes a group exist, and its stream.
-- KEYS: [1] the registry of streams, [2] the stream
-- ARGV: [2] subject, [3] group, [4] the id behind which it begins, or $
-- Returns 1 if it is new.
local made = redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[3], ARGV[4], 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
redis.call('ZADD', KEYS[1], 0, ARGV[2])
return made.err and 0 or 1

-- script consumers
-- The consumers of a group.
-- KEYS: [1] the stream, [2] its consumers by their own requests
-- ARGV: [2] group
-- Returns us, then of each consumer: name, number of pending entries, ms since it last did something, and when it was seen and
--   until when it is alive, us ('' where it is another program's).
local found = {us}
if redis.call('EXISTS', KEYS[1]) == 0 or not delivered_to(KEYS[1], ARGV[2]) then return found end
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[2])) do
  local facts = {}
  for i = 1, #consumer, 2 do facts[consumer[i]] = consumer[i + 1] end
  if facts['name'] ~= NOBODY then
    local _, row = row_of(KEYS[2], facts['name'])
    for _, value in ipairs({facts['name'], facts['pending'], facts['idle'], row or ''}) do found[#found + 1] = value end
  end
end
return found

-- script extend
-- Moves the deadlines of deliveries on.
-- KEYS: three of each group: the stream, single entries by deadline, the consumers
-- ARGV: [2] consumer, [3] until when from now, us; then of each delivery: the first of its group's keys, group, id, number
-- Returns one letter a delivery: 1 where it is still this consumer's, 0 where it is not.
local consumer, ends = ARGV[2], whole(us + tonumber(ARGV[3]))
local mine = {}
for at = 4, #ARGV, 4 do
  local base, group, id = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local log = KEYS[base]
  local found = redis.pcall('XPENDING', log, group, id, id, 1)
  local pending = not found.err and found[1]
  local held = pending and pending[2] == consumer and pending[4] == tonumber(ARGV[at + 3])
  if held then
    -- For programs that read how long an entry has been idle, too.
    held = redis.call('XCLAIM', log, group, consumer, 0, id, 'JUSTID')[1]
    if held then redis.call('ZADD', KEYS[base + 1], ends, padded(id)) end
  end
  if redis.call('HEXISTS', KEYS[base + 2], consumer) == 1 then
    redis.call('HSET', KEYS[base + 2], consumer, whole(us) .. ' ' .. ends)
  end
  mine[#mine + 1] = held and '1' or '0'
end
return table.concat(mine)

-- script mark
-- Moves a group that reads by cursor.
-- KEYS: [1] the stream, [2] single entries by deadline, [3] what is known of the stream
-- ARGV: [2] group, [3] the id
-- Returns 'done', 'conflict', or 'beyond' the last entry.
local log, group, upto = KEYS[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', log) == 0 then return 'conflict' end
local delivered = delivered_to(log, group)
if not delivered or padded(floor_of(log, group, delivered)) >= padded(upto) then return 'conflict' end
local stream = described('STREAM', log)
if padded(upto) > padded(stream['last-generated-id']) then return 'beyond' end
if padded(upto) > padded(delivered) then
  -- The number in an id counts the entries up to it where all are ours. The server cannot count them itself.
  local number = tonumber(string.match(upto, '%-(%d+)$'))
  local ours = (counted(redis.call('HGET', KEYS[3], 'ours')) or 0) == stream['entries-added']
  if ours and number <= stream['entries-added'] then
    redis.call('XGROUP', 'SETID', log, group, upto, 'ENTRIESREAD', whole(number))
  elseif padded(upto) == padded(stream['last-generated-id']) then
    -- Whichever program wrote them, everything that was ever added is behind it.
    redis.call('XGROUP', 'SETID', log, group, upto, 'ENTRIESREAD', whole(stream['entries-added']))
  else
    redis.call('XGROUP', 'SETID', log, group, upto)
  end
end
repeat
  local found = redis.call('XPENDING', log, group, '-', upto, 1000)
  for _, pending in ipairs(found) do
    redis.call('XACK', log, group, pending[1])
    redis.call('ZREM', KEYS[2], padded(pending[1]))
  end
until #found == 0
return 'done'

-- script retire
-- Makes the pending entries of a dead consumer due, and removes it.
-- KEYS: [1] the stream, [2] single entries by deadline, [3] the consumers, [4] what wakes the group, [5] what is known of the stream
-- ARGV: [2] group, [3] consumer, [4] how long a consumer of another program is idle before it counts as dead, ms
-- Returns 'done', 'conflict', or 'more' if entries are left.
local log, due, group, name = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local HANDED_MAX = 10000
if name == NOBODY or redis.call('EXISTS', log) == 0 or not delivered_to(log, group) then return 'conflict' end
local ends, known = row_of(KEYS[3], name), false
if ends and ends > us then return 'conflict' end
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', log, group)) do
  local facts = {}
  for i = 1, #consumer, 2 do facts[consumer[i]] = consumer[i + 1] end
  if facts['name'] == name then known = ends or facts['idle'] >= tonumber(ARGV[4]) end
end
if not known then return 'conflict' end
local handed = 0
while handed < HANDED_MAX do
  local found = redis.call('XPENDING', log, group, '-', '+', 500, name)
  if #found == 0 then break end
  for _, pending in ipairs(found) do
    -- What was trimmed meanwhile is pending no more; the claim drops it.
    if redis.call('XCLAIM', log, group, NOBODY, 0, pending[1], 'JUSTID')[1] then
      redis.call('ZADD', due, whole(us), padded(pending[1]))
    else
      redis.call('XACK', log, group, pending[1])
      add(KEYS[5], 'lost ' .. group, 1)
    end
  end
  handed = handed + #found
end
if handed > 0 then wake(KEYS[4]) end
if handed >= HANDED_MAX then return 'more' end
redis.call('XGROUP', 'DELCONSUMER', log, group, name)
redis.call('HDEL', KEYS[3], name)
return 'done'
