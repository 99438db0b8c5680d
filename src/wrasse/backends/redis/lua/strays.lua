-- Entries of processing lists that no hold names. Reads only.
-- KEYS: [1] where, [2] held, [3] holds, [4] workers; then two of each list: itself, and the heartbeat of its worker.
-- ARGV: [2] entries looked at per list at most; then the worker of each list
-- Result: now; then of each list: 'none' if it is empty, 'live' if its worker is another program's and lives (nothing
--   more is asked), 'ours' if it is one of ours and lives, else 'silent'; the number of its entries without a hold, and
--   these
-- include job_id
local most, result = tonumber(ARGV[2]), {now}

-- Whether the newest take of its id holds this very entry.
local function is_held(worker, bytes)
  local take = redis.call('HGET', KEYS[1], id_of(bytes))
  if not take or not redis.call('ZSCORE', KEYS[2], take) then return false end
  local text = redis.call('HGET', KEYS[3], take)
  if not text then return false end
  local w, q, i, at = string.match(text, '^%d+ %d+ %d+ (%d+) (%d+) (%d+)\n()')
  return string.sub(text, at, at + w - 1) == worker and string.sub(text, at + w + q + i) == bytes
end

for i = 3, #ARGV do
  local list, heartbeat, worker = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i]
  local state = 'silent'
  if redis.call('LLEN', list) == 0 then state = 'none'
  elseif redis.call('EXISTS', heartbeat) == 1 then
    state = redis.call('ZSCORE', KEYS[4], worker) and 'ours' or 'live'
  end
  local at = #result
  result[at + 1], result[at + 2] = state, 0
  if state == 'ours' or state == 'silent' then
    for _, bytes in ipairs(redis.call('LRANGE', list, 0, most - 1)) do
      if not is_held(worker, bytes) then
        result[at + 2] = result[at + 2] + 1
        result[#result + 1] = bytes
      end
    end
  end
end
return result
