"""Enqueueing jobs, and scheduled jobs that become ready. For the writer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import count, repeat

import apsw
import msgspec

from wrasse.backends.sqlite.rows import INLINE_BYTES_MAX, Extras, span
from wrasse.backends.sqlite.write_transaction import (
    READY,
    SCHEDULED,
    WriteTransaction,
    decode_numbers,
    decode_texts,
    texts,
    write_rows,
)
from wrasse.clock import to_micros
from wrasse.ports.jobs import BATCH_MAX, Job

_NAMES_FORGOTTEN = 2  # expired names that are looked for at every new one
# With an end, the time decides; without one, whether the job is finished.
_COUNTS = """
    CASE WHEN until IS NULL THEN EXISTS (SELECT 1 FROM jobs WHERE jobs.id = uniques.id AND state < 3)
      ELSE until > ?1 END
"""
_NAME_IN_USE = f"SELECT id FROM uniques WHERE name = ?2 AND {_COUNTS}"
_OLDEST_NAMES = f"SELECT n, {_COUNTS} FROM uniques ORDER BY n LIMIT {_NAMES_FORGOTTEN}"
_TO_THE_END = "UPDATE uniques SET n = (SELECT max(n) + 1 FROM uniques) WHERE n = ?"
_ASSIGN_NAME = """
    INSERT INTO uniques (name, id, until) VALUES (?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET id = excluded.id, until = excluded.until
"""
# Most jobs are ready at once and have only defaults: half of their columns are constants in SQL.
_INSERT_PLAIN = """
    INSERT INTO jobs (seq, id, state, queue, rank, ready_at, created_at, kind, priority, size, lasting, payload)
    SELECT column1, column2, 0, column3, column1, ?, ?, column4, column5, length(column7), column6, column7 FROM (
"""
_INSERT = """
    INSERT INTO jobs (seq, id, state, queue, rank, ready_at, created_at, kind, priority, size, lasting, timeout,
      not_before, delay, headers, payload, extras, keep, member)
"""
_UNLESS_KNOWN = "ON CONFLICT (id) DO NOTHING"
_KEPT_IDS = "SELECT json_group_array(id) FROM ids WHERE id IN carray(?) AND forget_at > ?"
_IS_KNOWN = """
    SELECT EXISTS (SELECT 1 FROM jobs WHERE id = ?) OR EXISTS (SELECT 1 FROM ids WHERE id = ? AND forget_at > ?)
"""
_SELECT_STORED = "SELECT json_group_array(seq) FROM jobs WHERE seq >= ? AND seq < ?"
_encode_extras = msgspec.json.Encoder().encode
_DUE_JOBS = "SELECT seq, CAST(queue AS BLOB) FROM jobs WHERE state = 1 AND ready_at <= ? ORDER BY ready_at, seq LIMIT ?"


def enqueue(tx: WriteTransaction, jobs: Sequence[Job], now: int) -> Sequence[bool | str]:
    """Makes the jobs ready; False for each whose id is known already, and for each whose unique name is in use the id
    of the job that has it."""
    if not jobs:
        return []
    promote(tx, now)
    if any(job.unique for job in jobs):
        return [_enqueue_unique(tx, job, now) for job in jobs]
    return _enqueue_all(tx, jobs, now)


def _enqueue_unique(tx: WriteTransaction, job: Job, now: int) -> bool | str:
    """One at a time: each may conflict with the next. A known id is reported before a used name. Each new name drops
    some expired ones."""
    other = tx.db.execute(_NAME_IN_USE, (now, job.unique)).get if job.unique else None
    if other is not None:
        known = tx.db.execute(_IS_KNOWN, (job.id, job.id, now)).get
        return False if known else str(other)
    (new,) = _enqueue_all(tx, [job], now)
    if new and job.unique:
        for n, counts in list(tx.db.execute(_OLDEST_NAMES, (now,))):
            tx.db.execute(_TO_THE_END if counts else "DELETE FROM uniques WHERE n = ?", (n,))
        tx.db.execute(_ASSIGN_NAME, (job.unique, job.id, now + span(job.window) if job.window else None))
    return new


def _enqueue_all(tx: WriteTransaction, jobs: Sequence[Job], now: int) -> list[bool]:
    kept = set(decode_texts(tx.db.execute(_KEPT_IDS, (texts([job.id for job in jobs]), now)).get))
    fresh = [job for job in jobs if job.id not in kept] if kept else jobs
    first = tx.draw(len(fresh))
    stored = _insert(tx, fresh, first, now)
    if len(stored) == len(jobs):
        return [True] * len(jobs)
    # Of two jobs with one id in this batch the second was not stored, so the numbers decide, not the ids.
    seqs = count(first)
    return [job.id not in kept and next(seqs) in stored for job in jobs]


def promote(tx: WriteTransaction, now: int) -> bool:
    """Moves scheduled jobs that are due to the ends of their queues; True if there were any."""
    due = tx.next_due()
    if due is None or due > now:
        return False
    rows: list[tuple[int, bytes]]
    while rows := list(tx.db.execute(_DUE_JOBS, (now, BATCH_MAX))):
        turns = [(seq, rank) for rank, (seq, _) in enumerate(rows, tx.draw(len(rows)))]
        write_rows(
            tx.db,
            "WITH turn (seq, rank) AS (",
            turns,
            ") UPDATE jobs SET state = 0, rank = turn.rank FROM turn WHERE jobs.seq = turn.seq",
        )
        for queue, many in Counter(queue for _, queue in rows).items():
            tx.moved(queue.decode("utf-8", "replace"), SCHEDULED, READY, many)
    tx.due_changed()
    return True


def _insert(tx: WriteTransaction, jobs: Sequence[Job], first: int, now: int) -> Collection[int]:
    """Stores those whose id is new, numbered from `first`; returns the numbers that were stored."""
    before = tx.db.total_changes()
    special = not all(map(_is_plain, jobs))
    if special:
        write_rows(tx.db, _INSERT, list(map(_row, jobs, count(first), repeat(now))), _UNLESS_KNOWN)
    else:
        plain = [(seq, j.id, j.queue, j.kind, j.priority, j.lasting, j.payload) for seq, j in enumerate(jobs, first)]
        write_rows(tx.db, _INSERT_PLAIN, plain, f") WHERE true {_UNLESS_KNOWN}", start=(now, now))
    stored: Collection[int] = range(first, first + len(jobs))
    if tx.db.total_changes() - before < len(jobs):
        stored = set(decode_numbers(tx.db.execute(_SELECT_STORED, (first, first + len(jobs))).get))
        jobs = [job for seq, job in enumerate(jobs, first) if seq in stored]
    delayed: list[Job] = []
    if special:
        for seq, job in zip(sorted(stored), jobs, strict=True):
            if len(job.payload) > INLINE_BYTES_MAX:
                tx.db.execute("INSERT INTO payloads VALUES (?, ?)", (seq, job.payload))
        delayed = [job for job in jobs if _due(job, now) > now]
    queues = Counter([job.queue for job in jobs])
    if delayed:
        tx.due_changed(min(_due(job, now) for job in delayed))
        for queue, many in Counter([job.queue for job in delayed]).items():
            tx.moved(queue, None, SCHEDULED, many)
            queues[queue] -= many
    for queue, many in (+queues).items():
        tx.moved(queue, None, READY, many)
    return stored


def _is_plain(job: Job) -> bool:
    return not (
        job.delay
        or job.headers
        or job.not_before is not None
        or job.timeout is not None
        or job.unique
        or job.keep
        or job.group
        or len(job.payload) > INLINE_BYTES_MAX
    )


def _due(job: Job, now: int) -> int:
    due = now
    if job.delay:
        due = max(due, now + span(job.delay))
    if job.not_before is not None:
        due = max(due, to_micros(job.not_before))
    return due


def _row(job: Job, seq: int, now: int) -> tuple[apsw.SQLiteValue, ...]:
    due = _due(job, now)
    size = len(job.payload)
    return (
        seq,
        job.id,
        SCHEDULED if due > now else READY,
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
        _extras(job),
        span(job.keep),
        bool(job.group),
    )


def _extras(job: Job) -> str | None:
    if not (job.unique or job.keep or job.group):
        return None
    return _encode_extras(Extras(job.unique, span(job.window), span(job.keep), job.group)).decode()
