-- One write to one record together with entries of streams: all of it happens, or nothing.
-- KEYS: as `recording` has them; then four of each stream, as `appending` has them.
-- ARGV: as `recording` has them; then the number of streams, and of each: subject, number of drafts, drafts as `appending` has
--   them
-- Gives what `record_write` gives.
-- include entry_ids
-- include appending
-- include flat_fields
-- include recording
local answer = answered()
if answer then return answer end
local where = 16 + tonumber(ARGV[15])
local streams, from = {}, where + 1
for i = 1, tonumber(ARGV[where]) do
  local log, drafts = open_log(6 + 4 * i, ARGV[from]), tonumber(ARGV[from + 1])
  streams[i] = { log, drafts, from + 2 }
  from = after_drafts(from + 2, drafts)
end
for _, stream in ipairs(streams) do
  local first = stream[3]
  for _ = 1, stream[2] do _, first = append_draft(stream[1], first) end
end
close_logs()
return made()
