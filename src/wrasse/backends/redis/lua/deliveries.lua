-- Deliveries: made in one step, or by two scripts around a native read; and reverted.
-- include entry_ids

-- script deliver
-- Delivers entries to a consumer: first what is due again, then what is new, and notes that the consumer is alive.
-- KEYS: five of each stream: the stream, batches by deadline, single entries by deadline, the consumers, what wakes the group;
--   then one of each: what is known of the stream
-- ARGV: [2] group, [3] consumer, [4] how many at most, [5] for how long, us, [6] 'all', or 'due': new entries of the one stream are
--   read by a command of its own in the same step, and the script `note` records them; [7] bytes of a page, [8] the longest entry that fits
-- Returns us; when the next entry is due, us (-1: none); how many there are; and of each: number of its stream, id, number of this
--   delivery, number of words, words: one word is an envelope alone, else names and values; -1 and its size, if it is too long. Where there are none, of each stream:
--   how far the group has read, and the last id of what wakes it. If a stream has no such group: 'none', its number.
-- What was delivered together is one batch: one entry by deadline, however many it has. Batches become single entries when they
-- are due; a single entry goes before the batch it was in.
local group, consumer, limit, timeout = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local ends, streams = whole(us + timeout), #KEYS / 6
local CHUNK, BATCHES_MAX, WORD_BYTES, BYTES_MAX, ENTRY_MAX = 100, 1000, 128, tonumber(ARGV[7]), tonumber(ARGV[8])
local handed, count, bytes = {}, 0, 0

-- What an entry takes in a reply: each word counts for more than its bytes, as the reader counts it.
local function size_of(entry)
  local size = #entry[2] * WORD_BYTES
  for _, word in ipairs(entry[2]) do size = size + #word end
  return size
end

local function hand(i, entry, number)
  local words, at, size = entry[2], #handed, size_of(entry)
  handed[at + 1], handed[at + 2], handed[at + 3] = i, entry[1], number
  if size > ENTRY_MAX then
    handed[at + 4], handed[at + 5] = -1, size
  else
    bytes = bytes + size
    if #words == 2 and words[1] == 'envelope' then
      handed[at + 4], handed[at + 5] = 1, words[2]
    else
      handed[at + 4] = #words
      for w = 1, #words do handed[at + 4 + w] = words[w] end
    end
  end
  count = count + 1
end

local function refused(error, i)
  local none = string.find(error.err, 'NOGROUP', 1, true) or string.find(error.err, 'requires the key', 1, true)
  return none and {'none', i} or error
end

-- With several streams nothing is written before all of them are known to have the group.
for i = 1, streams > 1 and streams or 0 do
  local found = redis.pcall('XPENDING', KEYS[5 * i - 4], group, '-', '+', 1)
  if found.err then return refused(found, i) end
end
for i = 1, streams do
  local made = redis.pcall('XGROUP', 'CREATECONSUMER', KEYS[5 * i - 4], group, consumer)
  if type(made) == 'table' then return refused(made, i) end
end
for i = 1, streams do redis.call('HSET', KEYS[5 * i - 1], consumer, whole(us) .. ' ' .. ends) end

-- Until when no search is needed; what is further ahead than one timeout was written by another program.
local function looked_until(rows)
  local noted = counted(string.match(redis.call('HGET', rows, '') or '', '^%d+')) or 0
  return noted > us + 86400000000 and 0 or noted
end

-- Entries of consumers that never sent a request to us, or stopped long ago: they are due when they have been idle for as
-- long as an ack may take. That is how the origin does it; it also repairs what a failover lost of our own notes.
local function look_around(i)
  local log, due, rows = KEYS[5 * i - 4], KEYS[5 * i - 2], KEYS[5 * i - 1]
  if looked_until(rows) > us then return end
  redis.call('HSET', rows, '', ends)
  for _, found in ipairs(redis.call('XINFO', 'CONSUMERS', log, group)) do
    local facts = {}
    for f = 1, #found, 2 do facts[found[f]] = found[f + 1] end
    local alive = row_of(rows, facts['name'])
    local gone = not alive or alive + timeout <= us
    if facts['pending'] > 0 and facts['name'] ~= NOBODY and gone then
      local idle = redis.call('XPENDING', log, group, 'IDLE', whole(math.ceil(timeout / 1000)), '-', '+', 1000, facts['name'])
      for _, pending in ipairs(idle) do redis.call('ZADD', due, 'NX', whole(us), padded(pending[1])) end
    end
  end
end

-- Turns batches that are due into single entries, until there are as many as are wanted.
local function break_up(i)
  local log, held, due = KEYS[5 * i - 4], KEYS[5 * i - 3], KEYS[5 * i - 2]
  local turned = 0
  for _ = 1, BATCHES_MAX do
    local batch = redis.call('ZRANGEBYSCORE', held, '-inf', whole(us), 'WITHSCORES', 'LIMIT', 0, 1)
    if #batch == 0 or turned >= limit then return end
    local from, to, who = string.match(batch[1], '^(%S+) (%S+) (.*)$')
    local found = from and redis.pcall('XPENDING', log, group, from, to, limit, who) or {}
    redis.call('ZREM', held, batch[1])
    for _, pending in ipairs(found) do redis.call('ZADD', due, 'NX', batch[2], padded(pending[1])) end
    turned = turned + #found
    if #found == limit then
      redis.call('ZADD', held, batch[2], '(' .. found[#found][1] .. ' ' .. to .. ' ' .. who)
    end
  end
end

-- Whether a single entry whose time has come is still pending, and with whom.
local function still_due(i, id)
  local pending = redis.pcall('XPENDING', KEYS[5 * i - 4], group, id, id, 1)[1]
  if not pending then return nil end
  if pending[2] == NOBODY or redis.call('HEXISTS', KEYS[5 * i - 1], pending[2]) == 1 then return pending end
  return pending[3] * 1000 >= timeout and pending or nil
end

local function collect_due(i, found)
  local due, kept = KEYS[5 * i - 2], 0
  while kept < limit do
    local members = redis.call('ZRANGEBYSCORE', due, '-inf', whole(us), 'WITHSCORES', 'LIMIT', kept, limit - kept)
    if #members == 0 then return end
    for m = 1, #members, 2 do
      local id = bare(members[m])
      local pending = still_due(i, id)
      if pending then
        kept = kept + 1
        found[#found + 1] = {score = tonumber(members[m + 1]), order = members[m], stream = i, id = id, number = pending[4] + 1}
      else
        redis.call('ZREM', due, members[m])
      end
    end
  end
end

local function by_id(a, b)
  if a.order ~= b.order then return a.order < b.order end
  return a.stream < b.stream
end

local function hand_due()
  local found = {}
  for i = 1, streams do
    look_around(i)
    if redis.call('EXISTS', KEYS[5 * i - 3]) == 1 then break_up(i) end
    if redis.call('EXISTS', KEYS[5 * i - 2]) == 1 then collect_due(i, found) end
  end
  table.sort(found, function(a, b)
    if a.score ~= b.score then return a.score < b.score end
    return by_id(a, b)
  end)
  while #found > limit do table.remove(found) end
  table.sort(found, by_id)
  for _, each in ipairs(found) do
    if bytes >= BYTES_MAX then return end
    local log, due = KEYS[5 * each.stream - 4], KEYS[5 * each.stream - 2]
    local entry = redis.call('XCLAIM', log, group, consumer, 0, each.id)[1]
    if entry then
      redis.call('ZADD', due, ends, each.order)
      hand(each.stream, entry, each.number)
    else
      -- It is gone from the stream: it was trimmed without regard to this group.
      redis.call('XACK', log, group, each.id)
      add(KEYS[5 * streams + each.stream], 'lost ' .. group, 1)
      redis.call('ZREM', due, each.order)
    end
  end
end

-- Takes so many new entries of a stream, and notes them as one batch.
local function take_new(i, wanted, take)
  local log, first, last = KEYS[5 * i - 4], nil, nil
  local step, longest = 1, 1
  while wanted > 0 and bytes < BYTES_MAX do
    local asked = math.min(wanted, step)
    local found = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', asked, 'STREAMS', log, '>')
    if not found then break end
    local entries = found[1][2]
    for _, entry in ipairs(entries) do
      take(i, entry)
      longest = math.max(longest, size_of(entry))
    end
    first, last = first or entries[1][1], entries[#entries][1]
    if #entries < asked then break end
    wanted = wanted - #entries
    -- More at once while they are small: an answer is bounded by its bytes too.
    step = math.max(1, math.min(CHUNK, math.floor((BYTES_MAX - bytes) / longest)))
  end
  if first then redis.call('ZADD', KEYS[5 * i - 3], ends, first .. ' ' .. last .. ' ' .. consumer) end
end

-- Of several streams the oldest entries first: what is there is read, counted by stream, and then delivered.
local function hand_new_of_many()
  local peeked, cut = {}, nil
  local most = math.min(limit - count, CHUNK)
  for i = 1, streams do
    local log, seen, held, step = KEYS[5 * i - 4], 0, 0, 1
    local last = delivered_to(log, group)
    while seen < most and held < BYTES_MAX do
      local found = redis.call('XRANGE', log, '(' .. last, '+', 'COUNT', step)
      for _, entry in ipairs(found) do
        peeked[#peeked + 1] = {order = padded(entry[1]), stream = i}
        held, last = held + size_of(entry), entry[1]
      end
      seen = seen + #found
      if #found < step then break end
      if (seen >= most or held >= BYTES_MAX) and (not cut or padded(last) < cut) then cut = padded(last) end
      -- More at once while they are small.
      step = math.max(1, math.min(most - seen, math.floor((BYTES_MAX - held) * seen / held)))
    end
  end
  table.sort(peeked, by_id)
  local shares, left = {}, limit - count
  for _, each in ipairs(peeked) do
    if left == 0 or (cut and each.order > cut) then break end
    shares[each.stream], left = (shares[each.stream] or 0) + 1, left - 1
  end
  local taken = {}
  for i = 1, streams do
    if shares[i] then
      take_new(i, shares[i], function(stream, entry)
        bytes = bytes + size_of(entry)
        taken[#taken + 1] = {order = padded(entry[1]), stream = stream, entry = entry}
      end)
    end
  end
  table.sort(taken, by_id)
  bytes = 0
  for _, each in ipairs(taken) do hand(each.stream, each.entry, 1) end
end

-- Nothing is left of what the group has not read: it has read to the end.
local function read_to_the_end(i)
  local log = KEYS[5 * i - 4]
  if redis.call('XLEN', log) > 0 then return end
  local stream, delivered = described('STREAM', log), delivered_to(log, group)
  if padded(stream['last-generated-id']) > padded(delivered) then
    redis.call('XGROUP', 'SETID', log, group, stream['last-generated-id'], 'ENTRIESREAD', whole(stream['entries-added']))
  end
end

if limit > 0 then
  hand_due()
  if count < limit then
    for i = 1, streams do read_to_the_end(i) end
    if ARGV[6] == 'due' then -- somebody else reads them
    elseif streams == 1 then take_new(1, limit - count, function(i, entry) hand(i, entry, 1) end)
    elseif streams > 1 then hand_new_of_many() end
  end
end
if ARGV[6] == 'due' then
  -- Where the new ones begin is known here, and needed when they have been read.
  redis.call('HSET', KEYS[4], '', whole(looked_until(KEYS[4])) .. ' ' .. delivered_to(KEYS[1], group))
end
if count > 0 or limit == 0 or ARGV[6] == 'due' then return {us, -1, count, handed} end

local next_due, positions = -1, {}
for i = 1, streams do
  for _, key in ipairs({KEYS[5 * i - 3], KEYS[5 * i - 2]}) do
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first[2] and (next_due < 0 or tonumber(first[2]) < next_due) then next_due = tonumber(first[2]) end
  end
  local wake_key = KEYS[5 * i]
  positions[2 * i - 1] = delivered_to(KEYS[5 * i - 4], group)
  positions[2 * i] = redis.call('EXISTS', wake_key) == 1 and described('STREAM', wake_key)['last-generated-id'] or '0-0'
end
return {us, next_due, 0, positions}

-- script note
-- Notes the new entries that a consumer read in this step, after `deliver` with 'due': they are one batch.
-- KEYS: as those of `deliver`, of one stream
-- ARGV: [2] group, [3] consumer, [4] for how long, us
-- Returns when the next entry is due, us (-1: none), how far the group has read, and the last id of what wakes it.
local log, held, due, rows, wake_key = unpack(KEYS)
local read = delivered_to(log, ARGV[2])
if not read then return {-1, '0-0', '0-0'} end
local before = string.match(redis.call('HGET', rows, '') or '', ' (.+)$')
if before and padded(read) > padded(before) then
  redis.call('ZADD', held, whole(us + tonumber(ARGV[4])), '(' .. before .. ' ' .. read .. ' ' .. ARGV[3])
end
local next_due = -1
for _, key in ipairs({held, due}) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] and (next_due < 0 or tonumber(first[2]) < next_due) then next_due = tonumber(first[2]) end
end
local woken = redis.call('EXISTS', wake_key) == 1 and described('STREAM', wake_key)['last-generated-id'] or '0-0'
return {next_due, read, woken}

-- script revert
-- Reverts deliveries that no caller got, as if they had not been made.
-- KEYS: three of each group: the stream, single entries by deadline, what wakes the group
-- ARGV: [2] group, [3] consumer; then of each delivery: the first of its keys, id, number
local group, consumer = ARGV[2], ARGV[3]
for at = 4, #ARGV, 3 do
  local base, id, number = tonumber(ARGV[at]), ARGV[at + 1], tonumber(ARGV[at + 2])
  local found = redis.pcall('XPENDING', KEYS[base], group, id, id, 1)
  local pending = not found.err and found[1]
  if pending and pending[2] == consumer and pending[4] == number then
    redis.call('XCLAIM', KEYS[base], group, NOBODY, 0, id, 'RETRYCOUNT', whole(number - 1), 'JUSTID')
    redis.call('ZADD', KEYS[base + 1], whole(us), padded(id))
    wake(KEYS[base + 2])
  end
end
return 0
