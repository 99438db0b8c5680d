"""Sightings on SQLite: one row per orphan, in the order of their units, and the last scan.

A scan is committed by the writer thread, in one transaction, so that a crash leaves the scan before it. A row is
written when a unit becomes an orphan and again only when it ceases to be one: scans in between cost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import apsw
import msgspec

from wrasse.backends.sqlite.connection import GROUP_ROWS_MAX, SqliteReader, SqliteWriter
from wrasse.backends.sqlite.write_transaction import WriteTransaction, write_rows
from wrasse.bounded import UNREADABLE, why
from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreBroken
from wrasse.ports.objects import raw_key
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit
from wrasse.ports.sightings import (
    COLUMNS,
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
)

PAGE_MAX = 10_000
_CACHE_KIB = 256  # while sightings are read: each is read once, and caching them would displace other pages

_READ = ", ".join(
    f"CAST({name} AS BLOB)" if name in ("evidence", "fingerprint", "state", "state_round") else name for name in COLUMNS
)
_OTHERS = COLUMNS[1:]
_SEEN = f"INSERT INTO sightings (root, {', '.join(COLUMNS)})"
_OVER = f"""ON CONFLICT (root, unit) DO UPDATE
    SET ({", ".join(_OTHERS)}) = ({", ".join(f"excluded.{n}" for n in _OTHERS)})
    WHERE sightings.state = 'seen'"""
_UNSEEN = "DELETE FROM sightings WHERE root = ? AND unit = ? AND state = 'seen'"
_ROUND = "INSERT INTO orphan_rounds (root, number, id, at, snapshot_at, tick, counts) VALUES (?, ?, ?, ?, ?, ?, ?)"
_LAST = """SELECT id, number, at, snapshot_at, tick, counts FROM orphan_rounds
    WHERE root = ? ORDER BY number DESC LIMIT 1"""
_HERE = "root = ? AND unit = ? AND state = ? AND fingerprint = ?"

_log = logging.getLogger("wrasse.orphans")


class SqliteSightings:
    """The sightings of one database."""

    def __init__(self, writer: SqliteWriter, reader: SqliteReader, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def standing(self, root: str) -> Standing:
        def run(db: apsw.Connection) -> Standing:
            found = list(db.execute("SELECT value, version FROM orphan_roots WHERE root = ?", (root,)))
            value, version = found[0] if found else (b"", 0)
            return Standing(self._clock.now(), _last(db, root), value, version)

        return await self._reader.do(run)

    async def write(self, root: str, value: bytes, *, at: int) -> bool:
        def run(tx: WriteTransaction) -> bool:
            if at == 0:
                sql = "INSERT INTO orphan_roots (root, value, version) VALUES (?, ?, 1) ON CONFLICT DO NOTHING"
                tx.db.execute(sql, (root, value))
            else:
                sql = "UPDATE orphan_roots SET value = ?, version = version + 1 WHERE root = ? AND version = ?"
                tx.db.execute(sql, (value, root, at))
            return tx.db.changes() == 1

        return await self._writer.do(run)

    async def page(
        self, root: str, after: str | None, limit: int, state: SightingState | None = None
    ) -> Page[Sighting]:
        limit = check_limit(limit, "sightings", PAGE_MAX)
        only = "" if state is None else " AND state = :state"
        sql = f"SELECT {_READ} FROM sightings WHERE root = :root AND unit > :after{only} ORDER BY unit"
        asked = {"root": root, "after": b"" if after is None else raw_key(after), "state": state}

        def run(db: apsw.Connection) -> Page[Sighting]:
            with _small_cache(db):
                read = (_sighting(row) for row in db.execute(sql, asked))
                found = list(islice((each for each in read if each is not None), limit + 1))
            return Page.of(found, limit, self._clock.now(), lambda each: each.unit)

        return await self._reader.do(run)

    async def get(self, root: str, units: Sequence[str]) -> Sequence[Sighting | None]:
        sql = f"SELECT {_READ} FROM sightings WHERE root = ? AND unit = ?"

        def run(db: apsw.Connection) -> list[Sighting | None]:
            rows = [list(db.execute(sql, (root, raw_key(unit)))) for unit in units]
            return [_sighting(found[0]) if found else None for found in rows]

        return await self._reader.do(run)

    async def commit(self, made: CompleteScan, changes: Iterable[Sequence[Change]]) -> bool:
        def run(tx: WriteTransaction) -> bool:
            last = _last(tx.db, made.root)
            if made.number != (0 if last is None else last.number) + 1:
                return False
            with _small_cache(tx.db):
                for batch in changes:
                    _change(tx.db, made.root, batch)
            tx.db.execute(
                _ROUND,
                (
                    made.root,
                    made.number,
                    made.id,
                    to_micros(made.at),
                    to_micros(made.snapshot_at),
                    made.tick,
                    msgspec.json.encode(made.counts).decode(),
                ),
            )
            tx.db.execute("DELETE FROM orphan_rounds WHERE root = ? AND number < ?", (made.root, made.number))
            return True

        # It runs alone: if another operation in its transaction failed, all of it would be done again.
        return await self._writer.do(run, GROUP_ROWS_MAX)

    async def mark(self, root: str, marks: Sequence[SightingChange]) -> Sequence[Outcome]:
        check_marks(marks)

        def run(tx: WriteTransaction) -> list[Outcome]:
            now = tx.now()
            return [_mark(tx.db, root, each, now) for each in marks]

        return await self._writer.do(run, len(marks))


@contextmanager
def _small_cache(db: apsw.Connection) -> Iterator[None]:
    """Keeps the memory of a scan independent of the number of sightings."""
    usual = db.pragma("cache_size")
    db.pragma("cache_size", -_CACHE_KIB)
    try:
        yield
    finally:
        db.pragma("cache_size", usual)


def _change(db: apsw.Connection, root: str, batch: Sequence[Change]) -> None:
    write_rows(db, _SEEN, [(root, *values(each.sighting)) for each in batch if isinstance(each, NewSighting)], _OVER)
    gone = [(root, raw_key(each.unit)) for each in batch if isinstance(each, Unseen)]
    if gone:
        db.executemany(_UNSEEN, gone)


def _mark(db: apsw.Connection, root: str, mark: SightingChange, now: int) -> Outcome:
    here = (root, raw_key(mark.unit), mark.state, mark.fingerprint)
    if mark.to is None:
        db.execute(f"DELETE FROM sightings WHERE {_HERE}", here)
    else:
        sql = f"UPDATE sightings SET state = ?, state_round = ?, state_at = ?, state_tick = ? WHERE {_HERE}"
        db.execute(sql, (mark.to, mark.round, now, mark.tick, *here))
    return Outcome.DONE if db.changes() else Outcome.CONFLICT


def _last(db: apsw.Connection, root: str) -> CompleteScan | None:
    try:
        return next((scan_of(root, row) for row in db.execute(_LAST, (root,))), None)
    except UNREADABLE as error:
        raise StoreBroken(
            f"the last row of the root {root!r} in the table orphan_rounds is invalid: {why(error)}",
            do="restore the database from a backup",
        ) from None


def _sighting(row: Sequence[Any]) -> Sighting | None:
    """None for an invalid row: its unit counts as not seen, so that no action is taken on it."""
    try:
        return sighting(row)
    except UNREADABLE as error:
        _log.error(
            "the unit %r is skipped: its row in the table sightings is invalid (%s); delete the row, and the next"
            " scan sees the unit anew",
            row[0],
            why(error),
        )
        return None
