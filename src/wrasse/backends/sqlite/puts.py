"""Putting jobs, and delayed jobs that become ready. For the writer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import count, repeat

import apsw

from wrasse.backends.sqlite.bulk import texts, write_rows
from wrasse.backends.sqlite.rows import INLINE_BYTES_MAX, span
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
    ids = [job.id for job in jobs]
    known = set(json.loads(step.db.execute(_KNOWN, (texts(ids), now)).get))
    if not known and len(set(ids)) == len(ids):
        _insert(step, jobs, now)
        return [True] * len(jobs)
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
        for queue, many in Counter(queue for _, queue in rows).items():
            step.moved(queue, DELAYED, READY, many)
    step.due_changed()
    return True


def _insert(step: Step, jobs: Sequence[Job], now: int) -> None:
    first = step.draw(len(jobs))
    dues = [_due(job, now) for job in jobs]
    write_rows(step.db, _INSERT, list(map(_row, jobs, count(first), dues, repeat(now))))
    for seq, job in enumerate(jobs, first):
        if len(job.payload) > INLINE_BYTES_MAX:
            step.db.execute("INSERT INTO payloads VALUES (?, ?)", (seq, job.payload))
    queues = Counter(job.queue for job in jobs)
    if delayed := [(job.queue, due) for job, due in zip(jobs, dues, strict=True) if due > now]:
        step.due_changed(min(due for _, due in delayed))
        for queue, many in Counter(queue for queue, _ in delayed).items():
            step.moved(queue, None, DELAYED, many)
            queues[queue] -= many
    for queue, many in queues.items():
        if many:
            step.moved(queue, None, READY, many)


def _due(job: Job, now: int) -> int:
    due = now
    if job.delay:
        due = max(due, now + span(job.delay))
    if job.not_before is not None:
        due = max(due, to_micros(job.not_before))
    return due


def _row(job: Job, seq: int, due: int, now: int) -> tuple[apsw.SQLiteValue, ...]:
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
        None if job.not_before is None else to_micros(job.not_before),
        span(job.delay) if job.delay else None,
        json.dumps(dict(job.headers)) if job.headers else None,
        job.payload if size <= INLINE_BYTES_MAX else None,
    )
