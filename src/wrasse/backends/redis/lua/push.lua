-- Makes plain jobs ready: their ids were made for this very enqueue, and nothing about them needs a check.
-- KEYS: [1] to [3] requests; [4] queues; then two of each queue: list, wake list.
-- ARGV: [2] request; [3] number of queues; then for each: its name, the number of its jobs, and their bytes.
-- Returns '1': all are new.
local REQUESTS = 1
-- include requests
-- include queue_keys
local told = recall('p' .. ARGV[2])
if told then return told end
need('set', KEYS[4])
for list = 5, #KEYS, 2 do need('list', KEYS[list]) end
local at, key = 4, 5
for _ = 1, tonumber(ARGV[3]) do
  local count = tonumber(ARGV[at + 1])
  redis.call('SADD', KEYS[4], ARGV[at])
  at = at + 2
  for first = at, at + count - 1, 1000 do
    redis.call('LPUSH', KEYS[key], unpack(ARGV, first, math.min(first + 1000, at + count) - 1))
  end
  wake(KEYS[key + 1], count)
  at, key = at + count, key + 2
end
remember('p' .. ARGV[2], '1')
return '1'
