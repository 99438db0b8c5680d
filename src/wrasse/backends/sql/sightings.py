"""Sightings on PostgreSQL: one row per orphan, in the order of their units, and one per scan.

Every change of a root holds its advisory lock to the end of the transaction, so that two concurrent scans, or a scan
and a mark, are serialised and never deadlock. The primary key of a scan decides which of two is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar

import msgspec

from wrasse.backends.sql.address import POSTGRES, SqlAddress
from wrasse.backends.sql.connection import SqlConnection
from wrasse.backends.sql.dialect import Params
from wrasse.backends.sql.records import PostgresRecords, PostgresStore
from wrasse.clock import from_micros, to_micros
from wrasse.errors import ConfigError
from wrasse.ports.objects import raw_key
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit
from wrasse.ports.records import Collection
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

T = TypeVar("T")
PAGE_MAX = 10_000
ANSWER_MAX = 60.0  # seconds
COMMIT_MAX = 900.0  # seconds for a whole scan

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


class PostgresSightings:
    """The port."""

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
            return Standing(from_micros(whole(now)), _last(connection, root), value, whole(version))

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


def _last(connection: SqlConnection, root: str) -> CompleteScan | None:
    return next((scan_of(root, row) for row in connection.rows(_LAST, {"root": root})), None)
