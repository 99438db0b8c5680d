-- Enqueues jobs, and opens groups. KEYS[1] token, [2] ids, [3] ids:expiry, [4] uniques, [5] uniques:expiry, [6] groups,
-- [7] groups:expiry, [8] where, [9] queues; of each queue three in a row: its list, its delayed set, its wake list.
-- All values of ARGV are texts; '' is none.
local CHUNK = 1000
local GROUPS_KEPT = 2592000000

-- Runs one command with many values, a chunk at a time.
local function each_chunk(command, key, values)
  for first = 1, #values, CHUNK do
    redis.call(command, key, unpack(values, first, math.min(first + CHUNK - 1, #values)))
  end
end

-- include queue_keys

-- A number of its own, so that equal bytes stay two members.
local function delay_until(key, moment, bytes)
  redis.call('ZADD', key, moment, string.format('%016.0f', redis.call('INCR', KEYS[1])) .. ':' .. bytes)
end

-- Counts jobs of a state. A number that another program overwrote is left as it is: `jobs fsck` counts again.
local function count(place, queue, by) redis.pcall('HINCRBY', KEYS[18], place .. ':' .. queue, by) end

-- Whether jobs can be put into the queue whose keys begin at KEYS[first].
local function is_open(first) return fits(KEYS[first], 'list') and fits(KEYS[first + 1], 'zset') end

-- Fails unless the counter of tokens is a number.
local function need_token()
  if not number_in(redis.call('GET', KEYS[1]) or '0') then error('the counter of tokens is not an integer') end
end

-- Fails unless KEYS[1] to KEYS[9] have their types, and from KEYS[13] on what `RedisKeys.shared` has if `last` is there.
local function need_shared(last)
  need_token()
  need('hash', KEYS[2], KEYS[4], KEYS[6], KEYS[8])
  need('zset', KEYS[3], KEYS[5], KEYS[7])
  need('set', KEYS[9])
  if last < 21 then return end
  need('zset', KEYS[13], KEYS[15], KEYS[16])
  need('hash', KEYS[14], KEYS[17])
end

local function forget_expired(expiry, names, count)
  local old = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, count)
  if #old > 0 then
    redis.call('ZREM', expiry, unpack(old))
    redis.call('HDEL', names, unpack(old))
  end
end

-- Makes one job ready. job: its queue's list, delayed set, wake list and name; id, bytes, due (ms), delay (ms);
-- known: '' for an id made for this enqueue, '0' for a given one, '1' for one that lasts; unique name, window (ms).
-- Returns 1 if it is new, else the id of what stands in its way.
local function add(job)
  local remembered = false
  if job.known ~= '' then
    remembered = redis.call('HGET', KEYS[2], job.id)
    if remembered then
      local moment = tonumber(remembered) or 0
      if moment < 2 or moment > now then return job.id end
    end
    if redis.call('HEXISTS', KEYS[8], job.id) == 1 then return job.id end
  end
  if job.unique ~= '' then
    local had = redis.call('HGET', KEYS[4], job.unique)
    if had then
      local moment, other = string.match(had, '^(%d+) (.*)$')
      moment = number_in(moment)
      if moment and (moment == 0 or moment > now) then return other end
    end
    forget_expired(KEYS[5], KEYS[4], 2)
    local window = tonumber(job.window)
    local moment = window > 0 and now + window or 0
    redis.call('HSET', KEYS[4], job.unique, moment .. ' ' .. job.id)
    if window > 0 then redis.call('ZADD', KEYS[5], moment, job.unique)
    else redis.call('ZREM', KEYS[5], job.unique) end
  end
  if job.known ~= '' then
    if remembered then redis.call('ZREM', KEYS[3], job.id) end
    redis.call('HSET', KEYS[2], job.id, job.known)
  end
  redis.call('SADD', KEYS[9], job.name)
  local moment = math.max(tonumber(job.due), now + tonumber(job.delay))
  if moment > now then delay_until(job.delayed, moment, job.bytes)
  else redis.call('LPUSH', job.list, job.bytes) end
  wake(job.wake, 1)
  return 1
end

-- ARGV from `at`: what `add` wants, of a job whose queue's keys begin at KEYS[first]. Returns it and where ARGV goes on.
local function read_job(at)
  local first = tonumber(ARGV[at])
  return {
    list = KEYS[first], delayed = KEYS[first + 1], wake = KEYS[first + 2], name = ARGV[at + 1], id = ARGV[at + 2],
    bytes = ARGV[at + 3], due = ARGV[at + 4], delay = ARGV[at + 5], known = ARGV[at + 6], unique = ARGV[at + 7],
    window = ARGV[at + 8],
  }, at + 9
end

-- Makes jobs ready of which only the ids are checked. ARGV from `at`: first key of their queue, its name, `known` as
-- above, then id and bytes of each.
local function add_known(count, at, answers)
  local first, known, ids, bytes, seen, names, ready = tonumber(ARGV[at]), ARGV[at + 2], {}, {}, {}, {}, {}
  for i = 1, count do ids[i], bytes[i] = ARGV[at + 1 + 2 * i], ARGV[at + 2 + 2 * i] end
  local there, new = {}, true
  for _, key in ipairs({KEYS[2], KEYS[8]}) do
    for chunk = 1, count, CHUNK do
      for i, found in ipairs(redis.call('HMGET', key, unpack(ids, chunk, math.min(chunk + CHUNK - 1, count)))) do
        local n = chunk + i - 1
        if found and key == KEYS[2] then
          local moment = tonumber(found) or 0
          if moment < 2 or moment > now then there[n] = true else redis.call('ZREM', KEYS[3], ids[n]) end
        elseif found then there[n] = true end
      end
    end
  end
  for i, id in ipairs(ids) do
    if there[i] or seen[id] then
      answers[#answers + 1], new = id, false
    else
      answers[#answers + 1], seen[id] = 1, true
      names[#names + 1] = id
      names[#names + 1] = known
      ready[#ready + 1] = bytes[i]
    end
  end
  if #ready > 0 then
    redis.call('SADD', KEYS[9], ARGV[at + 1])
    each_chunk('HSET', KEYS[2], names)
    each_chunk('LPUSH', KEYS[first], ready)
    wake(KEYS[first + 2], #ready)
  end
  return new
end

-- Where ARGV goes on behind a run of so many jobs whose number is at `at`.
local function behind_run(count, at)
  if count > 0 then return at + 3 + count end
  return at + (count < 0 and 4 - 2 * count or 10)
end

-- ARGV from `at`: the number of runs; each run: how many plain jobs (their queue's first key, its name, the bytes of
-- each); or less than 0, how many jobs as `add_known` reads them; or 0 for one job as `read_job` reads it. Returns the
-- answers, whether all are new, and where ARGV goes on.
local function add_runs(at)
  local answers, new = {}, true
  local runs = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, runs do
    local count = tonumber(ARGV[at])
    local next = behind_run(count, at)
    if count > 0 then
      local first = tonumber(ARGV[at + 1])
      redis.call('SADD', KEYS[9], ARGV[at + 2])
      for chunk = at + 3, next - 1, CHUNK do
        redis.call('LPUSH', KEYS[first], unpack(ARGV, chunk, math.min(chunk + CHUNK, next) - 1))
      end
      wake(KEYS[first + 2], count)
      for _ = 1, count do answers[#answers + 1] = 1 end
    elseif count < 0 then
      new = add_known(-count, at + 1, answers) and new
    else
      local answer = add(read_job(at + 1))
      new = new and answer == 1
      answers[#answers + 1] = answer
    end
    at = next
  end
  return answers, new, at
end

-- Groups: fields s:<id> size, d:<id> done, x:<id> dead, c:<id> the callback; f:<id> once it was called. The callback's
-- queue is named by the program that opened the group, so that its keys are not among KEYS: they are of the same root.

-- What `open_group` stored of a callback; nil for what another program wrote there.
local function callback_in(text)
  local right, job = pcall(cmsgpack.unpack, text or '')
  if not right or type(job) ~= 'table' then return nil end
  for _, name in ipairs({'list', 'delayed', 'wake', 'name', 'id', 'known', 'unique', 'head', 'middle', 'tail'}) do
    if type(job[name]) ~= 'string' then return nil end
  end
  for _, name in ipairs({'due', 'delay', 'window'}) do
    if not tonumber(job[name]) then return nil end
  end
  return job
end

local function call_back(id)
  local found = redis.call('HMGET', KEYS[6], 's:' .. id, 'd:' .. id, 'x:' .. id, 'c:' .. id)
  local size, done, dead = number_in(found[1]), number_in(found[2] or '0'), number_in(found[3] or '0')
  if not (size and done and dead) or done + dead < size then return end
  local job = callback_in(found[4])
  -- What another program wrote there, or at its queue, is left for `jobs fsck`.
  if not job or not fits(job.list, 'list') or not fits(job.delayed, 'zset') then return end
  job.bytes = job.head .. done .. job.middle .. dead .. job.tail
  redis.call('HDEL', KEYS[6], 's:' .. id, 'd:' .. id, 'x:' .. id, 'c:' .. id)
  redis.call('HSET', KEYS[6], 'f:' .. id, 1)
  redis.call('ZADD', KEYS[7], now + GROUPS_KEPT, id)
  add(job)
end

-- Counts a member that was finished for the first time; `place` is 'd' for done, 'x' for dead.
local function count_member(id, place)
  if redis.call('HEXISTS', KEYS[6], 'f:' .. id) == 1 then return end
  redis.pcall('HINCRBY', KEYS[6], place .. ':' .. id, 1)
  redis.call('ZADD', KEYS[7], 'NX', now + GROUPS_KEPT, id)
  call_back(id)
end

-- Opens a group unless it is known. A group that was not called in its time is kept until it is: only what was called,
-- or never opened, is forgotten.
local function open_group(id, size, job)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', now, 'LIMIT', 0, 2)) do
    if redis.call('HEXISTS', KEYS[6], 's:' .. old) == 0 then
      redis.call('HDEL', KEYS[6], 'f:' .. old, 'd:' .. old, 'x:' .. old, 'c:' .. old)
      redis.call('ZREM', KEYS[7], old)
    else
      redis.call('ZADD', KEYS[7], now + GROUPS_KEPT, old)
    end
  end
  local known = redis.call('HMGET', KEYS[6], 'f:' .. id, 's:' .. id)
  if known[1] or known[2] then return end
  redis.call('HSET', KEYS[6], 's:' .. id, size, 'c:' .. id, cmsgpack.pack(job))
  redis.call('ZADD', KEYS[7], now + GROUPS_KEPT, id)
  call_back(id)
end
