-- Keys of a wrong type, which another program wrote. A script that fails midway is not undone: what it needs is checked
-- before it changes anything.
local SIZES = {list = 'LLEN', hash = 'HLEN', zset = 'ZCARD', set = 'SCARD'}

-- Whether this key has this type, or does not exist.
local function fits(key, kind) return type(redis.pcall(SIZES[kind], key)) == 'number' end

-- Fails with WRONGTYPE unless all of these have this type.
local function need(kind, ...)
  for _, key in ipairs({...}) do redis.call(SIZES[kind], key) end
end

-- The whole number that this text is; nil for anything else, and for what a number of Lua does not hold exactly.
local function number_in(text) return text and #text <= 15 and string.match(text, '^%d+$') and tonumber(text) or nil end

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
