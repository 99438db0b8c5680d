"""The journal on SQLite: one row per line, in the order of their ids; open lines have an index of their own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import apsw

from wrasse.backends.sqlite.connection import SqliteReader, SqliteWriter
from wrasse.backends.sqlite.rows import in_calendar, instant
from wrasse.backends.sqlite.write_transaction import WriteTransaction, text, texts, write_rows
from wrasse.clock import Clock, from_micros, to_micros
from wrasse.ports.journal import (
    Intent,
    Line,
    LineFilter,
    SettledIntent,
    intent_from_stored,
    stored_intent,
    stored_sweep,
)
from wrasse.ports.outcome import FROM_STORED, STORED, Outcome
from wrasse.ports.page import Page, check_limit

PAGE_MAX = 10_000

_INTEND = "INSERT INTO lines (id, run, sweep, verb, suspect, reason, count, intended_at)"
_SETTLED = """) UPDATE lines SET outcome = one.outcome, detail = one.detail, settled_at = one.settled_at
    FROM one WHERE lines.id = one.id AND (lines.outcome IS NULL OR lines.outcome = 'unknown')"""
_TEXTS = ("id", "run", "sweep", "verb", "suspect", "reason", "outcome", "detail")
_LINES = f"SELECT {', '.join(f'CAST({name} AS BLOB)' for name in _TEXTS)}, count, intended_at, settled_at FROM lines"
_OLD = "SELECT id FROM lines WHERE outcome IS NOT NULL AND intended_at < ? ORDER BY intended_at, id LIMIT ?"


class SqliteJournal:
    """The journal of one database."""

    def __init__(self, writer: SqliteWriter, reader: SqliteReader, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def intend(self, intents: Sequence[Intent]) -> datetime:
        def run(tx: WriteTransaction) -> datetime:
            now = tx.now()
            rows = [
                (i.id, i.run, i.sweep, i.verb, i.suspect, i.reason, i.count, now) for i in map(stored_intent, intents)
            ]
            before = tx.db.total_changes()
            # A retry after a lost reply finds the lines written.
            write_rows(tx.db, _INTEND, rows, "ON CONFLICT DO NOTHING")
            if tx.db.total_changes() - before < len(rows):
                earliest = "SELECT min(intended_at) FROM lines WHERE id IN carray(?)"
                now = tx.db.execute(earliest, (texts(i.id for i in intents),)).get
            return from_micros(now)

        return await self._writer.do(run, len(intents))

    async def settle(self, outcomes: Sequence[SettledIntent]) -> None:
        def run(tx: WriteTransaction) -> None:
            now = tx.now()
            rows = [(one.id, STORED[one.outcome], one.detail, now) for one in outcomes]
            write_rows(tx.db, "WITH one (id, outcome, detail, settled_at) AS (", rows, _SETTLED)

        await self._writer.do(run, len(outcomes))

    async def page(self, where: LineFilter, after: str | None, limit: int, *, newest: bool = False) -> Page[Line]:
        limit = check_limit(limit, "lines", PAGE_MAX)
        terms, values = _terms(where)
        if after is not None:
            terms.append(f"id {'<' if newest else '>'} CAST(? AS TEXT)")
            values.append(after.encode("utf-8", "surrogateescape"))
        sql = f"{_LINES} WHERE {' AND '.join(terms) or 'true'} ORDER BY id {'DESC' if newest else 'ASC'} LIMIT ?"

        def run(db: apsw.Connection) -> Page[Line]:
            rows: list[Any] = db.execute(sql, (*values, limit + 1)).fetchall()
            at = self._clock.now()
            shown = tuple(_line(row[:8], *row[8:], now=to_micros(at)) for row in rows[:limit])
            cursors = tuple(row[0].decode("utf-8", "surrogateescape") for row in rows[:limit])
            return Page(shown, cursors, at, len(rows) > limit)

        return await self._reader.do(run)

    async def delete(self, before: datetime, limit: int) -> int:
        def run(tx: WriteTransaction) -> int:
            tx.db.execute(f"DELETE FROM lines WHERE id IN ({_OLD})", (to_micros(before), limit))
            return tx.db.changes()

        return await self._writer.do(run, limit)


def _terms(where: LineFilter) -> tuple[list[str], list[str | int | bytes]]:
    terms: list[str] = []
    values: list[str | int | bytes] = []
    sweep = None if where.sweep is None else stored_sweep(where.sweep)
    for column, name in (("sweep", sweep), ("run", where.run), ("suspect", where.suspect)):
        if name is not None:
            terms.append(f"{column} = ?")
            values.append(name)
    if where.outcome is not None:
        terms.append("outcome = ?")
        values.append(STORED[where.outcome])
    if where.open is not None:
        terms.append("outcome IS NULL" if where.open else "outcome IS NOT NULL")
    for sign, at in ((">=", where.since), ("<", where.until)):
        if at is not None:
            terms.append(f"intended_at {sign} ?")
            values.append(to_micros(at))
    return terms, values


def _line(stored: Sequence[bytes | None], count: int, intended_at: int, settled_at: int | None, *, now: int) -> Line:
    """A row as a line; invalid values are shown as closely as possible."""
    *words, told, detail = ("" if each is None else text(each) for each in stored)
    id, run, sweep, verb, suspect, reason = words
    outcome = FROM_STORED.get(told, Outcome.UNKNOWN)
    if told not in FROM_STORED and stored[6] is not None:
        detail = f"the row has the invalid outcome {told!r}; {detail}"
    return Line(
        intent_from_stored(Intent(id, run, sweep, verb, suspect, reason, count)),
        from_micros(in_calendar(intended_at, now)),
        None if stored[6] is None else outcome,
        detail,
        instant(in_calendar(settled_at, now)),
    )
