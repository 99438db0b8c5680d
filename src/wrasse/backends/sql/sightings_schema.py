"""The tables of sightings on PostgreSQL, and how they come to be.

They are made when they are missing, one process at a time. Whoever may not create tables is given these statements.
Units are bytes, so that they sort as a listing does and need no encoding; instants are microseconds.
"""

from __future__ import annotations

from wrasse.backends.sql.link import Link
from wrasse.errors import Refused

TABLES = ("wrasse_sightings", "wrasse_orphan_rounds", "wrasse_orphan_roots", "wrasse_records")
SCHEMA = """
CREATE TABLE IF NOT EXISTS wrasse_sightings (
    root text NOT NULL, unit bytea NOT NULL, evidence text NOT NULL, fingerprint text NOT NULL, size bigint NOT NULL,
    files bytea NOT NULL, first_round bigint NOT NULL, first_at bigint NOT NULL, first_tick bigint NOT NULL,
    state text NOT NULL, state_round text NOT NULL, state_at bigint, state_tick bigint NOT NULL,
    PRIMARY KEY (root, unit)
);
CREATE INDEX IF NOT EXISTS wrasse_sightings_apart ON wrasse_sightings (root, state, unit) WHERE state <> 'seen';
CREATE TABLE IF NOT EXISTS wrasse_orphan_rounds (
    root text NOT NULL, number bigint NOT NULL, id text NOT NULL, at bigint NOT NULL, snapshot_at bigint NOT NULL,
    tick bigint NOT NULL, counts text NOT NULL,
    PRIMARY KEY (root, number)
);
CREATE TABLE IF NOT EXISTS wrasse_orphan_roots (
    root text PRIMARY KEY, value bytea NOT NULL, version bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS wrasse_records (
    collection text NOT NULL, name text COLLATE "C" NOT NULL, key text NOT NULL, value bytea NOT NULL,
    version bigint NOT NULL, due_at bigint, nonce text NOT NULL, PRIMARY KEY (collection, name)
);
"""
_MAKING = 0x77726173_73650001  # the advisory lock of whoever makes the tables


def make_tables(link: Link) -> None:
    """Makes what is missing."""
    names = ", ".join(f"to_regclass('{name}')" for name in TABLES)
    ((*found, replica),) = link.rows(f"SELECT {names}, pg_is_in_recovery()")
    if replica:
        raise Refused(f"{link.address.shown} is a replica, and sightings are written", do="name the primary")
    if None not in found:
        link.end()
        return
    link.rows("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": _MAKING})
    for statement in SCHEMA.split(";\n"):
        if statement.strip():
            link.run(statement)
    link.connection.commit()
