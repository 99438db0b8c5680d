-- The tables of a wrasse database, as a series of steps. A step that was released is never edited: what changes comes
-- as a new step at the end. Instants are whole microseconds since 1970.

-- step 1

-- What tells this database from every other: it stays for the life of the file.
CREATE TABLE identity (one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT NOT NULL) STRICT;
INSERT INTO identity VALUES (1, lower(hex(randomblob(8))));

-- `back` numbers jobs, tokens and versions and only grows; `front` gives a turn before all others and only falls;
-- `gone` counts deleted records that are still remembered, `done` the jobs that are done.
CREATE TABLE numbers (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  back INTEGER NOT NULL,
  front INTEGER NOT NULL,
  gone INTEGER NOT NULL CHECK (gone >= 0),
  done INTEGER NOT NULL CHECK (done >= 0)
) STRICT;
INSERT INTO numbers VALUES (1, 1, -1, 0, 0);

-- place: 0 ready, 1 delayed, 2 held, 3 done, 4 dead. The columns that change stand before the bytes that do not.
CREATE TABLE jobs (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  place INTEGER NOT NULL,
  queue TEXT NOT NULL,
  rank INTEGER NOT NULL,              -- its turn while it is ready
  ready_at INTEGER NOT NULL,          -- since when it is ready, or from when on while it is delayed
  token INTEGER NOT NULL DEFAULT 0,
  nonce TEXT NOT NULL DEFAULT '',
  attempts INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0,
  rescues INTEGER NOT NULL DEFAULT 0,
  interruptions INTEGER NOT NULL DEFAULT 0,
  until INTEGER,
  taken_at INTEGER,
  beat_at INTEGER,
  finished_at INTEGER,
  created_at INTEGER NOT NULL,
  worker TEXT NOT NULL DEFAULT '',
  reason TEXT,
  error TEXT NOT NULL DEFAULT '',
  kind TEXT NOT NULL,
  priority TEXT NOT NULL,
  size INTEGER NOT NULL,
  lasting INTEGER NOT NULL,
  timeout INTEGER,
  not_before INTEGER,                 -- as its producer asked
  delay INTEGER,
  headers TEXT,
  result BLOB,
  payload BLOB                        -- NULL if it is long: then it is in payloads
) STRICT;
CREATE INDEX jobs_ready ON jobs (queue, rank) WHERE place = 0;
CREATE INDEX jobs_delayed ON jobs (ready_at) WHERE place = 1;
CREATE INDEX jobs_held ON jobs (until) WHERE place = 2;
CREATE INDEX jobs_finished ON jobs (place, finished_at) WHERE place >= 3;

-- A row is written anew with every change, so long payloads stand apart from what changes.
CREATE TABLE payloads (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT;

-- Attempts that did not end well.
CREATE TABLE attempts (
  seq INTEGER NOT NULL,
  number INTEGER NOT NULL,
  worker TEXT NOT NULL,
  taken_at INTEGER NOT NULL,
  ended_at INTEGER NOT NULL,
  reason TEXT NOT NULL,
  error TEXT NOT NULL,
  PRIMARY KEY (seq, number)
) STRICT, WITHOUT ROWID;

-- How many jobs are where; changed together with them, so that nobody has to count.
CREATE TABLE counts (
  queue TEXT NOT NULL,
  place INTEGER NOT NULL,
  n INTEGER NOT NULL CHECK (n >= 0),
  PRIMARY KEY (queue, place)
) STRICT, WITHOUT ROWID;
CREATE INDEX counts_empty ON counts (n) WHERE n = 0;

CREATE TABLE workers (
  id TEXT PRIMARY KEY,
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  slots INTEGER NOT NULL,
  beat_at INTEGER NOT NULL,
  until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX workers_until ON workers (until);

-- Lasting ids of jobs that are gone.
CREATE TABLE ids (id TEXT PRIMARY KEY, forget_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX ids_forget ON ids (forget_at);

-- Answers that were given, in the order they were. `ticks` is monotonic time, which no step of the wall clock moves.
CREATE TABLE requests (
  n INTEGER PRIMARY KEY,
  request TEXT NOT NULL UNIQUE,
  answer BLOB NOT NULL,
  answered_at INTEGER NOT NULL,
  ticks REAL NOT NULL
) STRICT;
-- Each new one takes away up to two that are older than a minute, so that they never pile up.
CREATE TRIGGER requests_forget AFTER INSERT ON requests BEGIN
  DELETE FROM requests WHERE n IN (SELECT n FROM requests ORDER BY n LIMIT 2)
    AND CASE WHEN ticks <= NEW.ticks THEN NEW.ticks - ticks > 60
      ELSE abs(NEW.answered_at - answered_at) > 60000000 END;
END;

-- `writes` names the last writes to this name and the version each made: all of them that are newer than `since`. A
-- deleted record stays for a while without its value, so that a write whose reply was lost is still found.
CREATE TABLE records (
  seq INTEGER PRIMARY KEY,
  collection TEXT NOT NULL,
  name BLOB NOT NULL,
  version INTEGER NOT NULL,
  since INTEGER NOT NULL,
  due INTEGER,
  writes TEXT NOT NULL,
  value BLOB,
  UNIQUE (collection, name)
) STRICT;
CREATE INDEX records_due ON records (collection, due, name) WHERE due IS NOT NULL;
CREATE INDEX records_gone ON records (version) WHERE value IS NULL;
-- The newest version of a deleted record that is no longer remembered.
CREATE TABLE forgotten (collection TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE lines (
  id TEXT PRIMARY KEY,
  run TEXT NOT NULL,
  sweep TEXT NOT NULL,
  verb TEXT NOT NULL,
  suspect TEXT NOT NULL,
  reason TEXT NOT NULL,
  count INTEGER NOT NULL,
  intended_at INTEGER NOT NULL,
  outcome TEXT,
  detail TEXT NOT NULL DEFAULT '',
  settled_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX lines_open ON lines (id) WHERE outcome IS NULL;
CREATE INDEX lines_sweep ON lines (sweep, id);
CREATE INDEX lines_run ON lines (run, id);
CREATE INDEX lines_suspect ON lines (suspect, id);
CREATE INDEX lines_settled ON lines (intended_at) WHERE outcome IS NOT NULL;

-- step 2

-- `last_seq` numbers the entries of a stream without a gap, so it is also how many there ever were.
CREATE TABLE streams (
  id INTEGER PRIMARY KEY,
  subject TEXT NOT NULL UNIQUE,
  entries_max INTEGER,
  bytes_max INTEGER,
  length INTEGER NOT NULL DEFAULT 0 CHECK (length >= 0),
  bytes INTEGER NOT NULL DEFAULT 0 CHECK (bytes >= 0),
  last_ms INTEGER NOT NULL DEFAULT 0,
  last_seq INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE entries (
  stream INTEGER NOT NULL,
  ms INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  size INTEGER NOT NULL,
  fields BLOB,                        -- what stands beside the body; before it, so that it is found without reading it
  body BLOB NOT NULL,
  PRIMARY KEY (stream, ms, seq)
) STRICT, WITHOUT ROWID;

-- Idempotency keys, each with the entry it stands for.
CREATE TABLE entry_keys (
  stream INTEGER NOT NULL,
  key TEXT NOT NULL,
  ms INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  noted_at INTEGER NOT NULL,
  PRIMARY KEY (stream, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX entry_keys_noted ON entry_keys (noted_at);

CREATE TABLE entry_groups (
  id INTEGER PRIMARY KEY,
  stream INTEGER NOT NULL,
  name TEXT NOT NULL,
  delivered_ms INTEGER NOT NULL,
  delivered_seq INTEGER NOT NULL,
  UNIQUE (stream, name)
) STRICT;

-- Only what was handed out and is not acked. Nobody holds it while consumer is empty: it waits until it is due.
CREATE TABLE pending (
  entry_group INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  ms INTEGER NOT NULL,
  until INTEGER NOT NULL,
  number INTEGER NOT NULL,
  consumer TEXT NOT NULL,
  PRIMARY KEY (entry_group, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX pending_until ON pending (entry_group, until);

CREATE TABLE consumers (
  entry_group INTEGER NOT NULL,
  name TEXT NOT NULL,
  seen_at INTEGER NOT NULL,
  until INTEGER NOT NULL,
  PRIMARY KEY (entry_group, name)
) STRICT, WITHOUT ROWID;

-- step 3

-- `extras` holds, as JSON, what few jobs have: unique name, window, group. `keep` is how long a result stays; `member`
-- is 1 while the job's group has not counted it; `progress` is what its handler told last, as JSON.
ALTER TABLE jobs ADD COLUMN extras TEXT;
ALTER TABLE jobs ADD COLUMN keep INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN member INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN progress TEXT;
DROP INDEX jobs_finished;
CREATE INDEX jobs_finished ON jobs (place, finished_at + keep) WHERE place >= 3;

-- Names of which there may be one job at a time; until NULL is until that job is finished. `n` is for forgetting: the
-- names that were looked at longest ago come first.
CREATE TABLE uniques (
  n INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  id TEXT NOT NULL,
  until INTEGER
) STRICT;

-- Groups of jobs; size and callback are NULL until the group is opened, which may be after a member has finished.
CREATE TABLE teams (
  id TEXT PRIMARY KEY,
  seen_at INTEGER NOT NULL,
  size INTEGER,
  callback BLOB,
  done INTEGER NOT NULL DEFAULT 0,
  dead INTEGER NOT NULL DEFAULT 0,
  fired INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX teams_seen ON teams (seen_at);

-- When jobs of queues with a limit were taken, and how many.
CREATE TABLE limited_takes (
  queue TEXT NOT NULL,
  at INTEGER NOT NULL,
  n INTEGER NOT NULL,
  PRIMARY KEY (queue, at)
) STRICT, WITHOUT ROWID;

-- step 4

-- Budgets that producers share: until when, in nanoseconds since 1970, each is spent.
CREATE TABLE budgets (
  key TEXT PRIMARY KEY,
  spent_to INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- step 5

-- Orphans: what is known of a root (a small value of its user's), one row per complete round, one per sighting.
CREATE TABLE orphan_roots (root TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE orphan_rounds (
  root TEXT NOT NULL,
  number INTEGER NOT NULL,
  id TEXT NOT NULL,
  at INTEGER NOT NULL,
  snapshot_at INTEGER NOT NULL,
  tick INTEGER NOT NULL,
  counts TEXT NOT NULL,
  PRIMARY KEY (root, number)
) STRICT, WITHOUT ROWID;

-- `unit` holds the bytes of a key, so that its order is theirs.
CREATE TABLE sightings (
  root TEXT NOT NULL,
  unit BLOB NOT NULL,
  evidence TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  size INTEGER NOT NULL,
  files BLOB NOT NULL,
  first_round INTEGER NOT NULL,
  first_at INTEGER NOT NULL,
  first_tick INTEGER NOT NULL,
  state TEXT NOT NULL,
  state_round TEXT NOT NULL,
  state_at INTEGER,
  state_tick INTEGER NOT NULL,
  PRIMARY KEY (root, unit)
) STRICT, WITHOUT ROWID;
CREATE INDEX sightings_apart ON sightings (root, state, unit) WHERE state <> 'seen';

-- step 6

-- Where a record stands, so that it is counted and listed without being read.
ALTER TABLE records ADD COLUMN shelf TEXT;
ALTER TABLE records ADD COLUMN turn INTEGER;
CREATE INDEX records_shelf ON records (collection, shelf, turn, name) WHERE shelf IS NOT NULL;

-- How many stand on each shelf, kept by what moves them.
CREATE TABLE shelves (
  collection TEXT NOT NULL,
  shelf TEXT NOT NULL,
  n INTEGER NOT NULL CHECK (n >= 0),
  PRIMARY KEY (collection, shelf)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER records_shelved AFTER INSERT ON records WHEN new.shelf IS NOT NULL BEGIN
  INSERT INTO shelves VALUES (new.collection, new.shelf, 1) ON CONFLICT DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER records_moved AFTER UPDATE OF shelf ON records WHEN old.shelf IS NOT new.shelf BEGIN
  UPDATE shelves SET n = n - 1 WHERE collection = old.collection AND shelf = old.shelf;
  INSERT INTO shelves SELECT new.collection, new.shelf, 1 WHERE new.shelf IS NOT NULL
    ON CONFLICT DO UPDATE SET n = n + 1;
END;

-- step 7

-- Rows that another program gave a place that is none: found without reading the others. Empty as a rule.
CREATE INDEX jobs_nowhere ON jobs (seq) WHERE (place < 0 OR place > 4);

-- step 8

-- The words of the field. A renamed column is written into the schema and into no row, so this takes no longer for a
-- large table.
ALTER TABLE jobs RENAME COLUMN place TO state;
ALTER TABLE jobs RENAME COLUMN until TO deadline;
ALTER TABLE jobs RENAME COLUMN taken_at TO claimed_at;
ALTER TABLE jobs RENAME COLUMN beat_at TO heartbeat_at;
ALTER TABLE attempts RENAME COLUMN taken_at TO claimed_at;
ALTER TABLE counts RENAME COLUMN place TO state;
ALTER TABLE workers RENAME COLUMN beat_at TO heartbeat_at;
ALTER TABLE workers RENAME COLUMN until TO deadline;
ALTER TABLE limited_takes RENAME TO limited_claims;
