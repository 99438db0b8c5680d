"""One job whole, and all of them in numbers. For the reader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import apsw
import msgspec

from wrasse.backends.sqlite.beats import SILENT_WORKERS_KEPT
from wrasse.backends.sqlite.bulk import text
from wrasse.backends.sqlite.given import job_of
from wrasse.backends.sqlite.rows import (
    BODY,
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
from wrasse.backends.sqlite.step import DEAD, DELAYED, DONE, HELD, NOWHERE, READY
from wrasse.bounded import UNREADABLE, why
from wrasse.clock import from_micros
from wrasse.ports.jobs import (
    Attempt,
    Counts,
    Job,
    JobRecord,
    JobState,
    Progress,
    QueueCount,
    Reason,
    WorkerInfo,
    WorkerState,
)

_ONE = f"""
    SELECT CAST(json_array({state_columns("seq")}) AS BLOB), CAST(json_array({BODY}) AS BLOB), result,
      CAST(progress AS BLOB)
    FROM jobs WHERE id = ?
"""
_decode_progress = msgspec.json.Decoder(tuple[float, str, int]).decode
_HISTORY = """
    SELECT number, CAST(worker AS BLOB), taken_at, ended_at, CAST(reason AS BLOB), CAST(error AS BLOB) FROM attempts
    WHERE seq = ? ORDER BY number
"""
_NOWHERE = f"SELECT CAST(queue AS BLOB) FROM jobs WHERE {NOWHERE}"
# Turns below zero are served next, the newest of them first; the others wait in the order they came.
_OLDEST = """
    SELECT CAST(queue AS BLOB),
      (SELECT ready_at FROM jobs WHERE place = 0 AND queue = counts.queue AND rank < 0 ORDER BY rank DESC LIMIT 1),
      (SELECT ready_at FROM jobs WHERE place = 0 AND queue = counts.queue AND rank >= 0 ORDER BY rank LIMIT 1)
    FROM counts WHERE place = 0 AND n > 0
"""


def record(db: apsw.Connection, id: str, now: int) -> JobRecord | None:
    """One job, whole."""
    found = db.execute(_ONE, (id,)).get
    if found is None:
        return None
    (row,), (bodies, invalid) = decode_states(found[0]), decode_bodies(found[1])
    long = long_payloads(db, [row.seq], row.size)
    state, history = state_of(row, now), tuple(_history(db, row.seq))
    try:
        job, flaw = (job_of(bodies[0], long), "") if bodies else (_nothing_of(state), invalid[0].error)
    except UNREADABLE as error:
        job, flaw = _nothing_of(state), why(error)
    if flaw:
        state = replace(state, reason=Reason.INVALID_PAYLOAD, error=state.error or flaw_of(row.seq, flaw))
    return JobRecord(job, state, history, found[2], _progress(found[3]))


def _nothing_of(state: JobState) -> Job:
    """Stands for a job whose row is invalid."""
    return Job(state.id, kind=state.kind, queue=state.queue, priority=state.priority)


def _history(db: apsw.Connection, seq: int) -> Iterator[Attempt]:
    """Attempts that ended; not those whose rows are invalid."""
    for number, worker, taken_at, ended_at, reason, error in db.execute(_HISTORY, (seq,)):
        with suppress(*UNREADABLE):
            times = from_micros(taken_at), from_micros(ended_at)
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
    """Jobs per queue and place, and the workers."""
    numbers: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for queue, place, n in db.execute("SELECT CAST(queue AS BLOB), place, n FROM counts WHERE n > 0 ORDER BY queue"):
        numbers[text(queue)][place] = n
    for (queue,) in db.execute(_NOWHERE):  # listed among the dead, until fsck makes them so
        numbers[text(queue)][DEAD] = numbers[text(queue)].get(DEAD, 0) + 1
    oldest = {
        text(queue): min((at for at in (front, back) if at is not None), default=None)
        for queue, front, back in db.execute(_OLDEST)
    }
    queues = tuple(
        QueueCount(
            queue,
            ready=places.get(READY, 0),
            delayed=places.get(DELAYED, 0),
            held=places.get(HELD, 0),
            done=places.get(DONE, 0),
            dead=places.get(DEAD, 0),
            oldest_ready_at=instant(in_calendar(oldest.get(queue), now)),
        )
        for queue, places in numbers.items()
    )
    return Counts(queues, _workers(db, now), from_micros(now))


def _workers(db: apsw.Connection, now: int) -> tuple[WorkerState, ...]:
    horizon = now - span(SILENT_WORKERS_KEPT)
    return tuple(
        WorkerState(
            WorkerInfo(text(id), text(host), pid, slots),
            *(from_micros(in_calendar(at, now)) for at in (beat_at, until)),
        )
        for id, host, pid, slots, beat_at, until in db.execute(
            "SELECT CAST(id AS BLOB), CAST(host AS BLOB), pid, slots, beat_at, until FROM workers"
            " WHERE until >= ? ORDER BY id",
            (horizon,),
        )
    )
