-- Takes back deliveries that nobody got, as if they had not been made.
-- KEYS: three of each group: the stream, single entries by deadline, what wakes the group
-- ARGV: [2] group, [3] consumer; then of each delivery: the first of its keys, id, number
-- include entry_ids
local group, consumer = ARGV[2], ARGV[3]
for at = 4, #ARGV, 3 do
  local base, id, number = tonumber(ARGV[at]), ARGV[at + 1], tonumber(ARGV[at + 2])
  local found = redis.pcall('XPENDING', KEYS[base], group, id, id, 1)
  local pending = not found.err and found[1]
  if pending and pending[2] == consumer and pending[4] == number then
    redis.call('XCLAIM', KEYS[base], group, NOBODY, 0, id, 'RETRYCOUNT', whole(number - 1), 'JUSTID')
    redis.call('ZADD', KEYS[base + 1], whole(us), padded(id))
    wake(KEYS[base + 2])
  end
end
return 0
