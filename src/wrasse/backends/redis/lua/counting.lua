-- How often each of these stands in a list: one look through it, however many they are. `wanted` has them as its keys;
-- without it, all that are there.
local function count_in(list, wanted)
  local found = {}
  for first = 0, redis.call('LLEN', list) - 1, 100 do
    for _, bytes in ipairs(redis.call('LRANGE', list, first, first + 99)) do
      if not wanted or wanted[bytes] then found[bytes] = (found[bytes] or 0) + 1 end
    end
  end
  return found
end
