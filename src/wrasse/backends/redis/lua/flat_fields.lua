-- Records that are hashes of their own, which other programs read and write too. The version of one is that of our newest write
-- and a digest of its fields, so that whatever another program changes is noticed.

-- What is known of a name: `since`, the newest version that was forgotten; `due`, as it stands in the index; its newest
-- `writes`; `seen`, the digest of fields that are another program's and were looked at; and `spot`, where it stands.
-- `lost`: another program wrote over it, so that all writes up to now are forgotten.
local function past_of(writes, meta, name)
  local packed = redis.call('HGET', writes, name)
  if not packed then return { since = tonumber(redis.call('HGET', meta, 'forgotten') or 0) or us, due = '', writes = {} } end
  local read, past = pcall(cmsgpack.unpack, packed)
  local whole = read and type(past) == 'table' and type(past.since) == 'number' and type(past.due) == 'string'
    and type(past.writes) == 'table' and type(past.seen or '') == 'string' and type(past.spot or '') == 'string'
  for _, write in pairs(whole and past.writes or {}) do
    whole = whole and type(write) == 'table' and type(write[1]) == 'string' and string.match(tostring(write[2]), '^%d+%-')
  end
  return whole and past or { since = us, due = '', writes = {}, lost = true }
end

-- The number of the next write of a collection. Where another program wrote over the last one, they go on from the clock, which
-- is above all that were counted.
local function next_number(meta)
  local number = redis.pcall('HINCRBY', meta, 'number', 1)
  if type(number) == 'number' and number > 0 and number < 9e15 then return number end
  redis.call('HSET', meta, 'number', string.format('%.0f', us))
  return us
end

-- A digest of the fields in whatever order the server has them; nil if there is no such record. And the fields.
local function digest_of(key)
  local words = redis.call('HGETALL', key)
  if #words == 0 then return nil, words end
  local fields = {}
  for i = 1, #words, 2 do
    fields[#fields + 1] = #words[i] .. ':' .. words[i] .. #words[i + 1] .. ':' .. words[i + 1]
  end
  table.sort(fields)
  return redis.sha1hex(table.concat(fields)), words
end

-- The version of a record whose fields have this digest; '' for none.
local function flat_version(past, digest)
  if not digest then return '' end
  local last = past.writes[#past.writes]
  local stamp = last and not last[3] and string.match(last[2], '^(%d+%-%x+)%-') or '0-0'
  return stamp .. '-' .. digest
end

-- Whether the fields are what we wrote, or what we have looked at.
local function is_known(past, digest)
  local last = past.writes[#past.writes]
  if past.seen == digest then return true end
  return last and not last[3] and string.match(last[2], '%-(%x+)$') == digest
end

-- Puts a name on the shelf of this spot, '' for none, and says so in what is known of it; whether it stood elsewhere.
local function stand(shelves, name, past, spot)
  local before = past.spot or ''
  if before == spot then return false end
  if before ~= '' then redis.call('ZREM', shelves, before .. name) end
  if spot ~= '' then redis.call('ZADD', shelves, 0, spot .. name) end
  past.spot = spot ~= '' and spot or nil
  return true
end
