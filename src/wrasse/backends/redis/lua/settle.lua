-- Ends attempts by their workers, in their order.
-- KEYS: [1] to [21] as `RedisKeys.shared`; then two of each worker (processing list, heartbeat) and three of each queue
--   (list, delayed set, wake list).
-- ARGV: [2] request; [3] how many done jobs are kept; [4] how long ids last, ms; [5] number of runs. Each run: kind,
--   first key of its worker, first key of its queue, the queue's name, number of items; then its items:
--   F: claim key, text for `finished` but for its first line and the job's bytes
--   S: as F, then id, group, unique name, how long the result is kept (ms), and the runs of jobs to put
--   R: claim key, new bytes, delay (ms)
--   B: claim key, text for `finished` but for its first line, new bytes, id, group, unique name
--   L: nothing; a conflict
-- Returns one letter an item: d for done, l for conflict; a job that would come from a key of a wrong type or go to one stays
--   running, and is a conflict.
local REQUESTS = 10
-- include requests
-- include new_jobs
-- include finished_jobs
local told = recall('s' .. ARGV[2])
if told then return told end
need_shared(21)
local done_max, ids_kept = tonumber(ARGV[3]), tonumber(ARGV[4])
local outcomes, gone, workers = {}, {}, {}
local completed, finished, done, ended = {}, {}, {}, {}
local at_once = string.format('%.0f', now)
local unkept = at_once .. ' 0\n'

-- Takes the entry out of the processing list. Returns its bytes and id, or nothing if the claim is over. Whatever the
-- list says, the claim ends here.
local function free(take, score, text, run)
  if not score or not text or gone[take] or run.shut then return nil end
  gone[take], ended[#ended + 1] = true, take
  run.freed = run.freed + 1
  local bytes, id = read_hold(text)
  if redis.call('LREM', run.processing, -1, bytes) == 1 then return bytes, id end
  if redis.call('HGET', KEYS[8], id) == take then redis.call('HDEL', KEYS[8], id) end
  return nil
end

local function one(take, run)
  return free(take, redis.call('ZSCORE', KEYS[13], take), redis.call('HGET', KEYS[14], take), run)
end

local function note(outcome) outcomes[#outcomes + 1] = outcome and 'd' or 'l' end

local function finish(take, head, bytes, kept, run)
  local moment, line, n = at_once, unkept, #finished
  if kept > 0 then
    moment = string.format('%.0f', now + kept)
    line = at_once .. ' ' .. moment .. '\n'
  end
  completed[#completed + 1] = bytes
  finished[n + 1], finished[n + 2] = take, line .. head .. bytes
  done[n + 1], done[n + 2] = moment, take
  run.done = run.done + 1
end

local kinds = {}

function kinds.F(at, run)
  local takes = {}
  for i = 1, run.count do takes[i] = ARGV[at + 2 * i - 2] end
  local scores, texts = ask_chunks('ZMSCORE', KEYS[13], takes), ask_chunks('HMGET', KEYS[14], takes)
  for i, take in ipairs(takes) do
    local bytes = free(take, scores[i], texts[i], run)
    if bytes then finish(take, ARGV[at + 2 * i - 1], bytes, 0, run) end
    note(bytes)
  end
  return at + 2 * run.count
end

function kinds.S(at, run)
  local take, id, group = ARGV[at], ARGV[at + 2], ARGV[at + 3]
  local after = at + 7
  for _ = 1, tonumber(ARGV[after - 1]) do
    run.shut = run.shut or not is_open(tonumber(ARGV[after + 1]))
    after = behind_run(tonumber(ARGV[after]), after)
  end
  local bytes = one(take, run)
  note(bytes)
  if bytes then
    finish(take, ARGV[at + 1], bytes, tonumber(ARGV[at + 5]), run)
    release_unique(ARGV[at + 4], id)
    if group ~= '' then count_member(group, 'd') end
    add_runs(at + 6)
  end
  return after -- also of what is not enqueued
end

function kinds.R(at, run)
  for _ = 1, run.count do
    local take, delay = ARGV[at], tonumber(ARGV[at + 2])
    local bytes, id = one(take, run)
    note(bytes)
    if bytes then
      if delay > 0 then delay_until(run.delayed, now + delay, ARGV[at + 1])
      else redis.call('RPUSH', run.list, ARGV[at + 1]) end
      wake(run.wake, 1)
      if redis.call('HGET', KEYS[8], id) == take then redis.call('HDEL', KEYS[8], id) end
    end
    at = at + 3
  end
  return at
end

function kinds.B(at, run)
  for _ = 1, run.count do
    local take, id, group = ARGV[at], ARGV[at + 3], ARGV[at + 4]
    local bytes, seen = one(take, run)
    note(bytes)
    if bytes then
      -- What is no job has no id, whatever the claim read in its bytes.
      if id == '' and redis.call('HGET', KEYS[8], seen) == take then redis.call('HDEL', KEYS[8], seen) end
      redis.call('LPUSH', KEYS[20], ARGV[at + 2])
      redis.call('HSET', KEYS[17], take, unkept .. ARGV[at + 1])
      redis.call('ZADD', KEYS[16], now, take)
      count('dead', run.name, 1)
      release_unique(ARGV[at + 5], id)
      if group ~= '' then count_member(group, 'x') end
    end
    at = at + 6
  end
  return at
end

function kinds.L(at, run)
  for _ = 1, run.count do note(nil) end
  return at
end

local at = 6
for _ = 1, tonumber(ARGV[5]) do
  local worker, queue = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local run = {
    processing = KEYS[worker], list = KEYS[queue], delayed = KEYS[queue + 1], wake = KEYS[queue + 2],
    name = ARGV[at + 3], count = tonumber(ARGV[at + 4]), freed = 0, done = 0,
  }
  if ARGV[at] ~= 'L' then
    workers[worker] = true
    run.shut = not fits(run.processing, 'list') or (ARGV[at] == 'R' and not is_open(queue))
      or (ARGV[at] == 'B' and not fits(KEYS[20], 'list'))
  end
  at = kinds[ARGV[at]](at + 5, run)
  if run.freed > 0 then count('held', run.name, -run.freed) end
  if run.done > 0 then count('done', run.name, run.done) end
end
each_chunk('ZREM', KEYS[13], ended)
each_chunk('HDEL', KEYS[14], ended)
for worker in pairs(workers) do rest(KEYS[worker], KEYS[worker + 1]) end
if #completed > 0 then
  each_chunk('HSET', KEYS[17], finished)
  each_chunk('ZADD', KEYS[15], done)
  if done_max > 0 and fits(KEYS[19], 'list') then
    each_chunk('LPUSH', KEYS[19], completed)
    redis.call('LTRIM', KEYS[19], 0, done_max - 1)
  end
  trim_done(done_max, ids_kept)
end
local answer = table.concat(outcomes)
remember('s' .. ARGV[2], answer)
return answer
