-- What consumers say about entries: acked, to be delivered again, or set aside as a dead letter; all in one step.
-- KEYS: [1] the registry of streams; then four of each group: the stream, single entries by deadline, what wakes the group, what
--   is known of the stream; and four of each stream for dead letters, as `stream_log` has them.
-- ARGV: [2] number of streams for dead letters, then of each: subject, first of its keys; then the answers:
--   'ack', first key, group, number, ids    'nak', first key, group, id, delay in us
--   'dead', first key, group, id, first key of its stream, a draft as `stream_log` has it
-- Returns one letter an answer: d for done, l for conflict.
-- include entry_ids
-- include stream_log
local at = 3
for _ = 1, tonumber(ARGV[2]) do
  open_log(tonumber(ARGV[at + 1]), ARGV[at])
  at = at + 2
end

local outcomes = {}
local function told(done) outcomes[#outcomes + 1] = done and 'd' or 'l' end

local kinds, MANY, CHUNK = {}, 32, 500

-- From the lowest pending entry to the highest, where everything between them is pending, too: what follows from ids that count
-- the entries, as they do where all are ours. Nothing otherwise.
local function unbroken(log, group, facts)
  local found = redis.pcall('XPENDING', log, group)
  if found.err or found[1] == 0 then return nil end
  local low, high = string.match(found[2], '%-(%d+)$'), string.match(found[3], '%-(%d+)$')
  if #high > 15 or tonumber(high) - tonumber(low) + 1 ~= found[1] then return nil end
  if (counted(redis.call('HGET', facts, 'ours')) or 0) ~= described('STREAM', log)['entries-added'] then return nil end
  return padded(found[2]), padded(found[3])
end

local function ack_each(log, group, due, from, to)
  local call, single, told_before = redis.call, redis.call('EXISTS', due) == 1, #outcomes - from + 1
  for i = from, to do
    outcomes[told_before + i] = call('XACK', log, group, ARGV[i]) == 1 and 'd' or 'l'
    if single then call('ZREM', due, padded(ARGV[i])) end
  end
end

-- Acks many in one command, which says how many of them were pending. If not all were, which ones is known all the same: those
-- between the lowest and the highest, each once; and if those are more, some of them never were entries.
local function ack_together(log, group, low, high, first, from, to)
  local done = redis.call('XACK', log, group, unpack(ARGV, from, to))
  if done == to - from + 1 then
    outcomes[#outcomes + 1] = string.rep('d', done)
    return
  end
  local seen, within, count = {}, {}, 0
  for i = first, from - 1 do seen[ARGV[i]] = true end
  for i = from, to do
    local id = ARGV[i]
    within[i] = not seen[id] and padded(id) >= low and padded(id) <= high
    if within[i] then count = count + 1 end
    seen[id] = true
  end
  for i = from, to do
    told(within[i] and (count == done or #redis.call('XRANGE', log, ARGV[i], ARGV[i]) == 1))
  end
end

function kinds.ack()
  local base, group, count = tonumber(ARGV[at + 1]), ARGV[at + 2], tonumber(ARGV[at + 3])
  local log, due, first, last = KEYS[base], KEYS[base + 1], at + 4, at + 3 + count
  local low, high
  if count >= MANY and redis.call('EXISTS', due) == 0 then low, high = unbroken(log, group, KEYS[base + 3]) end
  if not low then
    ack_each(log, group, due, first, last)
  else
    for from = first, last, CHUNK do ack_together(log, group, low, high, first, from, math.min(from + CHUNK - 1, last)) end
  end
  return last + 1
end

function kinds.nak()
  local base, group, id = tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
  local pending = redis.pcall('XPENDING', KEYS[base], group, id, id, 1)
  local claimed = redis.pcall('XCLAIM', KEYS[base], group, NOBODY, 0, id, 'JUSTID')
  local done = not claimed.err and claimed[1]
  if not done and not pending.err and pending[1] then
    -- It is to be delivered again, and was trimmed without regard to this group.
    redis.call('XACK', KEYS[base], group, id)
    add(KEYS[base + 3], 'lost ' .. group, 1)
  elseif done then
    redis.call('ZADD', KEYS[base + 1], whole(us + tonumber(ARGV[at + 4])), padded(id))
    wake(KEYS[base + 2])
  end
  told(done)
  return at + 5
end

function kinds.dead()
  local base, group, id = tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
  local _, after = measured(at + 5)
  local done = redis.call('XACK', KEYS[base], group, id) == 1
  if done then
    redis.call('ZREM', KEYS[base + 1], padded(id))
    append_draft(logs[tonumber(ARGV[at + 4])], at + 5)
  end
  told(done)
  return after
end

while at <= #ARGV do at = kinds[ARGV[at]]() end
close_logs()
return table.concat(outcomes)
