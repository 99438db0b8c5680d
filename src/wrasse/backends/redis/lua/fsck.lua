-- Checks what seems to be inconsistent, and repairs what still is. Each item is checked and repaired in this one step.
-- KEYS: [1] to [21] as `RedisKeys.shared`; [22] workers, [23] workers:info; then two of each worker (processing list,
--   heartbeat) and three of each queue (list, delayed set, wake list).
-- ARGV: [2] 1 to repair; [3] heartbeat timeout, ms; [4] how long ids last, ms; [5] number of items, then each: kind, number of its
--   words, first key of its worker or queue (or 0), its other words. See `kinds` below.
-- Returns of each item how much of it is inconsistent; 0: nothing, or not any more.
-- include new_jobs
-- include finished_jobs
-- include list_entries
-- include job_id
need_shared(21)
local repair, timeout, ids_kept = ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4])
local kinds = {}

local function is_held(take) return redis.call('ZSCORE', KEYS[13], take) end

local function has_hold(take) return redis.call('HEXISTS', KEYS[14], take) == 1 end

local function is_finished(take) return redis.call('HEXISTS', KEYS[17], take) == 1 end

local function is_indexed(take) return redis.call('ZSCORE', KEYS[15], take) or redis.call('ZSCORE', KEYS[16], take) end

local function expires_never(key) return redis.call('PTTL', key) == -1 end

-- How often a processing list has these bytes. It is scanned once for all items.
local lists = {}
local function times(list, bytes)
  lists[list] = lists[list] or count_in(list)
  return lists[list][bytes] or 0
end

local function whose(text)
  local w, q, i, at = string.match(text, '^%d+ %d+ %d+ (%d+) (%d+) (%d+)\n()')
  if not at then return '', '' end
  return string.sub(text, at, at + w - 1), string.sub(text, at + w, at + w + q - 1)
end

-- token
function kinds.K(_, token)
  if tonumber(redis.call('GET', KEYS[1]) or 0) >= tonumber(token) then return 0 end
  if repair then redis.call('SET', KEYS[1], token) end
  return 1
end

-- list or set, entry, the job's bytes
function kinds.X(queue, where, entry, bytes)
  local there = where == 'list' and redis.call('LPOS', KEYS[queue], entry)
    or where == 'set' and redis.call('ZSCORE', KEYS[queue + 1], entry)
  if not there then return 0 end
  if repair then
    if where == 'list' then redis.call('LREM', KEYS[queue], -1, entry) else redis.call('ZREM', KEYS[queue + 1], entry) end
    redis.call('LPUSH', KEYS[20], bytes)
  end
  return 1
end

-- which of KEYS, name, the text that cannot be read. A claim's entry is found again, and gets a new claim.
function kinds.S(_, key, name, text)
  key = tonumber(key)
  if redis.call('HGET', KEYS[key], name) ~= text then return 0 end
  if repair then
    redis.call('HDEL', KEYS[key], name)
    if key == 14 then redis.call('ZREM', KEYS[13], name) end
  end
  return 1
end

-- which of the three
function kinds.Y(_, n)
  if not expires_never(KEYS[9 + n]) then return 0 end
  if repair then redis.call('PEXPIRE', KEYS[9 + n], 600000) end
  return 1
end

-- worker
function kinds.L(_, worker)
  if redis.call('HEXISTS', KEYS[23], worker) == 0 or redis.call('ZSCORE', KEYS[22], worker) then return 0 end
  if repair then redis.call('HDEL', KEYS[23], worker) end
  return 1
end

function kinds.B(worker)
  if not expires_never(KEYS[worker + 1]) then return 0 end
  if repair then redis.call('PEXPIRE', KEYS[worker + 1], timeout) end
  return 1
end

-- name of the queue
function kinds.Q(queue, name)
  if redis.call('SISMEMBER', KEYS[9], name) == 1 or redis.call('EXISTS', KEYS[queue], KEYS[queue + 1]) == 0 then return 0 end
  if repair then redis.call('SADD', KEYS[9], name) end
  return 1
end

-- member of the delayed set
function kinds.Z(queue, member)
  local moment = redis.call('ZSCORE', KEYS[queue + 1], member)
  if not moment then return 0 end
  if repair then
    redis.call('ZREM', KEYS[queue + 1], member)
    delay_until(KEYS[queue + 1], moment, member)
  end
  return 1
end

-- claim key
function kinds.I(_, take)
  if not is_held(take) or has_hold(take) then return 0 end
  if repair then redis.call('ZREM', KEYS[13], take) end
  return 1
end

-- claim key
function kinds.T(_, take)
  if is_held(take) or not has_hold(take) then return 0 end
  if repair then
    -- What is finished is not held any more, whatever was left behind.
    if is_finished(take) then redis.call('HDEL', KEYS[14], take)
    else redis.call('ZADD', KEYS[13], now + timeout, take) end
  end
  return 1
end

-- Of claim keys of one worker that claim equal bytes: those that are current, their bytes, and how many have no entry.
local function excess(worker, takes)
  local current, bytes = {}, nil
  for _, take in ipairs(takes) do
    local text = redis.call('HGET', KEYS[14], take)
    if text and is_held(take) then
      current[#current + 1] = take
      bytes = read_hold(text)
    end
  end
  if not bytes then return current, bytes, 0 end
  return current, bytes, math.max(0, #current - times(KEYS[worker], bytes))
end

-- claim keys that claim equal bytes
function kinds.P(worker, ...)
  local _, bytes, missing = excess(worker, {...})
  if repair and missing > 0 then
    redis.call('SET', KEYS[worker + 1], now, 'PX', timeout, 'NX')
    for _ = 1, missing do redis.call('LPUSH', KEYS[worker], bytes) end
  end
  return missing
end

-- claim keys that claim equal bytes
function kinds.H(worker, ...)
  local current, _, missing = excess(worker, {...})
  for i = 1, repair and missing or 0 do
    local take = current[i]
    local text = redis.call('HGET', KEYS[14], take)
    local _, id = read_hold(text)
    local _, queue = whose(text)
    redis.call('ZREM', KEYS[13], take)
    redis.call('HDEL', KEYS[14], take)
    count('held', queue, -1)
    if redis.call('HGET', KEYS[8], id) == take then redis.call('HDEL', KEYS[8], id) end
    rest(KEYS[worker], KEYS[worker + 1])
  end
  return missing
end

-- name of the worker, bytes, claim keys that claim equal bytes. The caller repairs it by an adoption.
function kinds.E(key, worker, bytes, ...)
  if redis.call('EXISTS', KEYS[key + 1]) == 1 and not redis.call('ZSCORE', KEYS[22], worker) then return 0 end
  local held, newest = 0, redis.call('HGET', KEYS[8], id_of(bytes))
  for _, take in ipairs({...}) do
    if has_hold(take) then held = held + 1 end
    if take == newest then newest = false end
  end
  if newest then
    local text = redis.call('HGET', KEYS[14], newest)
    if not text and is_held(newest) then held = held + 1 end -- which is another kind of damage
    if text and whose(text) == worker and read_hold(text) == bytes then held = held + 1 end
  end
  return math.max(0, times(KEYS[key], bytes) - held)
end

-- claim key
function kinds.F(_, take)
  local text = redis.call('HGET', KEYS[17], take)
  if not text or is_indexed(take) then return 0 end
  if repair then
    local finished, kept, place = string.match(text, '^(%d+) (%d+)\n(%a+) ')
    finished, kept = number_in(finished) or now, number_in(kept) or 0 -- what something else wrote is shown among the dead
    local moment = place == 'done' and kept > 0 and kept or finished
    redis.call('ZADD', place == 'done' and KEYS[15] or KEYS[16], moment, take)
  end
  return 1
end

-- claim key
function kinds.N(_, take)
  if not is_indexed(take) or is_finished(take) then return 0 end
  if repair then
    redis.call('ZREM', KEYS[15], take)
    redis.call('ZREM', KEYS[16], take)
  end
  return 1
end

-- Of claim keys of dead jobs of equal bytes: those that are current, and the bytes.
local function current_dead(takes)
  local current, bytes = {}, nil
  for _, take in ipairs(takes) do
    local text = redis.call('HGET', KEYS[17], take)
    if text and redis.call('ZSCORE', KEYS[16], take) then
      current[#current + 1] = take
      bytes = bytes_of(text)
    end
  end
  return current, bytes
end

-- How often each of the dead jobs in question is in the list, which may be long: it is scanned once for all.
local letters
local function count_letters()
  local wanted, at = {}, 6
  for _ = 1, tonumber(ARGV[5]) do
    local words = tonumber(ARGV[at + 1])
    if ARGV[at] == 'D' then
      local _, bytes = current_dead({unpack(ARGV, at + 3, at + 1 + words)})
      if bytes then wanted[bytes] = true end
    end
    at = at + 2 + words
  end
  return count_in(KEYS[20], wanted)
end

-- claim keys of dead jobs of equal bytes
function kinds.D(_, ...)
  local current, bytes = current_dead({...})
  if not bytes then return 0 end
  letters = letters or count_letters()
  local missing = math.max(0, #current - (letters[bytes] or 0))
  if repair and missing > 0 then drop_finished('dead', KEYS[16], {unpack(current, 1, missing)}, ids_kept) end
  return missing
end

-- bytes, where they stand counted from the old end, how many entries like it were met, claim keys of dead jobs of equal
-- bytes. The caller repairs it.
function kinds.A(_, bytes, place, met, ...)
  if redis.call('LINDEX', KEYS[20], -place) ~= bytes then return 0 end
  local known, newest = 0, redis.call('HGET', KEYS[8], id_of(bytes))
  for _, take in ipairs({...}) do
    if is_finished(take) then known = known + 1 end
    if take == newest then newest = false end
  end
  local text = newest and redis.call('HGET', KEYS[17], newest)
  if text and bytes_of(text) == bytes then known = known + 1 end
  return known < tonumber(met) and 1 or 0
end

-- id, claim key
function kinds.W(_, id, take)
  if redis.call('HGET', KEYS[8], id) ~= take then return 0 end
  if is_held(take) or has_hold(take) or is_finished(take) or is_indexed(take) then return 0 end
  if repair then redis.call('HDEL', KEYS[8], id) end
  return 1
end

-- id, claim key
function kinds.M(_, id, take)
  if redis.call('HEXISTS', KEYS[8], id) == 1 or not (has_hold(take) or is_finished(take)) then return 0 end
  if repair then redis.call('HSET', KEYS[8], id, take) end
  return 1
end

-- id
function kinds.J(_, id)
  local known = redis.call('HGET', KEYS[2], id)
  if not known or (number_in(known) or 0) > 1 or redis.call('HEXISTS', KEYS[8], id) == 1 then return 0 end
  if repair and known == '0' then redis.call('HDEL', KEYS[2], id)
  elseif repair then
    redis.call('HSET', KEYS[2], id, now + ids_kept)
    redis.call('ZADD', KEYS[3], now + ids_kept, id)
  end
  return 1
end

-- id
function kinds.O(_, id)
  if redis.call('HEXISTS', KEYS[21], id) == 0 or redis.call('HEXISTS', KEYS[8], id) == 1 then return 0 end
  if repair then redis.call('HDEL', KEYS[21], id) end
  return 1
end

-- unique name, id
function kinds.U(_, name, id)
  if redis.call('HGET', KEYS[4], name) ~= '0 ' .. id then return 0 end
  local take = redis.call('HGET', KEYS[8], id)
  if take and (is_held(take) or has_hold(take)) then return 0 end
  if repair then redis.call('HDEL', KEYS[4], name) end
  return 1
end

-- 'ids', 'uniques' or 'groups', name
function kinds.R(_, which, name)
  local moment, expiry = 0, KEYS[7]
  if which == 'ids' then
    moment, expiry = number_in(redis.call('HGET', KEYS[2], name)) or 0, KEYS[3]
    if moment < 2 then return 0 end
  elseif which == 'uniques' then
    moment, expiry = number_in(string.match(redis.call('HGET', KEYS[4], name) or '', '^%d+')) or 0, KEYS[5]
    if moment == 0 then return 0 end
  else
    local found = redis.call('HMGET', KEYS[6], 's:' .. name, 'd:' .. name, 'x:' .. name, 'f:' .. name)
    if not (found[1] or found[2] or found[3] or found[4]) then return 0 end
    moment = now + GROUPS_KEPT
  end
  if redis.call('ZSCORE', expiry, name) then return 0 end
  if repair then redis.call('ZADD', expiry, moment, name) end
  return 1
end

-- group
function kinds.C(_, id)
  local found = redis.call('HMGET', KEYS[6], 's:' .. id, 'c:' .. id)
  if not found[1] or (number_in(found[1]) and callback_in(found[2])) then return 0 end
  if repair then
    redis.call('HDEL', KEYS[6], 's:' .. id, 'd:' .. id, 'x:' .. id, 'c:' .. id)
    redis.call('HSET', KEYS[6], 'f:' .. id, 1)
    redis.call('ZADD', KEYS[7], now + GROUPS_KEPT, id)
  end
  return 1
end

-- group, its size, how many are done, how many are dead, how many are gone
function kinds.G(_, id, size, done, dead, gone)
  local found = redis.call('HMGET', KEYS[6], 's:' .. id, 'd:' .. id, 'x:' .. id, 'c:' .. id)
  if found[1] ~= size or (found[2] or '0') ~= done or (found[3] or '0') ~= dead or not found[4] then return 0 end
  if repair then
    redis.call('HINCRBY', KEYS[6], 'x:' .. id, gone)
    call_back(id)
  end
  return 1
end

local answer, at = {}, 6
for i = 1, tonumber(ARGV[5]) do
  local words = tonumber(ARGV[at + 1])
  answer[i] = kinds[ARGV[at]](tonumber(ARGV[at + 2]), unpack(ARGV, at + 3, at + 1 + words))
  at = at + 2 + words
end
return answer
