-- Appending entries. KEYS[1] is the registry of streams; of each stream four keys follow one another: the stream, what is
-- known of it, its idempotency keys, and those by age. After `entry_ids`.
local WINDOW = 120000 -- ms for which a key is remembered
local logs = {}

-- The stream whose keys begin at `base`, ready to be appended to. Ids go on where the last one ended, whichever program wrote it: ms by
-- the clock but never back, seq one higher each time, so that entries of ours can be counted by their ids. After an id that
-- another program chose beyond any clock there can be none.
local function open_log(base, subject)
  if logs[base] then return logs[base] end
  local log = {key = KEYS[base], facts = KEYS[base + 1], known = KEYS[base + 2], expiry = KEYS[base + 3], subject = subject}
  log.ms, log.seq, log.entries, log.bytes = 0, 0, 0, 0
  if redis.call('EXISTS', log.key) == 1 then
    local ms, seq = string.match(described('STREAM', log.key)['last-generated-id'], '^(%d+)%-(%d+)$')
    if #ms > 15 then error('no ids after ' .. ms .. '-' .. seq .. ' of ' .. log.key .. ' which end here') end
    log.ms, log.seq = tonumber(ms), tonumber(seq)
    if #seq > 15 then log.ms, log.seq = log.ms + 1, 0 end
  end
  log.ms = math.max(log.ms, now)
  log.start = whole(log.ms) .. '-'
  logs[base] = log
  return log
end

-- The id of the entry that this idempotency key stands for.
local function recall(log, key)
  local found = redis.call('HGET', log.known, key)
  if not found then return nil end
  local noted, ms, seq = string.match(found, '^(%d+) (%d+)%-(%d+)$')
  return counted(noted) and #ms <= 15 and #seq <= 19 and now - noted < WINDOW and ms .. '-' .. seq or nil
end

local function remember(log, key, id)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', log.expiry, '-inf', whole(now - WINDOW), 'LIMIT', 0, 10)) do
    redis.call('HDEL', log.known, old)
    redis.call('ZREM', log.expiry, old)
  end
  redis.call('HSET', log.known, key, whole(now) .. ' ' .. id)
  redis.call('ZADD', log.expiry, whole(now), key)
  redis.call('PEXPIRE', log.known, 600000)
  redis.call('PEXPIRE', log.expiry, 600000)
end

local function next_id(log)
  log.seq = log.seq + 1
  log.entries = log.entries + 1
  return log.start .. whole(log.seq)
end

-- A draft begins at ARGV[at]: idempotency key, body, number of words beside the body, the words. Its size, and where the next
-- one begins.
local function measured(at)
  local words = tonumber(ARGV[at + 2])
  local size = #ARGV[at + 1]
  for i = at + 3, at + 2 + words do size = size + #ARGV[i] end
  return size, at + 3 + words
end

-- Where what follows the drafts from ARGV[at] on begins.
local function after_drafts(at, drafts)
  for _ = 1, drafts do at = at + 3 + tonumber(ARGV[at + 2]) end
  return at
end

-- Appends the draft at ARGV[at], or finds the entry that its key stands for. Returns its id, and where the next one begins.
local function append_draft(log, at)
  local key, size, after = ARGV[at], measured(at)
  local id = key ~= '' and recall(log, key)
  if id then return id, after end
  id = next_id(log)
  if after == at + 3 then redis.call('XADD', log.key, id, 'envelope', ARGV[at + 1])
  else redis.call('XADD', log.key, id, 'envelope', ARGV[at + 1], unpack(ARGV, at + 3, after - 1)) end
  log.bytes = log.bytes + size
  if key ~= '' then remember(log, key, id) end
  return id, after
end

-- Notes what was appended.
local function close_logs()
  for _, log in pairs(logs) do
    if log.entries > 0 then
      redis.call('ZADD', KEYS[1], 0, log.subject)
      add(log.facts, 'bytes', whole(log.bytes))
      add(log.facts, 'ours', whole(log.entries))
    end
  end
end
