"""Putting jobs, and delayed jobs that become ready. For the writer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import repeat

import apsw

from wrasse.backends.sqlite.bulk import texts, write_rows
from wrasse.backends.sqlite.rows import INLINE_BYTES_MAX, micros, span
from wrasse.backends.sqlite.step import DELAYED, READY, Step
from wrasse.clock import to_micros
from wrasse.ports.jobs import BATCH_MAX, Job

_INSERT = (
    "INSERT INTO jobs (seq, id, place, queue, rank, ready_at, created_at, kind, priority, size, lasting, timeout,"
    " not_before, delay, headers, payload)"
)
_KNOWN = """
    SELECT json_group_array(id) FROM (
      SELECT id FROM jobs WHERE id IN carray(?1) UNION ALL
      SELECT id FROM ids WHERE id IN carray(?1) AND forget_at > ?2)
"""
_DUE = "SELECT seq, queue FROM jobs WHERE place = 1 AND ready_at <= ? ORDER BY ready_at, seq LIMIT ?"


def put(step: Step, jobs: Sequence[Job], now: int) -> list[bool]:
    """Makes the jobs ready; False for each whose id is known already."""
    if not jobs:
        return []
    promote(step, now)
    known = set(json.loads(step.db.execute(_KNOWN, (texts(job.id for job in jobs), now)).get))
    answer, fresh = [], []
    for job in jobs:
        answer.append(job.id not in known)
        if job.id not in known:
            known.add(job.id)
            fresh.append(job)
    _insert(step, fresh, now)
    return answer


def promote(step: Step, now: int) -> bool:
    """Moves delayed jobs that are due to the ends of their queues; True if there were any."""
    due = step.next_due()
    if due is None or due > now:
        return False
    rows: list[tuple[int, str]]
    while rows := list(step.db.execute(_DUE, (now, BATCH_MAX))):
        turns = [(seq, rank) for rank, (seq, _) in enumerate(rows, step.draw(len(rows)))]
        write_rows(
            step.db,
            "WITH turn (seq, rank) AS (",
            turns,
            ") UPDATE jobs SET place = 0, rank = turn.rank FROM turn WHERE jobs.seq = turn.seq",
        )
        for queue, count in Counter(queue for _, queue in rows).items():
            step.moved(queue, DELAYED, READY, count)
    step.due_changed()
    return True


def _insert(step: Step, jobs: Sequence[Job], now: int) -> None:
    first = step.draw(len(jobs))
    dues = [_due(job, now) for job in jobs]
    rows = [_row(job, seq, now, due) for seq, (job, due) in enumerate(zip(jobs, dues, strict=True), first)]
    write_rows(step.db, _INSERT, rows)
    for seq, job in enumerate(jobs, first):
        if len(job.payload) > INLINE_BYTES_MAX:
            step.db.execute("INSERT INTO payloads VALUES (?, ?)", (seq, job.payload))
    delayed = [due for due in dues if due > now]
    places = [DELAYED if due > now else READY for due in dues] if delayed else repeat(READY)
    for (queue, place), count in Counter(zip((job.queue for job in jobs), places, strict=False)).items():
        step.moved(queue, None, place, count)
    if delayed:
        step.due_changed(min(delayed))


def _due(job: Job, now: int) -> int:
    asked = now if job.not_before is None else to_micros(job.not_before)
    return max(asked, now + span(job.delay), now)


def _row(job: Job, seq: int, now: int, due: int) -> tuple[apsw.SQLiteValue, ...]:
    size = len(job.payload)
    return (
        seq,
        job.id,
        DELAYED if due > now else READY,
        job.queue,
        seq,
        due,
        now,
        job.kind,
        job.priority,
        size,
        job.lasting,
        None if job.timeout is None else span(job.timeout),
        micros(job.not_before),
        span(job.delay) or None,
        json.dumps(dict(job.headers)) if job.headers else None,
        job.payload if size <= INLINE_BYTES_MAX else None,
    )
