-- Notes the new entries that a consumer read in this step, after `group_deliver` with 'due': they are one batch.
-- KEYS: as those of `group_deliver`, of one stream
-- ARGV: [2] group, [3] consumer, [4] for how long, us
-- Gives when the next entry is due, us (-1: none), how far the group has read, and the last id of what wakes it.
-- include entry_ids
local log, held, due, rows, wake_key = unpack(KEYS)
local read = delivered_to(log, ARGV[2])
if not read then return {-1, '0-0', '0-0'} end
local before = string.match(redis.call('HGET', rows, '') or '', ' (.+)$')
if before and padded(read) > padded(before) then
  redis.call('ZADD', held, whole(us + tonumber(ARGV[4])), '(' .. before .. ' ' .. read .. ' ' .. ARGV[3])
end
local next_due = -1
for _, key in ipairs({held, due}) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] and (next_due < 0 or tonumber(first[2]) < next_due) then next_due = tonumber(first[2]) end
end
local woken = redis.call('EXISTS', wake_key) == 1 and described('STREAM', wake_key)['last-generated-id'] or '0-0'
return {next_due, read, woken}
