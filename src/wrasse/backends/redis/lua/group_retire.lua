-- Hands over what a dead consumer holds, and removes it.
-- KEYS: [1] the stream, [2] single entries by deadline, [3] the consumers, [4] what wakes the group, [5] what is known of the stream
-- ARGV: [2] group, [3] consumer, [4] how long a consumer of another program is idle before it counts as dead, ms
-- Gives 'done', 'conflict', or 'more' to hand over.
-- include entry_ids
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
