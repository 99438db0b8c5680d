-- include types
local WAKES = 8

-- Leaves tokens for idle workers: as many as there are new jobs, but never more than a few in all. Without the list
-- workers find jobs by looking.
local function wake(key, jobs)
  if not fits(key, 'list') then return end
  local missing = math.min(WAKES - redis.call('LLEN', key), jobs)
  if missing == 1 then redis.call('LPUSH', key, '')
  elseif missing > 1 then
    local tokens = {}
    for i = 1, missing do tokens[i] = '' end
    redis.call('LPUSH', key, unpack(tokens))
  end
end
