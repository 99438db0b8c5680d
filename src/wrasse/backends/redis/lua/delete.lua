-- Deletes jobs that do not run, in their order, each if it is still where it was found.
-- KEYS: [1] to [21] as `RedisKeys.shared`; then three of each queue (list, delayed set, wake list).
-- ARGV: [2] how long ids last, ms; [3] bytes of jobs after which no more are deleted; [4] number of items, then each: kind, and
--   D, done, or X, dead: claim key
--   W, waiting: first key of its queue, 'list' or 'set', its entry, where it stood, id, group, unique name
-- Returns one letter an item that was examined: d for done, l for conflict.
-- include new_jobs
-- include finished_jobs
-- include list_entries
need_shared(21)
local ids_kept, bytes = tonumber(ARGV[2]), 0

local function finished(take, place, index, list)
  if not redis.call('ZSCORE', index, take) or not fits(list, 'list') then return false end
  local text = redis.call('HGET', KEYS[17], take)
  if text then
    bytes = bytes + #text
    if (number_in(string.match(text, '^%d+ (%d+)\n')) or 0) > now then return false end
    redis.call('LREM', list, nearer_end(index, take), bytes_of(text))
  end
  drop_finished(place, index, {take}, ids_kept)
  return true
end

local kinds = {}

function kinds.D(at) return finished(ARGV[at], 'done', KEYS[15], KEYS[19]), at + 1 end

function kinds.X(at) return finished(ARGV[at], 'dead', KEYS[16], KEYS[20]), at + 1 end

function kinds.W(at)
  local id, group = ARGV[at + 4], ARGV[at + 5]
  local deleted = is_open(tonumber(ARGV[at])) and take_out(tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
  if deleted then
    forget_jobs({id}, {false}, ids_kept)
    release_unique(ARGV[at + 6], id)
    if group ~= '' then count_member(group, 'x') end
  end
  return deleted, at + 7
end

local outcomes, at = {}, 5
for i = 1, tonumber(ARGV[4]) do
  if bytes > tonumber(ARGV[3]) then break end
  local deleted
  deleted, at = kinds[ARGV[at]](at + 1)
  outcomes[i] = deleted and 'd' or 'l'
end
close_gaps()
return table.concat(outcomes)
