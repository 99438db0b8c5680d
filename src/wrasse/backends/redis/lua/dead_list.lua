-- Brings the index of dead jobs in line with the list, where another program changed it.
-- KEYS: [1] to [21] as `Keys.shared`
-- ARGV: [2] how long ids last, ms; [3] number of takes that seem to be gone from the list, then of each: take, bytes;
--   then of each entry that seems to be new: take, when it died (ms; 0: now), queue, text for `finished` but for its
--   first line, id, bytes
-- Result: how many entries of the index are gone, how many are new
-- include putting
-- include ending
local at, gone, twice, new = 4, {}, {}, 0

-- How many more entries the list has than the index.
local function missing() return redis.call('LLEN', KEYS[20]) - redis.call('ZCARD', KEYS[16]) end

local function drop(takes)
  if #takes > 0 then drop_finished('dead', KEYS[16], takes, tonumber(ARGV[2])) end
end

for _ = 1, tonumber(ARGV[3]) do
  local take, bytes = ARGV[at], ARGV[at + 1]
  if redis.call('ZSCORE', KEYS[16], take) then
    local where = redis.call('LPOS', KEYS[20], bytes) and twice or gone
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
for i = at, #ARGV, 6 do
  local take, died, id = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 4]
  if died == 0 then died = now end
  -- Whoever else compared them may have been first; then nothing is missing any more.
  if missing() > 0 and redis.call('LPOS', KEYS[20], ARGV[i + 5]) then
    while redis.call('ZADD', KEYS[16], 'NX', died, take) == 0 do take = take .. '0' end
    redis.call('HSET', KEYS[17], take, string.format('%.0f', died) .. ' 0\n' .. ARGV[i + 3])
    redis.call('HINCRBY', KEYS[18], 'dead:' .. ARGV[i + 2], 1)
    if id ~= '' then redis.call('HSETNX', KEYS[8], id, take) end
    new = new + 1
  end
end
return {dropped, new}
