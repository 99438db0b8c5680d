"""Sightings on PostgreSQL, and the records that orphan sweeps store beside them, such as their lease.

One row per orphan, in the order of their units, and one per scan. Every change of a root holds its advisory lock to the
end of the transaction, so that two concurrent scans, or a scan and a mark, are serialised and never deadlock. The
primary key of a scan decides which of two is kept. Units are bytes, so that they sort like a listing and need no
encoding; instants are microseconds.

Records have a connection of their own: storing a scan's sightings may take minutes, and a lease is renewed meanwhile. A
record keeps the nonce of its last write; a write that finds its own nonce there was made before, and its reply was
lost.

Missing tables are made, one process at a time. The error for a user who may not create tables has the statements.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from wrasse.backends.sql.address import POSTGRES, SqlAddress
from wrasse.backends.sql.connection import SqlConnection, SqlThread
from wrasse.backends.sql.dialect import Params
from wrasse.clock import from_micros, to_micros
from wrasse.errors import ConfigError, Refused
from wrasse.ports.objects import raw_key
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit
from wrasse.ports.records import Collection, Record, Written, stored_name
from wrasse.ports.rules.conditional_records import ConditionalRecords, RecordWrite
from wrasse.ports.sightings import (
    COLUMNS,
    KINDS,
    Change,
    CompleteScan,
    NewSighting,
    Sighting,
    SightingChange,
    SightingState,
    Standing,
    Unseen,
    check_marks,
    scan_of,
    sighting,
    values,
    whole,
)

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
PAGE_MAX = 10_000
ANSWER_MAX = 60.0  # seconds
RECORD_ANSWER_MAX = 10.0  # seconds
COMMIT_MAX = 900.0  # seconds for a whole scan
T = TypeVar("T")
_MAKING = 0x77726173_73650001  # the advisory lock for making the tables
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('wrasse sightings ' || %(root)s, 0))"
_LAST = """SELECT id, number, at, snapshot_at, tick, counts FROM wrasse_orphan_rounds
    WHERE root = %(root)s ORDER BY number DESC LIMIT 1"""
_ROUND = """INSERT INTO wrasse_orphan_rounds (root, number, id, at, snapshot_at, tick, counts)
    SELECT %(root)s, %(number)s, %(id)s, %(at)s, %(snapshot_at)s, %(tick)s, %(counts)s
    WHERE %(number)s - 1 = (SELECT coalesce(max(number), 0) FROM wrasse_orphan_rounds WHERE root = %(root)s)
    ON CONFLICT DO NOTHING"""
_ARRAYS = ", ".join(f"%({name})s::{kind}[]" for name, kind in zip(COLUMNS, KINDS, strict=True))
_OTHERS = COLUMNS[1:]
_SEEN = f"""INSERT INTO wrasse_sightings (root, {", ".join(COLUMNS)})
    SELECT %(root)s, * FROM unnest({_ARRAYS})
    ON CONFLICT (root, unit) DO UPDATE SET ({", ".join(_OTHERS)}) = ({", ".join(f"excluded.{n}" for n in _OTHERS)})
    WHERE wrasse_sightings.state = 'seen'"""
_UNSEEN = """DELETE FROM wrasse_sightings
    WHERE root = %(root)s AND unit = ANY(%(units)s::bytea[]) AND state = 'seen'"""
_HERE = "s.root = %(root)s AND s.unit = m.unit AND s.state = m.state AND s.fingerprint = m.fingerprint"
_MARKS = """unnest(%(place)s::int[], %(unit)s::bytea[], %(state)s::text[], %(fingerprint)s::text[], %(to)s::text[],
    %(round)s::text[], %(tick)s::bigint[]) AS m(place, unit, state, fingerprint, next, round, tick)"""
_MARK = f"""UPDATE wrasse_sightings s SET state = m.next, state_round = m.round, state_at = {_NOW}, state_tick = m.tick
    FROM {_MARKS} WHERE {_HERE} AND m.next IS NOT NULL RETURNING m.place"""
_FORGET = f"DELETE FROM wrasse_sightings s USING {_MARKS} WHERE {_HERE} AND m.next IS NULL RETURNING m.place"


_RECORD = "collection = %(collection)s AND name = %(name)s"
_COLUMNS = "key, value, version, due_at"
_CREATE = """INSERT INTO wrasse_records (collection, name, key, value, version, due_at, nonce)
    VALUES (%(collection)s, %(name)s, %(key)s, %(value)s, 1, %(due)s, %(nonce)s)
    ON CONFLICT DO NOTHING RETURNING version"""
_PUT = f"""UPDATE wrasse_records SET value = %(value)s, version = version + 1, due_at = %(due)s, nonce = %(nonce)s
    WHERE {_RECORD} AND version = %(at)s RETURNING version"""
_DELETE = f"DELETE FROM wrasse_records WHERE {_RECORD} AND version = %(at)s RETURNING version"
_AGAIN = f"SELECT version FROM wrasse_records WHERE {_RECORD} AND nonce = %(nonce)s"
_THERE = f"SELECT 1 FROM wrasse_records WHERE {_RECORD}"
_PAGE = f"""SELECT {_COLUMNS}, name FROM wrasse_records WHERE collection = %(collection)s
    AND name > %(after)s AND starts_with(name, %(prefix)s) ORDER BY name LIMIT %(limit)s"""
_DUE = f"""SELECT {_COLUMNS}, lpad(due_at::text, 20, '0') || name FROM wrasse_records
    WHERE collection = %(collection)s AND due_at <= coalesce(%(before)s, {_NOW})
    AND lpad(due_at::text, 20, '0') || name COLLATE "C" > %(after)s ORDER BY due_at, name LIMIT %(limit)s"""


class PostgresSightings:
    """The sightings of one database."""

    margin = timedelta(0)  # all times are the database's

    def __init__(self, address: SqlAddress) -> None:
        self._rows = PostgresStore(address, "wrasse-sightings")
        self._store = PostgresStore(address, "wrasse-records")

    @classmethod
    async def open(cls, url: str) -> PostgresSightings:
        """The sightings in the database of a URL; makes its tables."""
        address = SqlAddress.parse(url)
        if address.kind != POSTGRES:
            raise ConfigError(
                f"{address.kind} keeps no sightings", do="set sightings: sqlite:wrasse.db, or a postgresql:// URL"
            )
        store = cls(address)
        try:
            await store._do(lambda connection: None)
        except BaseException:
            await store.close()
            raise
        return store

    def records(self, collection: Collection) -> PostgresRecords:
        """Records in the same database."""
        return self._store.records(collection)

    async def standing(self, root: str) -> Standing:
        def run(connection: SqlConnection) -> Standing:
            ((now,),) = connection.rows(f"SELECT {_NOW}")
            found = connection.rows(
                "SELECT value, version FROM wrasse_orphan_roots WHERE root = %(root)s", {"root": root}
            )
            value, version = found[0] if found else (b"", 0)
            assert isinstance(value, bytes), "the column is bytea"
            last = next((scan_of(root, row) for row in connection.rows(_LAST, {"root": root})), None)
            return Standing(from_micros(whole(now)), last, value, whole(version))

        return await self._do(run)

    async def write(self, root: str, value: bytes, *, at: int) -> bool:
        sql = (
            "INSERT INTO wrasse_orphan_roots VALUES (%(root)s, %(value)s, 1) ON CONFLICT DO NOTHING"
            if at == 0
            else "UPDATE wrasse_orphan_roots SET value = %(value)s, version = version + 1 "
            "WHERE root = %(root)s AND version = %(at)s"
        )
        return await self._do(lambda connection: connection.run(sql, {"root": root, "value": value, "at": at}) == 1)

    async def page(
        self, root: str, after: str | None, limit: int, state: SightingState | None = None
    ) -> Page[Sighting]:
        limit = check_limit(limit, "sightings", PAGE_MAX)
        only = "" if state is None else " AND state = %(state)s"
        sql = (
            f"SELECT {', '.join(COLUMNS)} FROM wrasse_sightings "
            f"WHERE root = %(root)s AND unit > %(after)s{only} ORDER BY unit LIMIT %(limit)s"
        )
        start = b"" if after is None else raw_key(after)
        asked: Params = {"root": root, "after": start, "state": state, "limit": limit + 1}

        def run(connection: SqlConnection) -> Page[Sighting]:
            ((now,),) = connection.rows(f"SELECT {_NOW}")
            found = [sighting(row) for row in connection.rows(sql, asked)]
            return Page.of(found, limit, from_micros(whole(now)), lambda each: each.unit)

        return await self._do(run)

    async def get(self, root: str, units: Sequence[str]) -> Sequence[Sighting | None]:
        where = "root = %(root)s AND unit = ANY(%(units)s::bytea[])"
        sql = f"SELECT {', '.join(COLUMNS)} FROM wrasse_sightings WHERE {where}"
        asked: Params = {"root": root, "units": [raw_key(unit) for unit in units]}

        def run(connection: SqlConnection) -> list[Sighting | None]:
            found = {each.unit: each for each in map(sighting, connection.rows(sql, asked))}
            return [found.get(unit) for unit in units]

        return await self._do(run)

    async def commit(self, made: CompleteScan, changes: Iterable[Sequence[Change]]) -> bool:
        return await self._do(lambda connection: _commit(connection, made, changes), COMMIT_MAX)

    async def mark(self, root: str, marks: Sequence[SightingChange]) -> Sequence[Outcome]:
        check_marks(marks)
        return await self._do(lambda connection: _mark_all(connection, root, marks))

    async def close(self) -> None:
        """Closes the connections."""
        await self._store.close()
        await self._rows.close(ANSWER_MAX)

    async def _do(self, call: Callable[[SqlConnection], T], limit: float = ANSWER_MAX) -> T:
        """Runs one call in one transaction."""
        return await self._rows.do(call, limit)


def _commit(connection: SqlConnection, made: CompleteScan, changes: Iterable[Sequence[Change]]) -> bool:
    connection.rows(_LOCK, {"root": made.root})
    row: Params = {
        "root": made.root,
        "number": made.number,
        "id": made.id,
        "at": to_micros(made.at),
        "snapshot_at": to_micros(made.snapshot_at),
        "tick": made.tick,
        "counts": msgspec.json.encode(made.counts).decode(),
    }
    if connection.run(_ROUND, row) != 1:
        return False
    for batch in changes:
        seen = [each.sighting for each in batch if isinstance(each, NewSighting)]
        if seen:
            columns = zip(*(values(each) for each in seen), strict=True)
            arrays = {name: list(column) for name, column in zip(COLUMNS, columns, strict=True)}
            connection.run(_SEEN, {"root": made.root, **arrays})
        gone = [raw_key(each.unit) for each in batch if isinstance(each, Unseen)]
        if gone:
            connection.run(_UNSEEN, {"root": made.root, "units": gone})
    connection.run("DELETE FROM wrasse_orphan_rounds WHERE root = %(root)s AND number < %(number)s", row)
    return True


def _mark_all(connection: SqlConnection, root: str, marks: Sequence[SightingChange]) -> list[Outcome]:
    ends = [Outcome.CONFLICT] * len(marks)
    connection.rows(_LOCK, {"root": root})
    left = list(enumerate(marks))
    while left:
        # The marks of a unit that occurs twice are made one after the other.
        now: dict[str, tuple[int, SightingChange]] = {}
        later: list[tuple[int, SightingChange]] = []
        for place, mark in left:
            if mark.unit in now:
                later.append((place, mark))
            else:
                now[mark.unit] = (place, mark)
        for place in _mark_some(connection, root, [*now.values()]):
            ends[place] = Outcome.DONE
        left = later
    return ends


def _mark_some(connection: SqlConnection, root: str, marks: Sequence[tuple[int, SightingChange]]) -> list[int]:
    asked: Params = {
        "root": root,
        "place": [place for place, _ in marks],
        "unit": [raw_key(mark.unit) for _, mark in marks],
        "state": [mark.state.value for _, mark in marks],
        "fingerprint": [mark.fingerprint for _, mark in marks],
        "to": [None if mark.to is None else mark.to.value for _, mark in marks],
        "round": [mark.round for _, mark in marks],
        "tick": [mark.tick for _, mark in marks],
    }
    places = [row[0] for sql in (_MARK, _FORGET) for row in connection.rows(sql, asked)]
    return [place for place in places if isinstance(place, int)]


class PostgresStore:
    """A connection to the tables of a database, and its records."""

    def __init__(self, address: SqlAddress, name: str) -> None:
        self._connection = SqlConnection(address, writes=True)
        self._thread = SqlThread(name)
        self._made = 0  # the connection on which the tables were checked

    def records(self, collection: Collection) -> PostgresRecords:
        """The records of one collection."""
        return PostgresRecords(self, collection.data)

    async def do(self, call: Callable[[SqlConnection], T], limit: float = RECORD_ANSWER_MAX) -> T:
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

    async def close(self, limit: float = RECORD_ANSWER_MAX) -> None:
        """Closes the connection."""
        await self._thread.run(self._connection.close, self._connection, limit)
        await self._thread.close()


class PostgresRecords(ConditionalRecords):
    """One collection of records."""

    def __init__(self, store: PostgresStore, collection: str) -> None:
        self._store = store
        self._collection = collection

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        sql = f"SELECT {_COLUMNS} FROM wrasse_records WHERE {_RECORD}"
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
            "at": int(asked.at) if asked.at and asked.at.isdecimal() else 0,
            "nonce": asked.nonce or secrets.token_hex(8),
        }

        def run(connection: SqlConnection) -> Written:
            ((now,),) = connection.rows(f"SELECT {_NOW}")
            rows = connection.rows(sql, values) or connection.rows(_AGAIN, values)
            version = str(rows[0][0]) if rows and sql is not _DELETE else None
            # A retried delete may have been made: no row is left that would show it.
            again = sql is _DELETE and asked.nonce is not None and not connection.rows(_THERE, values)
            refused = Outcome.UNKNOWN if again else Outcome.CONFLICT
            return Written(Outcome.DONE if rows else refused, version, from_micros(whole(now)))

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
