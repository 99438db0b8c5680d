"""Listings of jobs, each read from the index that has its order. For the reader.

A cursor is a place in an index, not a job: the next page begins there even if that job has moved on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import apsw

from wrasse.backends.sqlite.rows import StateRow, decode_states, state_columns, state_of
from wrasse.backends.sqlite.step import DEAD, DELAYED, DONE, HELD, NOWHERE, READY
from wrasse.clock import from_micros, to_micros
from wrasse.errors import UsageError
from wrasse.ports.jobs import JobFilter, JobState, Place
from wrasse.ports.page import Page, check_limit, number_in

PAGE_MAX = 10_000

_INVALID = DEAD + 1  # stands for every place that is none: listed after the dead
_NAMES = {READY: "ready", DELAYED: "delayed", HELD: "held", DONE: "done", DEAD: "dead", _INVALID: "invalid"}
_CODES = {name: code for code, name in _NAMES.items()}
_GOES_AT = "finished_at + keep"  # the expression that is indexed
_ORDERS = {READY: "rank", DELAYED: "ready_at", HELD: "until", DONE: _GOES_AT, DEAD: _GOES_AT, _INVALID: "seq"}
# The terms that lead SQLite to the index of each place.
_PLACES = {code: f"place = {code}" if code < DONE else f"place >= 3 AND place = {code}" for code in _NAMES}
_PLACES[_INVALID] = NOWHERE
_position = attrgetter("order", "seq")


@dataclass(frozen=True, slots=True)
class Term:
    """One condition of a listing."""

    sql: str
    values: tuple[int | str | bytes, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """A cursor: the place it is in, and the position there."""

    code: int
    order: int
    seq: int


def delayed_are_due(db: apsw.Connection, now: int) -> bool:
    """Whether a delayed job is to be moved on before jobs that are ready can be listed or counted."""
    due = db.execute("SELECT min(ready_at) FROM jobs WHERE place = 1").get
    return due is not None and due <= now


def page(
    db: apsw.Connection, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool, now: int
) -> Page[JobState]:
    """Jobs of one place that match, in its order."""
    limit = _bounded(limit)
    codes = _codes(place, where)
    if newest:
        codes.reverse()
    start = None if after is None else parse_cursor(after)
    if start is not None and start.code not in codes:
        raise UsageError(f"the cursor {after!r} belongs to another listing", do="start the listing again without it")
    rows: list[StateRow] = []
    for code in codes[0 if start is None else codes.index(start.code) :]:
        begin = start if start is not None and start.code == code else None
        rows += _rows(db, code, where, begin, limit + 1 - len(rows), newest=newest)
        if len(rows) > limit:
            break
    return _cut(rows, limit, now)


def overdue(db: apsw.Connection, after: str | None, limit: int, now: int) -> Page[JobState]:
    """Held jobs whose deadline has passed, longest ago first."""
    limit = _bounded(limit)
    terms = [Term("until <= ?", (now,))]
    if after is not None:
        terms.append(_beyond(parse_cursor(after), newest=False))
    return _cut(_select(db, HELD, terms, limit + 1, newest=False), limit, now)


def parse_cursor(cursor: str) -> Start:
    """What `_cut` wrote."""
    try:
        name, order, seq = cursor.split(":")
        return Start(_CODES[name], number_in(cursor, order), number_in(cursor, seq))
    except (ValueError, KeyError):
        raise UsageError(f"{cursor!r} is not a cursor", do="use one that a page of jobs gave") from None


def _codes(place: Place, where: JobFilter) -> list[int]:
    if place is not Place.READY:
        codes = [DEAD, _INVALID] if place is Place.DEAD else [_CODES[place]]
        return [] if where.delayed else codes
    return {None: [READY, DELAYED], True: [DELAYED], False: [READY]}[where.delayed]


def _rows(
    db: apsw.Connection, code: int, where: JobFilter, start: Start | None, limit: int, *, newest: bool
) -> list[StateRow]:
    terms = _terms(where) + _bounds(where, start, newest=newest)
    if code != READY:
        if where.queue is not None:
            terms.append(Term("queue = ?", (where.queue,)))
        return _select(db, code, terms, limit, newest=newest)
    # Turns are indexed by queue, for take; the turns of all queues are merged from the first few of each.
    queues = [where.queue.encode()] if where.queue is not None else _queues(db)
    own = [Term("queue = CAST(? AS TEXT)", (queue,)) for queue in queues]
    parts = [_select(db, code, [each, *terms], limit, newest=newest) for each in own]
    return list(heapq.merge(*parts, key=_position, reverse=newest))[:limit]


def _terms(where: JobFilter) -> list[Term]:
    terms = []
    if where.kind is not None:
        terms.append(Term("kind = ?", (where.kind,)))
    if where.reason is not None:
        terms.append(Term("reason = ?", (where.reason,)))
    if where.error_contains is not None:
        terms.append(Term("instr(error, ?) > 0", (where.error_contains,)))
    return terms


def _bounds(where: JobFilter, start: Start | None, *, newest: bool) -> list[Term]:
    """Between which instants, and from which cursor on. Where the cursor is the narrower bound it stands alone: SQLite
    seeks to one of two bounds and reads on from there."""
    low = None if where.finished_after is None else to_micros(where.finished_after)
    high = None if where.finished_before is None else to_micros(where.finished_before)
    if start is None:
        terms = []
    else:
        terms = [_beyond(start, newest=newest)]
        if newest:
            high = None if high is not None and start.order < high else high
        else:
            low = None if low is not None and start.order > low else low
    if low is not None:
        terms.append(Term(f"{_GOES_AT} > ?", (low,)))
    if high is not None:
        terms.append(Term(f"{_GOES_AT} < ?", (high,)))
    return terms


def _beyond(start: Start, *, newest: bool) -> Term:
    order = _ORDERS[start.code]
    return Term(f"({order}, seq) {'<' if newest else '>'} (?, ?)", (start.order, start.seq))


def _select(db: apsw.Connection, code: int, terms: Iterable[Term], limit: int, *, newest: bool) -> list[StateRow]:
    order, way = _ORDERS[code], "DESC" if newest else "ASC"
    terms = [Term(_PLACES[code], ()), *terms]
    found = db.execute(
        f"SELECT CAST(json_group_array({state_columns(order)}) AS BLOB) FROM (SELECT * FROM jobs"
        f" WHERE {' AND '.join(term.sql for term in terms)} ORDER BY {order} {way}, seq {way} LIMIT ?)",
        (*(value for term in terms for value in term.values), limit),
    ).get
    return decode_states(found)


def _queues(db: apsw.Connection) -> list[bytes]:
    return [queue for (queue,) in db.execute("SELECT CAST(queue AS BLOB) FROM counts WHERE place = 0 AND n > 0")]


def _bounded(limit: int) -> int:
    check_limit(limit, "jobs")
    return min(limit, PAGE_MAX)


def _cut(rows: Sequence[StateRow], limit: int, now: int) -> Page[JobState]:
    shown = rows[:limit]
    return Page(
        items=tuple(state_of(row, now) for row in shown),
        cursors=tuple(f"{_NAMES.get(row.place, _NAMES[_INVALID])}:{row.order}:{row.seq}" for row in shown),
        at=from_micros(now),
        more=len(rows) > limit,
    )
