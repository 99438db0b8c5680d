-- One write to one record: create, put or delete, under its condition; a write that was made before is found again.
-- KEYS and ARGV: as `recording` has them.
-- gives {now in us, 'done' | 'conflict' | 'unknown', version or ''}
-- include flat_fields
-- include recording
return answered() or made()
