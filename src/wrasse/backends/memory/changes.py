"""What each move makes of a stored job. Pure: whether the move is allowed was decided by whoever asks."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from wrasse.backends.memory.shelves import Row
from wrasse.ports.jobs import (
    ERROR_CHARS_MAX,
    HISTORY_MAX,
    Attempt,
    Bury,
    Job,
    JobState,
    Place,
    Reason,
    Requeue,
)


def added(job: Job, seq: int, rank: int, now: datetime) -> Row:
    """A new job: ready, or delayed until its producer wants it."""
    due = max(job.not_before or now, now + job.delay, now)
    if job.headers:
        job = replace(job, headers=dict(job.headers))  # what the producer does with its own is not our business
    state = JobState(
        id=job.id,
        kind=job.kind,
        queue=job.queue,
        priority=job.priority,
        size=len(job.payload),
        place=Place.READY,
        token=0,
        nonce="",
        attempts=0,
        failures=0,
        rescues=0,
        interruptions=0,
        created_at=now,
        not_before=due if due > now else None,
    )
    return Row(seq, rank, ready_at=due, job=job, state=state)


def readied(row: Row, rank: int, due: datetime, now: datetime) -> Row:
    """What a requeue or a revival left, ready or delayed, with its turn."""
    state = replace(row.state, place=Place.READY, not_before=due if due > now else None)
    return replace(row, rank=rank, ready_at=due, state=state)


def taken(row: Row, token: int, worker: str, now: datetime, until: datetime) -> Row:
    """Ready to held."""
    state = replace(
        row.state,
        place=Place.HELD,
        token=token,
        nonce=f"{token:x}",
        attempts=row.state.attempts + 1,
        worker=worker,
        taken_at=now,
        beat_at=now,
        until=until,
    )
    return replace(row, state=state)


def finished(row: Row, result: bytes | None, now: datetime) -> Row:
    """Held to done."""
    kept_until = now + row.job.keep if row.job.keep > timedelta(0) else None
    state = replace(row.state, place=Place.DONE, until=None, finished_at=now, kept_until=kept_until)
    return replace(row, state=state, result=result)


def requeued(row: Row, requeue: Requeue, now: datetime) -> Row:
    """Held to ready; when and in which turn is for `readied` to say."""
    row = _noted(row, requeue.reason, requeue.error, now)
    return replace(row, state=row.state.spent(requeue.spends).freed)


def buried(row: Row, bury: Bury, now: datetime) -> Row:
    """Held to dead."""
    row = _noted(row, bury.reason, bury.error, now)
    return _died(replace(row, state=row.state.spent(bury.spends)), bury.reason, bury.error, now)


def cancelled(row: Row, error: str, now: datetime) -> Row:
    """Ready or held to dead. Only what was held had an attempt to note."""
    if row.state.place is Place.HELD:
        row = _noted(row, Reason.CANCELLED, error, now)
    return _died(row, Reason.CANCELLED, error, now)


def revived(row: Row) -> Row:
    """Dead to ready, with fresh budgets."""
    return replace(row, state=replace(row.state.freed, failures=0, rescues=0))


def with_token(row: Row, token: int) -> Row:
    """The same, under a token that no holder has."""
    return replace(row, state=replace(row.state, token=token))


def _died(row: Row, reason: Reason, error: str, now: datetime) -> Row:
    state = replace(
        row.state,
        place=Place.DEAD,
        not_before=None,
        until=None,
        finished_at=now,
        reason=reason,
        error=error[:ERROR_CHARS_MAX],
    )
    return replace(row, state=state)


def _noted(row: Row, reason: Reason, error: str, now: datetime) -> Row:
    """With the attempt that just ended in its history."""
    state = row.state
    assert state.taken_at is not None, "an attempt begins with a take"
    attempt = Attempt(state.attempts, state.worker, state.taken_at, now, reason, error[:ERROR_CHARS_MAX])
    return replace(row, history=(*row.history, attempt)[-HISTORY_MAX:])
