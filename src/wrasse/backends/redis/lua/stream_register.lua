-- Registers streams that other programs made, and forgets registered ones that are gone.
-- KEYS: [1] the registry of streams; then two of each stream: the stream, what is known of it
-- ARGV: [2] on: the subjects
for i = 2, #ARGV do
  if redis.call('TYPE', KEYS[2 * i - 2]).ok == 'stream' then redis.call('ZADD', KEYS[1], 0, ARGV[i])
  elseif redis.call('EXISTS', KEYS[2 * i - 2]) == 0 then
    redis.call('ZREM', KEYS[1], ARGV[i])
    redis.call('DEL', KEYS[2 * i - 1])
  end
end
return 0
