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
