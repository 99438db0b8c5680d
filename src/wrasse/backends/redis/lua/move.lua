-- Moves jobs for others than their workers, in their order, each under its own condition.
-- KEYS: [1] to [21] as `RedisKeys.shared`; then two of each worker (processing list, heartbeat) and three of each queue
--   (list, delayed set, wake list).
-- ARGV: [2] number of items, then each: kind, and
--   R, overdue to ready: claim key, first key of its worker, 1 if its heartbeat is evidence, name of the queue it is counted
--      under, first key of the queue it goes to and that queue's name, new bytes, delay (ms)
--   B, overdue to dead: claim key, first key of its worker, 1 if its heartbeat is evidence, name of the queue it is counted
--      under, text for `finished` but for its first line, new bytes, id, group, unique name, new claim key
--   C, running to dead: as B; no deadline need have passed
--   W, waiting to dead: first key of its queue, the queue's name, 'list' or 'set', its entry, where it stood, then as B
--      from the text on
--   V, dead to ready: claim key, its entry, id, unique name, name of the queue it is counted under, first key of the queue it
--      goes to and that queue's name, new bytes, delay (ms)
-- Returns one letter an item: d for done, l for conflict; what would come from a key of a wrong type or go to one stays where
--   it is, and is a conflict.
-- include new_jobs
-- include finished_jobs
-- include list_entries

need_shared(21)

-- The claim is over, whatever becomes of the job.
local function end_hold(take, queue, worker)
  redis.call('ZREM', KEYS[13], take)
  redis.call('HDEL', KEYS[14], take)
  count('held', queue, -1)
  rest(KEYS[worker], KEYS[worker + 1])
end

local function forget_take(id, take)
  if redis.call('HGET', KEYS[8], id) == take then redis.call('HDEL', KEYS[8], id) end
end

-- Takes a running job out of its processing list; returns whether it was there. A claim that names nothing any more, or whose
-- worker turned out to live, ends here.
local function free(take, worker, evidence, queue, overdue)
  local until_at, text = redis.call('ZSCORE', KEYS[13], take), redis.call('HGET', KEYS[14], take)
  if not until_at or not text or not fits(KEYS[worker], 'list') then return false end
  if overdue and tonumber(until_at) > now then return false end
  local bytes, id = read_hold(text)
  local alive = overdue and evidence == '1' and redis.call('EXISTS', KEYS[worker + 1]) == 1
  local there = not alive and redis.call('LREM', KEYS[worker], -1, bytes) == 1
  end_hold(take, queue, worker)
  forget_take(id, take)
  return there
end

local function ready(key, name, bytes, delay, next_served)
  redis.call('SADD', KEYS[9], name)
  if delay > 0 then delay_until(KEYS[key + 1], now + delay, bytes)
  else redis.call(next_served and 'RPUSH' or 'LPUSH', KEYS[key], bytes) end
  wake(KEYS[key + 2], 1)
end

-- ARGV from `at`: text, new bytes, id, group, unique name, new claim key.
local function dead_letter(at, queue)
  local bytes, id, group, unique, take = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  redis.call('LPUSH', KEYS[20], bytes)
  redis.call('HSET', KEYS[17], take, now .. ' 0\n' .. ARGV[at])
  redis.call('ZADD', KEYS[16], now, take)
  count('dead', queue, 1)
  if id ~= '' then redis.call('HSET', KEYS[8], id, take) end
  release_unique(unique, id)
  if group ~= '' then count_member(group, 'x') end
end

local kinds = {}

function kinds.R(at)
  local moved = is_open(tonumber(ARGV[at + 4]))
    and free(ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], true)
  if moved then ready(tonumber(ARGV[at + 4]), ARGV[at + 5], ARGV[at + 6], tonumber(ARGV[at + 7]), true) end
  return moved, at + 8
end

local function held_to_dead(at, overdue)
  local moved = fits(KEYS[20], 'list')
    and free(ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], overdue)
  if moved then dead_letter(at + 4, ARGV[at + 3]) end
  return moved, at + 10
end

function kinds.B(at) return held_to_dead(at, true) end

function kinds.C(at) return held_to_dead(at, false) end

function kinds.W(at)
  local first = tonumber(ARGV[at])
  local moved = fits(KEYS[20], 'list') and is_open(first)
    and take_out(first, ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
  if moved then dead_letter(at + 5, ARGV[at + 1]) end
  return moved, at + 11
end

function kinds.V(at)
  local take, id, unique = ARGV[at], ARGV[at + 2], ARGV[at + 3]
  if not fits(KEYS[20], 'list') or not is_open(tonumber(ARGV[at + 5])) then return false, at + 9 end
  local end_of_list = nearer_end(KEYS[16], take)
  if redis.call('ZREM', KEYS[16], take) == 0 then return false, at + 9 end
  redis.call('HDEL', KEYS[17], take)
  count('dead', ARGV[at + 4], -1)
  forget_take(id, take)
  if redis.call('LREM', KEYS[20], end_of_list, ARGV[at + 1]) == 0 then return false, at + 9 end
  if unique ~= '' then redis.call('HSETNX', KEYS[4], unique, '0 ' .. id) end
  ready(tonumber(ARGV[at + 5]), ARGV[at + 6], ARGV[at + 7], tonumber(ARGV[at + 8]), false)
  return true, at + 9
end

local outcomes, at = {}, 3
for i = 1, tonumber(ARGV[2]) do
  local moved
  moved, at = kinds[ARGV[at]](at + 1)
  outcomes[i] = moved and 'd' or 'l'
end
close_gaps()
return table.concat(outcomes)
