-- Adds claims to entries of processing lists that have none. Their claim keys follow from worker and bytes, so that a
-- second adoption of the same entry finds that it has a claim.
-- KEYS: [1] to [21] as `RedisKeys.shared`; then two of each worker: processing list, heartbeat.
-- ARGV: [2] heartbeat timeout, ms; then of each entry: first key of its worker, 1 if its heartbeat must be absent, claim key, worker,
--   queue, id, flags, bytes
-- Result: how many were adopted
-- include new_jobs
need_shared(21)
local timeout, adopted = ARGV[2], 0

-- Whether the newest claim of this id is still known: then it stays the one that is found by the id.
local function is_current(id)
  local take = redis.call('HGET', KEYS[8], id)
  return take and (redis.call('ZSCORE', KEYS[13], take) or redis.call('HEXISTS', KEYS[17], take) == 1)
end

for at = 3, #ARGV, 8 do
  local first, take, worker, queue = tonumber(ARGV[at]), ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local id, flags, bytes = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7]
  local silent = ARGV[at + 1] == '0' or redis.call('EXISTS', KEYS[first + 1]) == 0
  if silent and fits(KEYS[first], 'list') and redis.call('LPOS', KEYS[first], bytes) and not redis.call('ZSCORE', KEYS[13], take) then
    redis.call('INCR', KEYS[1]) -- so that the next token of this job is above the one of this claim
    local numbers = {string.format('%.0f', now), timeout, flags, #worker, #queue, #id}
    redis.call('HSET', KEYS[14], take, table.concat(numbers, ' ') .. '\n' .. worker .. queue .. id .. bytes)
    redis.call('ZADD', KEYS[13], now + timeout, take)
    count('held', queue, 1)
    if id ~= '' and not is_current(id) then redis.call('HSET', KEYS[8], id, take) end
    adopted = adopted + 1
  end
end
return adopted
