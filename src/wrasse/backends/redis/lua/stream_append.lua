-- Appends a batch, all of it or nothing.
-- KEYS: [1] the registry of streams; then four of each stream, as `stream_log` has them.
-- ARGV: [2] number of streams; then of each: subject, 'bodies' or 'drafts', number of entries, their bytes; and its entries:
--   of 'bodies' each is its body; of 'drafts' each is a draft as `stream_log` has it
-- Returns of each stream: of 'bodies' ms and seq of the first entry, of 'drafts' the id of each.
-- include entry_ids
-- include stream_log
local streams, at = {}, 3
for i = 1, tonumber(ARGV[2]) do
  local base, plain, drafts = 4 * i - 2, ARGV[at + 1] == 'bodies', tonumber(ARGV[at + 2])
  streams[i] = {open_log(base, ARGV[at]), plain, drafts, at + 4, tonumber(ARGV[at + 3])}
  at = plain and at + 4 + drafts or after_drafts(at + 4, drafts)
end
local ids = {}
for i, stream in ipairs(streams) do
  local log, plain, drafts, first = stream[1], stream[2], stream[3], stream[4]
  if plain then
    ids[i] = {whole(log.ms), whole(log.seq + 1)}
    local key, call, following = log.key, redis.call, log.start .. '*'
    if drafts > 0 then call('XADD', key, next_id(log), 'envelope', ARGV[first]) end
    for place = first + 1, first + drafts - 1 do call('XADD', key, following, 'envelope', ARGV[place]) end
    log.seq, log.entries, log.bytes = log.seq + drafts - 1, drafts, stream[5]
  else
    local found = {}
    for draft = 1, drafts do found[draft], first = append_draft(log, first) end
    ids[i] = found
  end
end
close_logs()
return ids
