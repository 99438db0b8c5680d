-- Moves ready jobs to a worker, all of the first queue before any of the second, and grants a claim of each.
-- KEYS: [1] to [21] as `RedisKeys.shared`; [22] the worker's processing list, [23] its heartbeat; then three of each queue:
--   list, delayed set, moments of its last claims.
-- ARGV: [2] request; [3] limit; [4] heartbeat timeout, ms; [5] worker; [6] nonce; [7] number of queues, then for each its name
--   and the number of its rates, and for each rate its limit and its time in ms.
-- Returns {now, token of the first, bytes of the jobs of the first queue, of the second, ...}; if there are none, {now, 0};
-- asked again {now, 0, claim key, deadline, value in holds, claim key, ...} of those that still run.
local REQUESTS = 10
-- include requests
-- include new_jobs
-- include finished_jobs
-- include job_id
local request, limit, timeout, worker, nonce = 't' .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local told = recall(request)
if told then
  local first, last, with = string.match(told, '^(%d+) (%d+) (.*)$')
  local takes, answer = {}, {now, 0}
  first, last = number_in(first), number_in(last)
  if not first or not last or last - first > 100000 then return answer end -- another program wrote it
  for token = first, last do takes[#takes + 1] = string.format('%.0f', token) .. '-' .. with end
  local scores, texts = ask_chunks('ZMSCORE', KEYS[13], takes), ask_chunks('HMGET', KEYS[14], takes)
  for i, take in ipairs(takes) do
    if scores[i] and texts[i] then
      local n = #answer
      answer[n + 1], answer[n + 2], answer[n + 3] = take, scores[i], texts[i]
    end
  end
  return answer
end

need_token()
need('hash', KEYS[8], KEYS[14])
need('zset', KEYS[13])
need('list', KEYS[22])

-- What has become due goes to the end of its queue.
local function promote(list, delayed)
  if not fits(delayed, 'zset') then return end
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, CHUNK)
  if #due == 0 then return end
  local bytes = {}
  for i, member in ipairs(due) do bytes[i] = string.sub(member, 18) end
  redis.call('LPUSH', list, unpack(bytes))
  redis.call('ZREM', delayed, unpack(due))
end

local answer, left, first, bytes_left = {now, 0}, limit, nil, 32 * 1024 * 1024

-- Up to so many entries, in steps that follow from how long they are: an answer is bounded by its bytes too.
local function pop(list, room)
  local jobs, step, longest = {}, 1, 1
  while room > 0 and bytes_left > 0 do
    local some = redis.call('RPOP', list, math.min(room, step))
    if not some or #some == 0 then break end
    for _, bytes in ipairs(some) do
      jobs[#jobs + 1] = bytes
      longest = math.max(longest, #bytes)
      bytes_left = bytes_left - #bytes
    end
    room, step = room - #some, math.max(1, math.floor(bytes_left / longest))
  end
  return jobs
end

local function hold(name, jobs)
  local last = redis.call('INCRBY', KEYS[1], #jobs)
  local token = last - #jobs
  if not first then first = token + 1 end
  local line = string.format('%.0f', now) .. ' ' .. ARGV[4] .. ' 0 ' .. #worker .. ' ' .. #name .. ' '
  local whose, wheres, holds, held = '\n' .. worker .. name, {}, {}, {}
  local deadline = string.format('%.0f', now + timeout)
  for i, bytes in ipairs(jobs) do
    local take, id = string.format('%.0f', token + i) .. '-' .. nonce, id_of(bytes)
    if id ~= '' then
      wheres[#wheres + 1] = id
      wheres[#wheres + 1] = take
    end
    holds[2 * i - 1], holds[2 * i] = take, line .. #id .. whose .. id .. bytes
    held[2 * i - 1], held[2 * i] = deadline, take
  end
  each_chunk('HSET', KEYS[8], wheres)
  each_chunk('HSET', KEYS[14], holds)
  each_chunk('ZADD', KEYS[13], held)
  count('held', name, #jobs)
end

local at = 8
for queue = 1, tonumber(ARGV[7]) do
  local key = 21 + 3 * queue
  local list, delayed, moments = KEYS[key], KEYS[key + 1], KEYS[key + 2]
  local name, rates, room, most, longest = ARGV[at], tonumber(ARGV[at + 1]), left, 0, 0
  at = at + 2
  -- Another program's value costs this queue and no other: nothing is claimed from it.
  if not fits(list, 'list') or (rates > 0 and not fits(moments, 'list')) then room, rates, at = 0, 0, at + 2 * rates end
  if room > 0 then promote(list, delayed) end
  for rate = at, at + 2 * rates - 2, 2 do
    local allowed, per = tonumber(ARGV[rate]), tonumber(ARGV[rate + 1])
    most, longest = math.max(most, allowed), math.max(longest, per)
    for _, moment in ipairs(redis.call('LRANGE', moments, 0, allowed - 1)) do
      if (tonumber(moment) or 0) > now - per then allowed = allowed - 1 end
    end
    room = math.min(room, allowed)
  end
  at = at + 2 * rates
  local jobs = pop(list, room)
  if #jobs > 0 then
    -- Others judge by the heartbeat whether a processing list has a live worker: it comes first.
    if not first then redis.call('SET', KEYS[23], now, 'PX', ARGV[4]) end
    each_chunk('LPUSH', KEYS[22], jobs)
    hold(name, jobs)
    left = left - #jobs
    if most > 0 then
      local taken = {}
      for i = 1, #jobs do taken[i] = now end
      each_chunk('LPUSH', moments, taken)
      redis.call('LTRIM', moments, 0, most - 1)
      redis.call('PEXPIRE', moments, longest + 3600000)
    end
  end
  answer[queue + 2] = jobs
end
if not first then return {now, 0} end
answer[2] = first
remember(request, string.format('%.0f %.0f ', first, first + limit - left - 1) .. nonce)
return answer
