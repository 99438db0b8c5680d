-- Forgets what is kept of the deleted records of a collection, if it has no others.
-- KEYS: [1] the names of its records; the keys to forget
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('DEL', unpack(KEYS, 2)) end
return 0
