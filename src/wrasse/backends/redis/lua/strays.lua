-- Entries of processing lists that no claim names. Reads only.
-- KEYS: [1] where, [2] held, [3] holds, [4] workers; then two of each list: itself, and the heartbeat of its worker.
-- ARGV: [2] entries read per list at most; then the worker of each list
-- Result: now; then of each list: 'none' if it is empty, 'live' if its worker is another program's and lives (nothing
--   more is asked), 'ours' if it is one of ours and lives, else 'silent'; the number of its entries without a claim, and
--   these
-- include job_id
-- include queue_keys
local most, result, room = tonumber(ARGV[2]), {now}, 32 * 1024 * 1024

-- Whether the newest claim of its id is for this very entry.
local function is_held(worker, bytes)
  local take = redis.call('HGET', KEYS[1], id_of(bytes))
  if not take or not redis.call('ZSCORE', KEYS[2], take) then return false end
  local text = redis.call('HGET', KEYS[3], take)
  if not text then return false end
  local w, q, i, at = string.match(text, '^%d+ %d+ %d+ (%d+) (%d+) (%d+)\n()')
  if not at then return false end -- something else wrote it
  return string.sub(text, at, at + w - 1) == worker and string.sub(text, at + w + q + i) == bytes
end

for i = 3, #ARGV do
  local list, heartbeat, worker = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i]
  local state = 'silent'
  if not fits(list, 'list') or redis.call('LLEN', list) == 0 then state = 'none'
  elseif redis.call('EXISTS', heartbeat) == 1 then
    state = fits(KEYS[4], 'zset') and redis.call('ZSCORE', KEYS[4], worker) and 'ours' or 'live'
  end
  local at = #result
  result[at + 1], result[at + 2] = state, 0
  if state == 'ours' or state == 'silent' then
    -- What does not fit into this answer is found by the next search, once these have a claim.
    local from, step = 0, 1
    while from < most and room > 0 do
      local some = redis.call('LRANGE', list, from, math.min(from + step, most) - 1)
      local longest = 1
      for _, bytes in ipairs(some) do
        longest = math.max(longest, #bytes)
        if not is_held(worker, bytes) then
          result[at + 2] = result[at + 2] + 1
          result[#result + 1] = bytes
          room = room - #bytes
        end
      end
      if #some < step then break end
      from, step = from + step, math.max(1, math.min(100, math.floor(room / longest)))
    end
  end
end
return result
