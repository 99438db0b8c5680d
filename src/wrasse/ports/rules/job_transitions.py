"""The transitions of a job that is kept as one record: what each request makes of it; pure.

Queues built on records read one, ask here what becomes of it, and write that back under the version they read; the
queue in memory asks the same. So every rule about places, tokens, deadlines and budgets is in this file, and of two who
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
    JobRecord,
    JobState,
    Move,
    Place,
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
    """The four places, with delayed jobs apart: they are ordered by when they become ready, not by rank."""

    READY = "ready"
    DELAYED = "delayed"
    HELD = "held"
    DONE = "done"
    DEAD = "dead"


_STATUSES = {place: JobStatus(place) for place in Place}


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
    state: JobState
    rank: int = 0
    history: tuple[Attempt, ...] = ()
    result: bytes | None = None
    progress: Progress | None = None
    put_by: str = ""
    settled: tuple[SettledRequest, ...] = ()
    follow: tuple[Job, ...] = ()

    def at(self, at: datetime) -> Self:
        """As it is at this moment: a job whose delay is over is no longer delayed."""
        due = self.state.not_before
        if self.state.place is not Place.READY or due is None or due > at:
            return self
        return replace(self, state=replace(self.state, not_before=None))

    @property
    def delayed(self) -> bool:
        """Ready, and not yet."""
        return self.state.not_before is not None

    @property
    def status(self) -> JobStatus:
        """Where it is listed and counted."""
        return JobStatus.DELAYED if self.state.not_before is not None else _STATUSES[self.state.place]

    @property
    def index_position(self) -> int:
        """Its turn there: its rank while it is ready, else in microseconds."""
        state = self.state
        if state.not_before is not None:
            return to_micros(state.not_before)
        if state.place is Place.READY:
            return self.rank
        moment = state.until if state.place is Place.HELD else state.kept_until or state.finished_at
        return 0 if moment is None else to_micros(moment)

    @property
    def served_next(self) -> bool:
        """Was given back or rescued, and goes before whoever waits."""
        return self.state.place is Place.READY and self.rank < 0

    @property
    def shown(self) -> JobRecord:
        """As the port shows it."""
        return JobRecord(self.job, self.state, self.history, self.result, self.progress)

    @property
    def taken(self) -> ClaimedJob:
        """As its holder gets it."""
        return self.state.taken(self.job)


def check_stored(stored: StoredJob) -> None:
    """A ValueError for a job that was read and that no change could be made to: its parts contradict one another."""
    state, job = stored.state, stored.job
    if min(state.token, state.size, state.attempts, state.failures, state.rescues, state.interruptions) < 0:
        raise ValueError("one of its counts is negative")
    if (job.id, job.queue) != (state.id, state.queue) or not state.id:
        raise ValueError("its job and its state are of different jobs")
    if state.place is Place.HELD and (state.until is None or state.taken_at is None):
        raise ValueError("it is running, without a claim")
    if state.place in (Place.DONE, Place.DEAD) and state.finished_at is None:
        raise ValueError("it is finished, at no time")


def back(at: datetime) -> int:
    """The turn of a job that joins its queue at this moment."""
    return to_micros(at) * _RANKS


def new_state(job: Job, at: datetime, retries_max: int | None = None) -> JobState:
    """The state of a new job: ready, or delayed until its producer wants it."""
    due = max(job.not_before or at, at + job.delay, at)
    return JobState(
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
        created_at=at,
        not_before=due if due > at else None,
        retries_max=retries_max,
    )


def copied(job: Job) -> Job:
    """The job with headers of its own: what the producer does with theirs later changes nothing."""
    return replace(job, headers=dict(job.headers)) if job.headers else job


def added(job: Job, at: datetime, *, rank: int, request: str = "", retries_max: int | None = None) -> StoredJob:
    """A new job."""
    return StoredJob(copied(job), new_state(job, at, retries_max), rank, put_by=request)


def take(record: R, at: datetime, *, worker: str, nonce: str, silence: timedelta, token: int | None = None) -> R | None:
    """Ready to held; None for a job that is not ready at this moment."""
    record = record.at(at)
    if record.state.place is not Place.READY or record.delayed:
        return None
    state = replace(
        record.state,
        place=Place.HELD,
        # Above every token of an earlier job of this id, which nobody may remember any more.
        token=max(record.state.token + 1, to_micros(at)) if token is None else token,
        nonce=nonce,
        attempts=record.state.attempts + 1,
        worker=worker,
        taken_at=at,
        beat_at=at,
        until=at + silence,
    )
    return replace(record, state=state)


def untake(record: R, at: datetime) -> R:
    """Undoes a claim of which nobody was told: the attempt was none, and the job is served next."""
    before = record.state
    state = replace(before.freed, place=Place.READY, token=before.token + 1, attempts=before.attempts - 1)
    return replace(record, state=state, rank=-back(at))


def beat(record: R, hold: Claim, at: datetime, *, silence: timedelta, progress: Progress | None = None) -> R | None:
    """Extends a hold; None if it is no longer the current one."""
    if not holds(record, hold):
        return None
    told = record.progress if progress is None else replace(progress, at=at)
    return replace(record, state=replace(record.state, beat_at=at, until=at + silence), progress=told)


def holds(record: StoredJob, hold: Claim) -> bool:
    """Is this the current hold?"""
    return record.state.place is Place.HELD and record.state.hold == hold


def settled_by(record: StoredJob, hold: Claim, request: str) -> bool:
    """Did this very request end the attempt of this hold?"""
    return SettledRequest(hold.token, request) in record.settled


def settle(record: R, settlement: Settlement, at: datetime, *, request: str, rank: int) -> R | None:
    """Ends an attempt, by its holder; None if the hold is no longer current. `rank` is the turn of who comes now. An
    empty request is not noted in the record."""
    if not holds(record, settlement.hold):
        return None
    if request:
        mark = SettledRequest(settlement.hold.token, request)
        record = replace(record, settled=(*record.settled, mark)[-SETTLED_KEPT:])
    match settlement:
        case Complete():
            return _finished(record, settlement, at)
        case Requeue():
            return _requeued(record, settlement, at, rank)
        case DeadLetterJob():
            return _buried(record, settlement, at)


def move(record: R, move: Move, at: datetime, *, rank: int, token: int | None = None) -> R | None:
    """A move by anybody but the holder; None if what it expects is not so. From then on an old holder is refused."""
    if not _movable(record, move, at):
        return None
    token = record.state.token + 1 if token is None else token
    record = replace(record, state=replace(record.state, token=token))
    match move:
        case Requeue():
            return _requeued(record, move, at, rank)
        case DeadLetterJob():
            return _buried(record, move, at)
        case RequeueDead():
            state = replace(record.state.freed, failures=0, rescues=0)
            return _readied(replace(record, state=state), at, move.delay, rank)
        case Cancel():
            return _cancelled(record, move.error, at)


def rescues(state: JobState, most: int) -> tuple[int, int]:
    """How often a job was rescued, and how often it may be: at `most`, but for a job with a budget of its own for
    retries of any kind."""
    if state.retries_max is None:
        return state.rescues, most
    return state.failures + state.rescues, state.retries_max


def rescue(state: JobState, at: datetime, most: int) -> Requeue | DeadLetterJob:
    """What becomes of a held job whose worker fell silent."""
    silent = f"worker {state.worker} silent for {int((at - (state.beat_at or at)).total_seconds())} s"
    so_far, most = rescues(state, most)
    if so_far >= most:
        return DeadLetterJob(state.hold, Reason.WORKER_DIED, error=silent, spends=Budget.RESCUES)
    return Requeue(state.hold, Budget.RESCUES, Reason.WORKER_DIED, error=silent)


def deletable(record: StoredJob, delete: Delete, at: datetime) -> bool:
    """May this job be deleted, as it is now?"""
    state = record.state
    if delete.place is Place.HELD or state.place is not delete.place or state.hold != delete.hold:
        return False
    return state.place is not Place.DONE or state.kept_until is None or state.kept_until <= at


def _movable(record: StoredJob, move: Move, at: datetime) -> bool:
    match move:
        case Requeue() | DeadLetterJob():
            until = record.state.until
            return holds(record, move.hold) and until is not None and until <= at
        case RequeueDead():
            return record.state.place is Place.DEAD and record.state.hold == move.hold
        case Cancel():
            return record.state.place in (Place.READY, Place.HELD)


def _finished(record: R, finish: Complete, at: datetime) -> R:
    kept_until = at + record.job.keep if record.job.keep > _AT_ONCE else None
    state = replace(record.state, place=Place.DONE, until=None, finished_at=at, kept_until=kept_until)
    return replace(record, state=state, result=finish.result, follow=finish.puts)


def _requeued(record: R, requeue: Requeue, at: datetime, rank: int) -> R:
    record = _noted(record, requeue.reason, requeue.error, at)
    state = record.state.spent(requeue.spends).freed
    index_position = rank if requeue.delay > _AT_ONCE else -rank
    return _readied(replace(record, state=state), at, requeue.delay, index_position)


def _readied(record: R, at: datetime, delay: timedelta, rank: int) -> R:
    not_before = at + delay if delay > _AT_ONCE else None
    return replace(record, state=replace(record.state, place=Place.READY, not_before=not_before), rank=rank)


def _buried(record: R, bury: DeadLetterJob, at: datetime) -> R:
    record = _noted(record, bury.reason, bury.error, at)
    return _died(replace(record, state=record.state.spent(bury.spends)), bury.reason, bury.error, at)


def _cancelled(record: R, error: str, at: datetime) -> R:
    if record.state.place is Place.HELD:  # only what was held had an attempt to note
        record = _noted(record, Reason.CANCELLED, error, at)
    return _died(record, Reason.CANCELLED, error, at)


def _died(record: R, reason: Reason, error: str, at: datetime) -> R:
    error = error_text(error)
    state = replace(record.state, place=Place.DEAD, not_before=None, until=None, finished_at=at)
    return replace(record, state=replace(state, reason=reason, error=error))


def _noted(record: R, reason: Reason, error: str, at: datetime) -> R:
    """With the attempt that just ended in its history."""
    state = record.state
    assert state.taken_at is not None, "an attempt begins with a take"
    attempt = Attempt(state.attempts, state.worker, state.taken_at, at, reason, error_text(error))
    return replace(record, history=(*record.history, attempt)[-HISTORY_MAX:])
