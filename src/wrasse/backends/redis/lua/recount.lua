-- Counts the jobs of one state by queue, if they are few enough to be counted in one step, and compares.
-- KEYS: [1] holds or finished, [2] counts, [3] the index of the place
-- ARGV: [2] 'held', 'done' or 'dead'; [3] how many may be counted; [4] 1 to repair; then, if the caller counted, of
--   each queue whose number is wrong: its name, the number that was seen, the right one
-- Returns 0 if there are too many; else 1, then of each queue whose number is wrong: its name
local place, most, repair = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
for i = 5, #ARGV, 3 do
  local field = place .. ':' .. ARGV[i]
  if (redis.call('HGET', KEYS[2], field) or '0') == ARGV[i + 1] then redis.call('HSET', KEYS[2], field, ARGV[i + 2]) end
end
if redis.call('ZCARD', KEYS[3]) > most then return {0} end
local pattern = place == 'held' and '^%d+ %d+ %d+ (%d+) (%d+) %d+\n()'
  or '^%d+ %d+\n%a+ %d+ %d+ %d+ %d+ %d+ (%d+) (%d+) %d+ %d+ %d+ %-?%d+ %d+\n()'
local takes, right, wrong = redis.call('ZRANGE', KEYS[3], 0, -1), {}, {1}
for first = 1, #takes, 1000 do
  for _, text in ipairs(redis.call('HMGET', KEYS[1], unpack(takes, first, math.min(first + 999, #takes)))) do
    if text then
      local worker, queue, at = string.match(text, pattern)
      local ends = (at or math.huge) + (worker or 0) + (queue or 0)
      local name = ends <= #text + 1 and string.sub(text, ends - queue, ends - 1) or ''
      right[name] = (right[name] or 0) + 1
    end
  end
end
local told = redis.call('HGETALL', KEYS[2])
for i = 1, #told, 2 do
  local name = string.match(told[i], '^' .. place .. ':(.*)$')
  if name and not right[name] then right[name] = 0 end
end
for name, number in pairs(right) do
  local field = place .. ':' .. name
  if tonumber(redis.call('HGET', KEYS[2], field) or 0) ~= number then
    wrong[#wrong + 1] = name
    if repair then redis.call('HSET', KEYS[2], field, number) end
  end
end
return wrong
