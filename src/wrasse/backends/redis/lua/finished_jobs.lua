-- Ends claims, and forgets finished jobs. After `new_jobs`, with KEYS[1] to KEYS[21] as `RedisKeys.shared`: [8] where,
-- [13] held, [14] holds, [15] done, [16] dead, [17] finished, [18] counts, [19] completed, [20] dead letters,
-- [21] progress.

-- Of a value in holds: the job's bytes and its id.
local function read_hold(text)
  local worker, queue, id, at = string.match(text, '^%d+ %d+ %d+ (%d+) (%d+) (%d+)\n()')
  at = (at or math.huge) + (worker or 0) + (queue or 0) + (id or 0)
  if at > #text + 1 then return text, '' end -- something else wrote it
  return string.sub(text, at), string.sub(text, at - id, at - 1)
end

-- Of a value in finished: the job's queue and its id.
local function read_finished(text)
  local worker, queue, id, at = string.match(text,
    '^%d+ %d+\n%a+ %d+ %d+ %d+ %d+ %d+ (%d+) (%d+) (%d+) %d+ %d+ %-?%d+ %d+\n()')
  at = (at or math.huge) + (worker or 0) + (queue or 0)
  if at + (id or 0) > #text + 1 then return '', '' end
  return string.sub(text, at - queue, at - 1), string.sub(text, at, at + id - 1)
end

-- Of a value in finished: the job's bytes; of what something else wrote, all of it.
local function bytes_of(text)
  local w, q, i, r, e, result, h, at = string.match(text,
    '^%d+ %d+\n%a+ %d+ %d+ %d+ %d+ %d+ (%d+) (%d+) (%d+) (%d+) (%d+) (%-?%d+) (%d+)\n()')
  at = at and at + w + q + i + r + e + math.max(tonumber(result), 0) + h or math.huge
  return at > #text + 1 and text or string.sub(text, at)
end

-- The values that `command` returns for many names, in one table.
local function ask_chunks(command, key, names)
  if #names <= CHUNK then return redis.call(command, key, unpack(names)) end
  local all = {}
  for first = 1, #names, CHUNK do
    local last = math.min(first + CHUNK - 1, #names)
    for i, value in ipairs(redis.call(command, key, unpack(names, first, last))) do all[first + i - 1] = value end
  end
  return all
end

-- The jobs of these ids, whose newest claim keys were these, are gone: nothing of them stays but ids that last.
local function forget_jobs(ids, takes, ids_kept)
  if #ids == 0 then return end
  local newest, gone, old = ask_chunks('HMGET', KEYS[8], ids), {}, {}
  for i, id in ipairs(ids) do
    if newest[i] == takes[i] then gone[#gone + 1] = id end
  end
  if #gone == 0 then return end
  each_chunk('HDEL', KEYS[8], gone)
  if fits(KEYS[21], 'hash') then each_chunk('HDEL', KEYS[21], gone) end
  if redis.call('EXISTS', KEYS[2]) == 0 then return end
  for i, known in ipairs(ask_chunks('HMGET', KEYS[2], gone)) do
    if known == '1' then
      redis.call('HSET', KEYS[2], gone[i], now + ids_kept)
      redis.call('ZADD', KEYS[3], now + ids_kept, gone[i])
    elseif known == '0' then
      old[#old + 1] = gone[i]
    end
  end
  each_chunk('HDEL', KEYS[2], old)
  forget_expired(KEYS[3], KEYS[2], math.min(2 * #gone, CHUNK))
end

-- Drops finished jobs of one state ('done' in KEYS[15] or 'dead' in KEYS[16]) by their claims.
local function drop_finished(place, index, takes, ids_kept)
  local ids, counts = {}, {}
  for i, text in ipairs(ask_chunks('HMGET', KEYS[17], takes)) do
    local queue, id = '', ''
    if text then queue, id = read_finished(text) end
    ids[i], counts[queue] = id, (counts[queue] or 0) + 1
  end
  each_chunk('HDEL', KEYS[17], takes)
  each_chunk('ZREM', index, takes)
  for queue, number in pairs(counts) do count(place, queue, -number) end
  forget_jobs(ids, takes, ids_kept)
end

-- No more done jobs than allowed, the oldest first; one whose result is kept stays.
local function trim_done(done_max, ids_kept)
  local excess = redis.call('ZCARD', KEYS[15]) - done_max
  while excess > 0 do
    local old = redis.call('ZRANGEBYSCORE', KEYS[15], '-inf', now, 'LIMIT', 0, math.min(excess, CHUNK))
    if #old == 0 then return end
    drop_finished('done', KEYS[15], old, ids_kept)
    excess = excess - #old
  end
end

-- A finished job releases its unique name, unless the name has a window of its own.
local function release_unique(name, id)
  if name ~= '' and redis.call('HGET', KEYS[4], name) == '0 ' .. id then redis.call('HDEL', KEYS[4], name) end
end

-- A worker without jobs needs no heartbeat, but for a while: another program's recovery that has seen its list
-- asks for the heartbeat, and pops only then. By that time there may be a new entry, which it would take from a worker
-- that lives.
local LINGERS = 5000

local function rest(processing, heartbeat)
  if redis.call('EXISTS', processing) == 0 and redis.call('PTTL', heartbeat) > LINGERS then
    redis.call('PEXPIRE', heartbeat, LINGERS)
  end
end
