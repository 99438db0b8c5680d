"""Listings of jobs, each read from the index that has its order. For the reader.

A cursor is a position in an index, not a job: the next page begins there even if that job has moved.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter

import apsw
import msgspec

from wrasse.backends.sqlite.jobs.changes import DEAD_WORKERS_KEPT
from wrasse.backends.sqlite.jobs.claim import job_of
from wrasse.backends.sqlite.rows import (
    BODY,
    StateRow,
    decode_bodies,
    decode_states,
    flaw_of,
    in_calendar,
    instant,
    long_payloads,
    span,
    state_columns,
    state_of,
)
from wrasse.backends.sqlite.write_transaction import DEAD, DONE, NOWHERE, READY, RUNNING, SCHEDULED, text
from wrasse.bounded import UNREADABLE, why
from wrasse.clock import from_micros, to_micros
from wrasse.ports.jobs import (
    Attempt,
    Counts,
    Job,
    JobFilter,
    JobInfo,
    JobRecord,
    JobState,
    Progress,
    QueueCount,
    Reason,
    WorkerInfo,
    WorkerState,
)
from wrasse.ports.page import Page, check_limit, no_cursor, number_in, other_listing

PAGE_MAX = 10_000

_INVALID = DEAD + 1  # stands for every invalid state: listed after the dead
_NAMES = {READY: "ready", SCHEDULED: "scheduled", RUNNING: "running", DONE: "done", DEAD: "dead", _INVALID: "invalid"}
_CODES = {name: code for code, name in _NAMES.items()}
_GOES_AT = "finished_at + keep"  # the expression that is indexed
_ORDERS = {READY: "rank", SCHEDULED: "ready_at", RUNNING: "deadline", DONE: _GOES_AT, DEAD: _GOES_AT, _INVALID: "seq"}
# The conditions that make SQLite use the index of each state.
_STATES = {code: f"state = {code}" if code < DONE else f"state >= 3 AND state = {code}" for code in _NAMES}
_STATES[_INVALID] = NOWHERE
_position = attrgetter("order", "seq")
_SELECT_JOB = f"""
    SELECT CAST(json_array({state_columns("seq")}) AS BLOB), CAST(json_array({BODY}) AS BLOB), result,
      CAST(progress AS BLOB)
    FROM jobs WHERE id = ?
"""
_decode_progress = msgspec.json.Decoder(tuple[float, str, int]).decode
_HISTORY = """
    SELECT number, CAST(worker AS BLOB), claimed_at, ended_at, CAST(reason AS BLOB), CAST(error AS BLOB) FROM attempts
    WHERE seq = ? ORDER BY number
"""
_NOWHERE = f"SELECT CAST(queue AS BLOB) FROM jobs WHERE {NOWHERE}"
# Ranks below zero are served next, the newest of them first; the others wait in order of arrival.
_OLDEST_READY = """
    SELECT CAST(queue AS BLOB),
      (SELECT ready_at FROM jobs WHERE state = 0 AND queue = counts.queue AND rank < 0 ORDER BY rank DESC LIMIT 1),
      (SELECT ready_at FROM jobs WHERE state = 0 AND queue = counts.queue AND rank >= 0 ORDER BY rank LIMIT 1)
    FROM counts WHERE state = 0 AND n > 0
"""


@dataclass(frozen=True, slots=True)
class Term:
    """One condition of a listing."""

    sql: str
    values: tuple[int | str | bytes, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """A cursor: the state it is in, and the position there."""

    code: int
    order: int
    seq: int


def scheduled_are_due(db: apsw.Connection, now: int) -> bool:
    """Whether scheduled jobs must be promoted before ready jobs can be listed or counted."""
    due = db.execute("SELECT min(ready_at) FROM jobs WHERE state = 1").get
    return due is not None and due <= now


def page(
    db: apsw.Connection, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool, now: int
) -> Page[JobInfo]:
    """Jobs of one state that match, in its order."""
    limit = check_limit(limit, "jobs", PAGE_MAX)
    codes = _codes(state, where)
    if newest:
        codes.reverse()
    start = None if after is None else parse_cursor(after)
    if start is not None and start.code not in codes:
        raise other_listing(after)
    rows: list[StateRow] = []
    for code in codes[0 if start is None else codes.index(start.code) :]:
        begin = start if start is not None and start.code == code else None
        rows += _rows(db, code, where, begin, limit + 1 - len(rows), newest=newest)
        if len(rows) > limit:
            break
    return _cut(rows, limit, now)


def overdue(db: apsw.Connection, after: str | None, limit: int, now: int) -> Page[JobInfo]:
    """Running jobs whose deadline has passed, longest ago first."""
    limit = check_limit(limit, "jobs", PAGE_MAX)
    terms = [Term("deadline <= ?", (now,))]
    if after is not None:
        terms.append(_beyond(parse_cursor(after), newest=False))
    return _cut(_select(db, RUNNING, terms, limit + 1, newest=False), limit, now)


def parse_cursor(cursor: str) -> Start:
    """What `_cut` wrote."""
    try:
        name, order, seq = cursor.split(":")
        return Start(_CODES[name], number_in(cursor, order), number_in(cursor, seq))
    except (ValueError, KeyError):
        raise no_cursor(cursor) from None


def _codes(state: JobState, where: JobFilter) -> list[int]:
    if state is not JobState.READY:
        codes = [DEAD, _INVALID] if state is JobState.DEAD else [_CODES[state]]
        return [] if where.scheduled else codes
    return {None: [READY, SCHEDULED], True: [SCHEDULED], False: [READY]}[where.scheduled]


def _rows(
    db: apsw.Connection, code: int, where: JobFilter, start: Start | None, limit: int, *, newest: bool
) -> list[StateRow]:
    terms = _terms(where) + _bounds(where, start, newest=newest)
    if code != READY:
        if where.queue is not None:
            terms.append(Term("queue = ?", (where.queue,)))
        return _select(db, code, terms, limit, newest=newest)
    # Ranks are indexed by queue, for claims; those of all queues are merged from the first few of each.
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
    """The range of instants, after the cursor. If the cursor is the narrower bound it is used alone: SQLite seeks to
    one of two bounds and reads on from there."""
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
    terms = [Term(_STATES[code], ()), *terms]
    found = db.execute(
        f"SELECT CAST(json_group_array({state_columns(order)}) AS BLOB) FROM (SELECT * FROM jobs"
        f" WHERE {' AND '.join(term.sql for term in terms)} ORDER BY {order} {way}, seq {way} LIMIT ?)",
        (*(value for term in terms for value in term.values), limit),
    ).get
    return decode_states(found)


def _queues(db: apsw.Connection) -> list[bytes]:
    return [queue for (queue,) in db.execute("SELECT CAST(queue AS BLOB) FROM counts WHERE state = 0 AND n > 0")]


def _cut(rows: Sequence[StateRow], limit: int, now: int) -> Page[JobInfo]:
    found = [(f"{_NAMES.get(row.state, _NAMES[_INVALID])}:{row.order}:{row.seq}", state_of(row, now)) for row in rows]
    return Page.cut(found, limit, from_micros(now))


def record(db: apsw.Connection, id: str, now: int) -> JobRecord | None:
    """One job, whole."""
    found = db.execute(_SELECT_JOB, (id,)).get
    if found is None:
        return None
    (row,), (bodies, invalid) = decode_states(found[0]), decode_bodies(found[1])
    long = long_payloads(db, [row.seq], row.size)
    info, history = state_of(row, now), tuple(_history(db, row.seq))
    try:
        job, flaw = (job_of(bodies[0], long), "") if bodies else (_nothing_of(info), invalid[0].error)
    except UNREADABLE as error:
        job, flaw = _nothing_of(info), why(error)
    if flaw:
        info = replace(info, reason=Reason.INVALID_PAYLOAD, error=info.error or flaw_of(row.seq, flaw))
    return JobRecord(job, info, history, found[2], _progress(found[3]))


def _nothing_of(info: JobInfo) -> Job:
    """A placeholder for a job whose row is invalid."""
    return Job(info.id, kind=info.kind, queue=info.queue, priority=info.priority)


def _history(db: apsw.Connection, seq: int) -> Iterator[Attempt]:
    """Attempts that ended; not those whose rows are invalid."""
    for number, worker, claimed_at, ended_at, reason, error in db.execute(_HISTORY, (seq,)):
        with suppress(*UNREADABLE):
            times = from_micros(claimed_at), from_micros(ended_at)
            yield Attempt(number, text(worker), *times, Reason(text(reason)), text(error))


def _progress(text: bytes | None) -> Progress | None:
    if text is None:
        return None
    try:
        fraction, note, at = _decode_progress(text)
        return Progress(fraction, note, from_micros(at))
    except UNREADABLE:
        return None  # shown without it rather than not at all


def counts(db: apsw.Connection, now: int) -> Counts:
    """Jobs per queue and state, and the workers."""
    numbers: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for queue, state, n in db.execute("SELECT CAST(queue AS BLOB), state, n FROM counts WHERE n > 0 ORDER BY queue"):
        numbers[text(queue)][state] = n
    for (queue,) in db.execute(_NOWHERE):  # listed among the dead, until fsck makes them dead
        numbers[text(queue)][DEAD] = numbers[text(queue)].get(DEAD, 0) + 1
    oldest = {
        text(queue): min((at for at in (front, back) if at is not None), default=None)
        for queue, front, back in db.execute(_OLDEST_READY)
    }
    queues = tuple(
        QueueCount(
            queue,
            ready=states.get(READY, 0),
            scheduled=states.get(SCHEDULED, 0),
            running=states.get(RUNNING, 0),
            done=states.get(DONE, 0),
            dead=states.get(DEAD, 0),
            oldest_ready_at=instant(in_calendar(oldest.get(queue), now)),
        )
        for queue, states in numbers.items()
    )
    return Counts(queues, _workers(db, now), from_micros(now))


def _workers(db: apsw.Connection, now: int) -> tuple[WorkerState, ...]:
    horizon = now - span(DEAD_WORKERS_KEPT)
    return tuple(
        WorkerState(
            WorkerInfo(text(id), text(host), pid, slots),
            *(from_micros(in_calendar(at, now)) for at in (heartbeat_at, deadline)),
        )
        for id, host, pid, slots, heartbeat_at, deadline in db.execute(
            "SELECT CAST(id AS BLOB), CAST(host AS BLOB), pid, slots, heartbeat_at, deadline FROM workers"
            " WHERE deadline >= ? ORDER BY id",
            (horizon,),
        )
    )
