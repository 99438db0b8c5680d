-- Moves a group that reads by cursor.
-- KEYS: [1] the stream, [2] single entries by deadline, [3] what is known of the stream
-- ARGV: [2] group, [3] the id
-- Gives 'done', 'conflict', or 'beyond' the last entry.
-- include entry_ids
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
    -- Whoever wrote them: everything that was ever added is behind it.
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
