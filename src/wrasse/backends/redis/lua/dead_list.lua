-- Brings the index of dead jobs in line with the list, where another program changed it.
-- KEYS: [1] to [21] as `RedisKeys.shared`
-- ARGV: [2] how long ids last, ms; [3] number of claim keys that seem to be gone from the list, then of each: claim key, bytes;
--   then of each entry that seems to be new: claim key, when it died (ms; 0: now), queue, text for `finished` but for its
--   first line, id, bytes, where it stood in the list, counted from its old end
-- Result: how many entries of the index are gone, how many are new
-- include new_jobs
-- include finished_jobs
-- include list_entries
need_shared(21)
need('list', KEYS[20])
local at, gone, twice, new = 4, {}, {}, 0

-- How many more entries the list has than the index.
local function missing() return redis.call('LLEN', KEYS[20]) - redis.call('ZCARD', KEYS[16]) end

local function drop(takes)
  if #takes > 0 then drop_finished('dead', KEYS[16], takes, tonumber(ARGV[2])) end
end

-- Which of the bytes at these places of ARGV are in the list. It may be long, so it is scanned once for all.
local function listed(first, last, step)
  local wanted = {}
  for i = first, last, step do wanted[ARGV[i]] = true end
  return next(wanted) and count_in(KEYS[20], wanted) or wanted
end

local seeming = tonumber(ARGV[3])
local still = listed(at + 1, at + 2 * seeming - 1, 2)
for _ = 1, seeming do
  local take, bytes = ARGV[at], ARGV[at + 1]
  if redis.call('ZSCORE', KEYS[16], take) then
    local where = still[bytes] and twice or gone
    where[#where + 1] = take
  end
  at = at + 2
end
drop(gone)
-- Of equal entries some may be gone: as many as the index still has too many.
local dropped = #gone
for _, take in ipairs(twice) do
  if missing() < 0 then
    drop({take})
    dropped = dropped + 1
  end
end
-- Mostly its position is unchanged. Only if the old end has moved, the whole list is scanned.
local moved
local function is_listed(i)
  if redis.call('LINDEX', KEYS[20], -ARGV[i + 6]) == ARGV[i + 5] then return true end
  moved = moved or listed(at + 5, #ARGV, 7)
  return moved[ARGV[i + 5]]
end

for i = at, #ARGV, 7 do
  local take, died, id = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 4]
  if died == 0 then died = now end
  -- Another process that compared them may have been first; then nothing is missing any more.
  if missing() > 0 and is_listed(i) then
    while redis.call('ZADD', KEYS[16], 'NX', died, take) == 0 do take = take .. '0' end
    redis.call('HSET', KEYS[17], take, string.format('%.0f', died) .. ' 0\n' .. ARGV[i + 3])
    count('dead', ARGV[i + 2], 1)
    if id ~= '' then redis.call('HSETNX', KEYS[8], id, take) end
    new = new + 1
  end
end
return {dropped, new}
