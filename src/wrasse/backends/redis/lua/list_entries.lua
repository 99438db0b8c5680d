-- Finds and removes entries of long lists: waiting jobs in their queues, finished ones in the lists that others read.
local GONE, emptied = '\0gone', {}

-- `hint` is where the entry stood in its list when it was found, from either end. An entry that is still there is
-- overwritten now and removed with all others by one command at the end: a long list is scanned once a batch.
local function take_out(key, kind, entry, hint)
  if kind == 'set' then return redis.call('ZREM', KEYS[key + 1], entry) == 1 end
  if redis.call('LINDEX', KEYS[key], hint) == entry then
    redis.call('LSET', KEYS[key], hint, GONE)
    emptied[key] = true
    return true
  end
  return redis.call('LREM', KEYS[key], -1, entry) == 1
end

local function close_gaps()
  for key in pairs(emptied) do redis.call('LREM', KEYS[key], 0, GONE) end
end

-- From which end LREM should look for a finished job. The newest are at the left, and the index knows the order.
local function nearer_end(index, take)
  local rank = redis.call('ZRANK', index, take)
  return rank and 2 * rank > redis.call('ZCARD', index) and 1 or -1
end

-- How often a list has each of these: one scan of it, however many they are. `wanted` has them as its keys;
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
