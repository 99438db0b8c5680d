"""Records on PostgreSQL: one row each, for what orphan sweeps store beside their sightings, such as their lease.

They have a connection of their own: storing a scan's sightings may take minutes, and a lease is renewed meanwhile. A
record keeps the nonce of its last write; a write that finds its own nonce there was made before, and its reply was
lost.

The tables of sightings on PostgreSQL, and how they are made.

They are made when they are missing, one process at a time. The error for a user who may not create tables has these
statements. Units are bytes, so that they sort like a listing and need no encoding; instants are microseconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from wrasse.backends.sql.address import SqlAddress
from wrasse.backends.sql.connection import SqlConnection, SqlThread
from wrasse.backends.sql.dialect import Params
from wrasse.clock import from_micros, to_micros
from wrasse.errors import Refused
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit
from wrasse.ports.records import Collection, Record, Written, stored_name
from wrasse.ports.rules.conditional_records import ConditionalRecords, RecordWrite
from wrasse.ports.sightings import whole

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
_MAKING = 0x77726173_73650001  # the advisory lock for making the tables


def make_tables(connection: SqlConnection) -> None:
    """Makes the missing tables."""
    names = ", ".join(f"to_regclass('{name}')" for name in TABLES)
    ((*found, replica),) = connection.rows(f"SELECT {names}, pg_is_in_recovery()")
    if replica:
        raise Refused(f"{connection.address.shown} is a replica, and sightings are written", do="name the primary")
    if None not in found:
        connection.end()
        return
    connection.rows("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": _MAKING})
    for statement in SCHEMA.split(";\n"):
        if statement.strip():
            connection.run(statement)
    connection.connection.commit()


T = TypeVar("T")
ANSWER_MAX = 10.0  # seconds
PAGE_MAX = 10_000
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_HERE = "collection = %(collection)s AND name = %(name)s"
_COLUMNS = "key, value, version, due_at"
_CREATE = """INSERT INTO wrasse_records (collection, name, key, value, version, due_at, nonce)
    VALUES (%(collection)s, %(name)s, %(key)s, %(value)s, 1, %(due)s, %(nonce)s)
    ON CONFLICT DO NOTHING RETURNING version"""
_PUT = f"""UPDATE wrasse_records SET value = %(value)s, version = version + 1, due_at = %(due)s, nonce = %(nonce)s
    WHERE {_HERE} AND version = %(at)s RETURNING version"""
_DELETE = f"DELETE FROM wrasse_records WHERE {_HERE} AND version = %(at)s RETURNING version"
_AGAIN = f"SELECT version FROM wrasse_records WHERE {_HERE} AND nonce = %(nonce)s"
_THERE = f"SELECT 1 FROM wrasse_records WHERE {_HERE}"
_PAGE = f"""SELECT {_COLUMNS}, name FROM wrasse_records WHERE collection = %(collection)s
    AND name > %(after)s AND starts_with(name, %(prefix)s) ORDER BY name LIMIT %(limit)s"""
_DUE = f"""SELECT {_COLUMNS}, lpad(due_at::text, 20, '0') || name FROM wrasse_records
    WHERE collection = %(collection)s AND due_at <= coalesce(%(before)s, {_NOW})
    AND lpad(due_at::text, 20, '0') || name COLLATE "C" > %(after)s ORDER BY due_at, name LIMIT %(limit)s"""


class PostgresStore:
    """A connection to the tables of a database, and its records."""

    def __init__(self, address: SqlAddress, name: str) -> None:
        self._connection = SqlConnection(address, writes=True)
        self._thread = SqlThread(name)
        self._made = 0  # the connection on which the tables were checked

    def records(self, collection: Collection) -> PostgresRecords:
        """The records of one collection."""
        return PostgresRecords(self, collection.data)

    async def do(self, call: Callable[[SqlConnection], T], limit: float = ANSWER_MAX) -> T:
        """Runs one call in one transaction."""

        def run() -> T:
            connection = self._connection
            transaction = connection.connection
            if self._made != connection.opened:
                make_tables(connection)
                self._made = connection.opened
            answer = call(connection)
            transaction.commit()
            return answer

        return await self._thread.run(lambda: self._connection.guarded(run), self._connection, limit)

    async def close(self, limit: float = ANSWER_MAX) -> None:
        """Closes the connection."""
        await self._thread.run(self._connection.close, self._connection, limit)
        await self._thread.close()


class PostgresRecords(ConditionalRecords):
    """The port, for one collection."""

    def __init__(self, store: PostgresStore, collection: str) -> None:
        self._store = store
        self._collection = collection

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        sql = f"SELECT {_COLUMNS} FROM wrasse_records WHERE {_HERE}"
        rows = await self._store.do(lambda connection: connection.rows(sql, self._named(key)))
        return _record(rows[0]) if rows else None

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        return await self._page(_PAGE, limit, {"prefix": stored_name(prefix), "after": after or ""})

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        return await self._page(_DUE, limit, {"before": _micros(before), "after": after or ""})

    async def write(self, asked: RecordWrite) -> Written:
        sql = _DELETE if asked.value is None else _CREATE if asked.at is None else _PUT
        values: Params = {
            **self._named(asked.key),
            "key": asked.key,
            "value": asked.value,
            "due": _micros(asked.due_at),
            "at": _version(asked.at or ""),
            "nonce": asked.nonce or secrets.token_hex(8),
        }

        def run(connection: SqlConnection) -> Written:
            ((now,),) = connection.rows(f"SELECT {_NOW}")
            rows = connection.rows(sql, values) or connection.rows(_AGAIN, values)
            version = str(rows[0][0]) if rows and sql is not _DELETE else None
            # A retried delete may have been made: no row is left that would show it.
            again = sql is _DELETE and asked.nonce is not None and not connection.rows(_THERE, values)
            lost = Outcome.UNKNOWN if again else Outcome.CONFLICT
            return Written(Outcome.DONE if rows else lost, version, from_micros(whole(now)))

        return await self._store.do(run)

    async def _page(self, sql: str, limit: int, values: Params) -> Page[Record]:
        limit = check_limit(limit, "records", PAGE_MAX)
        asked: Params = {"collection": self._collection, **values, "limit": limit + 1}

        def run(connection: SqlConnection) -> Page[Record]:
            ((now,),) = connection.rows(f"SELECT {_NOW}")
            rows = connection.rows(sql, asked)
            return Page.cut([(str(row[4]), _record(row)) for row in rows], limit, from_micros(whole(now)))

        return await self._store.do(run)

    def _named(self, key: str) -> Params:
        return {"collection": self._collection, "name": stored_name(key)}


def _record(row: Sequence[object]) -> Record:
    key, value, version, due_at = row[:4]
    assert isinstance(value, bytes), "the column is bytea"
    return Record(str(key), value, str(version), None if due_at is None else from_micros(whole(due_at)))


def _micros(instant: datetime | None) -> int | None:
    return None if instant is None else to_micros(instant)


def _version(at: str) -> int:
    return int(at) if at.isdecimal() else 0
