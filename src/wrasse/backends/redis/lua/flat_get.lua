-- One record of a flat collection.
-- KEYS: [1] the record, [2] the writes of its collection, [3] meta
-- ARGV: [2] name
-- Gives nothing if there is none; else version, due or '', and its fields, names and values.
-- include flat_fields
local past = past_of(KEYS[2], KEYS[3], ARGV[2])
local digest, words = digest_of(KEYS[1])
if not digest then return {} end
return { flat_version(past, digest), past.due, words }
