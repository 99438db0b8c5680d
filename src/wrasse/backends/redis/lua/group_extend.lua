-- Moves the deadlines of deliveries on.
-- KEYS: three of each group: the stream, single entries by deadline, the consumers
-- ARGV: [2] consumer, [3] until when from now, us; then of each delivery: the first of its group's keys, group, id, number
-- Gives one letter a delivery: 1 where it is still this consumer's, 0 where it is not.
-- include entry_ids
local consumer, ends = ARGV[2], whole(us + tonumber(ARGV[3]))
local mine = {}
for at = 4, #ARGV, 4 do
  local base, group, id = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local log = KEYS[base]
  local found = redis.pcall('XPENDING', log, group, id, id, 1)
  local pending = not found.err and found[1]
  local held = pending and pending[2] == consumer and pending[4] == tonumber(ARGV[at + 3])
  if held then
    -- For those who look at how long an entry has been idle, too.
    held = redis.call('XCLAIM', log, group, consumer, 0, id, 'JUSTID')[1]
    if held then redis.call('ZADD', KEYS[base + 1], ends, padded(id)) end
  end
  if redis.call('HEXISTS', KEYS[base + 2], consumer) == 1 then
    redis.call('HSET', KEYS[base + 2], consumer, whole(us) .. ' ' .. ends)
  end
  mine[#mine + 1] = held and '1' or '0'
end
return table.concat(mine)
