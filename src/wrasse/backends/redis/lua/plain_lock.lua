-- KEYS: the lock. ARGV: time, owner, milliseconds it lasts, or '' to release it.
-- Returns its holder then, '' for none
local key, owner, lasts = KEYS[1], ARGV[2], ARGV[3]
local holder = redis.call('GET', key)
if holder and holder ~= owner then return holder end
if lasts == '' then
  if holder then redis.call('DEL', key) end
  return ''
end
redis.call('SET', key, owner, 'PX', lasts)
return owner
