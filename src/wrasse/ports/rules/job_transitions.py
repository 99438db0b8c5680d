"""The transitions of a job that is kept as one record: what each request makes of it; pure.

Queues built on records read one, ask here what becomes of it, and write that back under the version they read; the
queue in memory asks the same. So every rule about states, tokens, deadlines and budgets is in this file, and of two who
race one is told to look again. None means: what the request expects is not so, and nothing is to be written.

A record remembers the requests that put and settled it, so that whoever asks again after a lost reply, or after a
restart, gets the first answer. `rank` is its turn among the ready ones: below zero it is served next, the newest first;
above, in the order they came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self, TypeVar

from wrasse.clock import to_micros
from wrasse.ports.jobs import (
    HISTORY_MAX,
    Attempt,
    Budget,
    Cancel,
    Claim,
    ClaimedJob,
    Complete,
    DeadLetterJob,
    Delete,
    Job,
    JobInfo,
    JobRecord,
    JobState,
    Move,
    Progress,
    Reason,
    Requeue,
    RequeueDead,
    Settlement,
    error_text,
)

SETTLED_KEPT = 4  # requests that settled a job, the newest
_AT_ONCE = timedelta(0)
_RANKS = 1_000  # in one microsecond
R = TypeVar("R", bound="StoredJob")


class JobStatus(StrEnum):
    """The four states, with scheduled jobs apart: they are ordered by when they become ready, not by rank."""

    READY = "ready"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"


_STATUSES = {state: JobStatus(state.value) for state in JobState}


@dataclass(frozen=True, slots=True)
class SettledRequest:
    """A request that ended an attempt, and the token it named."""

    token: int
    request: str


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job whole, with what its queue needs to know of it. `follow` are jobs that its finish promised and that are not
    put yet."""

    job: Job
    info: JobInfo
    rank: int = 0
    history: tuple[Attempt, ...] = ()
    result: bytes | None = None
    progress: Progress | None = None
    enqueued_by: str = ""
    settled: tuple[SettledRequest, ...] = ()
    follow: tuple[Job, ...] = ()

    def at(self, at: datetime) -> Self:
        """As it is at this moment: a job whose delay is over is no longer scheduled."""
        due = self.info.not_before
        if self.info.state is not JobState.READY or due is None or due > at:
            return self
        return replace(self, info=replace(self.info, not_before=None))

    @property
    def scheduled(self) -> bool:
        """Ready, and not yet."""
        return self.info.not_before is not None

    @property
    def status(self) -> JobStatus:
        """Where it is listed and counted."""
        return JobStatus.SCHEDULED if self.info.not_before is not None else _STATUSES[self.info.state]

    @property
    def index_position(self) -> int:
        """Its turn there: its rank while it is ready, else in microseconds."""
        info = self.info
        if info.not_before is not None:
            return to_micros(info.not_before)
        if info.state is JobState.READY:
            return self.rank
        moment = info.deadline if info.state is JobState.RUNNING else info.kept_until or info.finished_at
        return 0 if moment is None else to_micros(moment)

    @property
    def served_next(self) -> bool:
        """Was released or rescued, and goes before whoever waits."""
        return self.info.state is JobState.READY and self.rank < 0

    @property
    def shown(self) -> JobRecord:
        """As the port shows it."""
        return JobRecord(self.job, self.info, self.history, self.result, self.progress)

    @property
    def claimed(self) -> ClaimedJob:
        """As its worker gets it."""
        return self.info.claimed(self.job)


def check_stored(stored: StoredJob) -> None:
    """A ValueError for a job that was read and that no change could be made to: its parts contradict one another."""
    info, job = stored.info, stored.job
    if min(info.token, info.size, info.attempts, info.failures, info.rescues, info.interruptions) < 0:
        raise ValueError("one of its counts is negative")
    if (job.id, job.queue) != (info.id, info.queue) or not info.id:
        raise ValueError("its job and its state are of different jobs")
    if info.state is JobState.RUNNING and (info.deadline is None or info.claimed_at is None):
        raise ValueError("it is running, without a claim")
    if info.state in (JobState.DONE, JobState.DEAD) and info.finished_at is None:
        raise ValueError("it is finished, at no time")


def back(at: datetime) -> int:
    """The turn of a job that joins its queue at this moment."""
    return to_micros(at) * _RANKS


def new_info(job: Job, at: datetime, retries_max: int | None = None) -> JobInfo:
    """The state of a new job: ready, or scheduled until its producer wants it."""
    due = max(job.not_before or at, at + job.delay, at)
    return JobInfo(
        id=job.id,
        kind=job.kind,
        queue=job.queue,
        priority=job.priority,
        size=len(job.payload),
        state=JobState.READY,
        token=0,
        nonce="",
        attempts=0,
        failures=0,
        rescues=0,
        interruptions=0,
        created_at=at,
        not_before=due if due > at else None,
        retries_max=retries_max,
    )


def copied(job: Job) -> Job:
    """The job with headers of its own: what the producer does with theirs later changes nothing."""
    return replace(job, headers=dict(job.headers)) if job.headers else job


def added(job: Job, at: datetime, *, rank: int, request: str = "", retries_max: int | None = None) -> StoredJob:
    """A new job."""
    return StoredJob(copied(job), new_info(job, at, retries_max), rank, enqueued_by=request)


def claim(
    record: R, at: datetime, *, worker: str, nonce: str, heartbeat_timeout: timedelta, token: int | None = None
) -> R | None:
    """Ready to running; None for a job that is not ready at this moment."""
    record = record.at(at)
    if record.info.state is not JobState.READY or record.scheduled:
        return None
    info = replace(
        record.info,
        state=JobState.RUNNING,
        # Above every token of an earlier job of this id, which nobody may remember any more.
        token=max(record.info.token + 1, to_micros(at)) if token is None else token,
        nonce=nonce,
        attempts=record.info.attempts + 1,
        worker=worker,
        claimed_at=at,
        heartbeat_at=at,
        deadline=at + heartbeat_timeout,
    )
    return replace(record, info=info)


def unclaim(record: R, at: datetime) -> R:
    """Undoes a claim of which nobody was told: the attempt was none, and the job is served next."""
    before = record.info
    info = replace(before.freed, state=JobState.READY, token=before.token + 1, attempts=before.attempts - 1)
    return replace(record, info=info, rank=-back(at))


def heartbeat(
    record: R, claim: Claim, at: datetime, *, heartbeat_timeout: timedelta, progress: Progress | None = None
) -> R | None:
    """Extends a claim; None if it is no longer the current one."""
    if not is_current(record, claim):
        return None
    told = record.progress if progress is None else replace(progress, at=at)
    return replace(record, info=replace(record.info, heartbeat_at=at, deadline=at + heartbeat_timeout), progress=told)


def is_current(record: StoredJob, claim: Claim) -> bool:
    """Is this the current claim?"""
    return record.info.state is JobState.RUNNING and record.info.claim == claim


def settled_by(record: StoredJob, claim: Claim, request: str) -> bool:
    """Did this very request end the attempt of this claim?"""
    return SettledRequest(claim.token, request) in record.settled


def settle(record: R, settlement: Settlement, at: datetime, *, request: str, rank: int) -> R | None:
    """Ends an attempt, by its worker; None if the claim is no longer current. `rank` is the turn of who comes now. An
    empty request is not noted in the record."""
    if not is_current(record, settlement.claim):
        return None
    if request:
        mark = SettledRequest(settlement.claim.token, request)
        record = replace(record, settled=(*record.settled, mark)[-SETTLED_KEPT:])
    match settlement:
        case Complete():
            return _finished(record, settlement, at)
        case Requeue():
            return _requeued(record, settlement, at, rank)
        case DeadLetterJob():
            return _dead_lettered(record, settlement, at)


def move(record: R, move: Move, at: datetime, *, rank: int, token: int | None = None) -> R | None:
    """A move by anybody but the worker; None if what it expects is not so. From then on an old worker is refused."""
    if not _movable(record, move, at):
        return None
    token = record.info.token + 1 if token is None else token
    record = replace(record, info=replace(record.info, token=token))
    match move:
        case Requeue():
            return _requeued(record, move, at, rank)
        case DeadLetterJob():
            return _dead_lettered(record, move, at)
        case RequeueDead():
            info = replace(record.info.freed, failures=0, rescues=0)
            return _readied(replace(record, info=info), at, move.delay, rank)
        case Cancel():
            return _cancelled(record, move.error, at)


def rescues(info: JobInfo, most: int) -> tuple[int, int]:
    """How often a job was rescued, and how often it may be: at `most`, but for a job with a budget of its own for
    retries of any kind."""
    if info.retries_max is None:
        return info.rescues, most
    return info.failures + info.rescues, info.retries_max


def rescue(info: JobInfo, at: datetime, most: int) -> Requeue | DeadLetterJob:
    """What becomes of a running job whose worker stopped its heartbeat."""
    silent = f"worker {info.worker} silent for {int((at - (info.heartbeat_at or at)).total_seconds())} s"
    so_far, most = rescues(info, most)
    if so_far >= most:
        return DeadLetterJob(info.claim, Reason.WORKER_DIED, error=silent, spends=Budget.RESCUES)
    return Requeue(info.claim, Budget.RESCUES, Reason.WORKER_DIED, error=silent)


def deletable(record: StoredJob, delete: Delete, at: datetime) -> bool:
    """May this job be deleted, as it is now?"""
    info = record.info
    if delete.state is JobState.RUNNING or info.state is not delete.state or info.claim != delete.claim:
        return False
    return info.state is not JobState.DONE or info.kept_until is None or info.kept_until <= at


def _movable(record: StoredJob, move: Move, at: datetime) -> bool:
    match move:
        case Requeue() | DeadLetterJob():
            until = record.info.deadline
            return is_current(record, move.claim) and until is not None and until <= at
        case RequeueDead():
            return record.info.state is JobState.DEAD and record.info.claim == move.claim
        case Cancel():
            return record.info.state in (JobState.READY, JobState.RUNNING)


def _finished(record: R, finish: Complete, at: datetime) -> R:
    kept_until = at + record.job.keep if record.job.keep > _AT_ONCE else None
    info = replace(record.info, state=JobState.DONE, deadline=None, finished_at=at, kept_until=kept_until)
    return replace(record, info=info, result=finish.result, follow=finish.enqueues)


def _requeued(record: R, requeue: Requeue, at: datetime, rank: int) -> R:
    record = _noted(record, requeue.reason, requeue.error, at)
    info = record.info.spent(requeue.spends).freed
    index_position = rank if requeue.delay > _AT_ONCE else -rank
    return _readied(replace(record, info=info), at, requeue.delay, index_position)


def _readied(record: R, at: datetime, delay: timedelta, rank: int) -> R:
    not_before = at + delay if delay > _AT_ONCE else None
    return replace(record, info=replace(record.info, state=JobState.READY, not_before=not_before), rank=rank)


def _dead_lettered(record: R, change: DeadLetterJob, at: datetime) -> R:
    record = _noted(record, change.reason, change.error, at)
    return _died(replace(record, info=record.info.spent(change.spends)), change.reason, change.error, at)


def _cancelled(record: R, error: str, at: datetime) -> R:
    if record.info.state is JobState.RUNNING:  # only what was held had an attempt to note
        record = _noted(record, Reason.CANCELLED, error, at)
    return _died(record, Reason.CANCELLED, error, at)


def _died(record: R, reason: Reason, error: str, at: datetime) -> R:
    error = error_text(error)
    info = replace(record.info, state=JobState.DEAD, not_before=None, deadline=None, finished_at=at)
    return replace(record, info=replace(info, reason=reason, error=error))


def _noted(record: R, reason: Reason, error: str, at: datetime) -> R:
    """With the attempt that just ended in its history."""
    info = record.info
    assert info.claimed_at is not None, "an attempt begins with a claim"
    attempt = Attempt(info.attempts, info.worker, info.claimed_at, at, reason, error_text(error))
    return replace(record, history=(*record.history, attempt)[-HISTORY_MAX:])
