-- Removes entries from the start of a stream: what is old enough by this server's clock, below a bound, and acked by every
-- protecting group, all judged here, so that nothing changes in between.
-- KEYS: [1] the registry of streams, [2] the stream, [3] what is known of it
-- ARGV: [2] subject, [3] age, us ('' for any), [4] the highest id that may go ('' for any), [5] how many at most, then the
--   protecting groups
-- Returns us, how many went, how far it might have gone, the number of the group that held it there (0: none), 1 if there is
--   more. A stream that is not registered is not touched.
-- include entry_ids
local log, limit = KEYS[2], tonumber(ARGV[5])
if not redis.call('ZSCORE', KEYS[1], ARGV[2]) or redis.call('EXISTS', log) == 0 then return {us, 0, '0-0', 0, 0} end
local CHUNK, BYTES_MAX = 128, 33554432

local stream = described('STREAM', log)
local upto, held_by = stream['last-generated-id'], 0

local function hold(id, by)
  if padded(id) < padded(upto) then upto, held_by = id, by end
end

if ARGV[3] ~= '' then hold(previous(whole(math.max(math.floor((us - tonumber(ARGV[3])) / 1000), 0)) .. '-0'), 0) end
if ARGV[4] ~= '' then hold(ARGV[4], 0) end
for i = 6, #ARGV do
  local delivered = delivered_to(log, ARGV[i])
  if not delivered then return {us, 0, '0-0', i - 5, 0} end
  hold(floor_of(log, ARGV[i], delivered), i - 5)
end

local function size_of(words)
  local size, enveloped = 0, false
  for i = 1, #words, 2 do
    if words[i] == 'envelope' and not enveloped then enveloped, size = true, size + #words[i + 1]
    else size = size + #words[i] + #words[i + 1] end
  end
  return size
end

-- The content of what goes is read, since its size has to be known; so in pieces.
local count, bytes, last = 0, 0, nil
while count < limit and bytes < BYTES_MAX do
  local from = last and '(' .. last or '-'
  local found = redis.call('XRANGE', log, from, upto, 'COUNT', math.min(CHUNK, limit - count))
  if #found == 0 then break end
  for _, entry in ipairs(found) do bytes = bytes + size_of(entry[2]) end
  count, last = count + #found, found[#found][1]
end
if count == 0 then return {us, 0, upto, held_by, 0} end
local ours = (counted(redis.call('HGET', KEYS[3], 'ours')) or 0) == stream['entries-added']
local kept = redis.call('XRANGE', log, '(' .. last, '+', 'COUNT', 1)
if kept[1] then redis.call('XTRIM', log, 'MINID', '=', kept[1][1]) else redis.call('XTRIM', log, 'MAXLEN', '=', 0) end
if ours then add(KEYS[3], 'bytes', whole(0 - bytes)) end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', log)) do
  local name = group[2]
  local gone = redis.call('XPENDING', log, name, '-', last, 1000)
  while #gone > 0 do
    for _, pending in ipairs(gone) do redis.call('XACK', log, name, pending[1]) end
    gone = redis.call('XPENDING', log, name, '-', last, 1000)
  end
end
local more = kept[1] and padded(kept[1][1]) <= padded(upto)
return {us, count, upto, held_by, more and 1 or 0}
