-- Extends claims and the worker's own row; a heartbeat timeout of 0 is deregistration and touches no claim.
-- KEYS: [1] held, [2] workers, [3] workers:info, [4] the worker's processing list, [5] its heartbeat, [6] progress.
-- ARGV: [2] worker; [3] heartbeat timeout, ms; [4] what is known of the worker; [5] number of claims that told progress, then for
--   each claim, id and text; then the claim keys.
-- Descriptions and progress are for people: a key of theirs of a wrong type costs them, and no claim.
-- Returns {now, one letter a claim: 1 where it is current, 0 where it is not}.
local timeout, told = tonumber(ARGV[3]), tonumber(ARGV[5])
local first = 6 + 3 * told
local mine, held = {}, {}
for at = first, #ARGV, 1000 do
  local last = math.min(at + 999, #ARGV)
  for i, score in ipairs(redis.call('ZMSCORE', KEYS[1], unpack(ARGV, at, last))) do
    mine[#mine + 1] = score and '1' or '0'
    if score then
      held[#held + 1] = now + timeout
      held[#held + 1] = ARGV[at + i - 1]
    end
  end
end
if timeout == 0 then
  redis.pcall('ZREM', KEYS[2], ARGV[2])
  redis.pcall('HDEL', KEYS[3], ARGV[2])
  if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('DEL', KEYS[5]) end
  return {now, table.concat(mine)}
end
for at = 1, #held, 1000 do redis.call('ZADD', KEYS[1], 'XX', unpack(held, at, math.min(at + 999, #held))) end
for at = 6, first - 1, 3 do
  if redis.call('ZSCORE', KEYS[1], ARGV[at]) then redis.pcall('HSET', KEYS[6], ARGV[at + 1], now .. ' ' .. ARGV[at + 2]) end
end
redis.pcall('ZADD', KEYS[2], now + timeout, ARGV[2])
redis.pcall('HSET', KEYS[3], ARGV[2], now .. ' ' .. (now + timeout) .. ' ' .. ARGV[4])
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('SET', KEYS[5], now, 'PX', ARGV[3]) end
-- Who stopped its heartbeat stays listed for an hour.
local silent = redis.pcall('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. (now - 3600000), 'LIMIT', 0, 100)
if #silent > 0 then
  redis.pcall('ZREM', KEYS[2], unpack(silent))
  redis.pcall('HDEL', KEYS[3], unpack(silent))
end
return {now, table.concat(mine)}
