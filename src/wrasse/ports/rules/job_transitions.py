"""The transitions of a job that is kept as one record: what each request makes of it; pure.

Queues built on records read one, compute its successor here, and write it back under the version they read; the queue
in memory does the same. So every rule about states, tokens, deadlines and budgets is in this file, and of two
concurrent writers one gets a conflict and retries. None means: the request's precondition does not hold, and nothing is
written.

A record remembers the requests that enqueued and settled it, so that a retry after a lost reply, or after a restart,
gets the first answer; Remembered does that for requests without a record of their own. `rank` is a job's order among
the ready ones: below zero it is claimed next, the newest first; above, in the order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, Self, TypeVar

from wrasse.clock import Clock, to_micros
from wrasse.ports.jobs import (
    HISTORY_MAX,
    REQUESTS_KEPT,
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
    JobStatus,
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
_new = object.__new__
R = TypeVar("R", bound="StoredJob")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SettledRequest:
    """A request that ended an attempt, and the token it named."""

    token: int
    request: str


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job whole, with what its queue needs to know of it. `follow`: follow-up jobs of its completion that are not
    enqueued yet."""

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
        """Its state at this moment: a job whose delay is over is no longer scheduled."""
        due = self.info.not_before
        if self.info.state is not JobState.READY or due is None or due > at:
            return self
        return replace(self, info=replace(self.info, not_before=None))

    @property
    def scheduled(self) -> bool:
        """Ready, with a not_before that has not passed."""
        return self.info.not_before is not None

    @property
    def status(self) -> JobStatus:
        """The status under which it is listed and counted."""
        return self.info.status

    @property
    def index_position(self) -> int:
        """Its position in the index of its status: its rank while it is ready, else microseconds."""
        info = self.info
        if info.not_before is not None:
            return to_micros(info.not_before)
        if info.state is JobState.READY:
            return self.rank
        moment = info.deadline if info.state is JobState.RUNNING else info.kept_until or info.finished_at
        return 0 if moment is None else to_micros(moment)

    @property
    def served_next(self) -> bool:
        """Was released or rescued, so it is claimed before the jobs that wait."""
        return self.info.state is JobState.READY and self.rank < 0

    @property
    def shown(self) -> JobRecord:
        """As the port returns it."""
        return JobRecord(self.job, self.info, self.history, self.result, self.progress)

    @property
    def claimed(self) -> ClaimedJob:
        """As a claim returns it."""
        info = self.info
        assert info.deadline is not None, "only running jobs have a worker"
        counts = (info.attempts, info.failures, info.rescues, info.interruptions)
        return claimed_job(self.job, info.token, info.nonce, counts, info.created_at, info.deadline)


def check_stored(stored: StoredJob) -> None:
    """ValueError for a stored job whose fields contradict one another, so that no transition applies."""
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
    """The rank of a job that is added to the end of its queue at this moment."""
    return to_micros(at) * _RANKS


def new_info(job: Job, at: datetime, retries_max: int | None = None) -> JobInfo:
    """The info of a new job: ready, or scheduled until its not_before."""
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
    """The job with a copy of its headers, so that later changes by the producer have no effect."""
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
        # Above every token of an earlier job of this id, which may no longer be stored.
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
    """Undoes a claim that was not returned to a worker: the attempt does not count, and the job is claimed next."""
    before = record.info
    info = replace(_freed(before), state=JobState.READY, token=before.token + 1, attempts=before.attempts - 1)
    return replace(record, info=info, rank=-back(at))


def heartbeat(
    record: R, claim: Claim, at: datetime, *, heartbeat_timeout: timedelta, progress: Progress | None = None
) -> R | None:
    """Extends a claim; None if it is no longer the current one."""
    if not is_current(record, claim):
        return None
    newest = record.progress if progress is None else replace(progress, at=at)
    return replace(record, info=replace(record.info, heartbeat_at=at, deadline=at + heartbeat_timeout), progress=newest)


def is_current(record: StoredJob, claim: Claim) -> bool:
    """Whether this is the current claim."""
    return record.info.state is JobState.RUNNING and record.info.claim == claim


def settled_by(record: StoredJob, claim: Claim, request: str) -> bool:
    """Whether this request ended the attempt of this claim."""
    return SettledRequest(claim.token, request) in record.settled


def settle(record: R, settlement: Settlement, at: datetime, *, request: str, rank: int) -> R | None:
    """Ends an attempt, by its worker; None if the claim is no longer current. `rank` is that of a job added now. An
    empty request is not noted in the record."""
    if not is_current(record, settlement.claim):
        return None
    if request:
        mark = SettledRequest(settlement.claim.token, request)
        record = replace(record, settled=(*record.settled, mark)[-SETTLED_KEPT:])
    match settlement:
        case Complete():
            return _completed(record, settlement, at)
        case Requeue():
            return _requeued(record, settlement, at, rank)
        case DeadLetterJob():
            return _dead_lettered(record, settlement, at)


def move(record: R, move: Move, at: datetime, *, rank: int, token: int | None = None) -> R | None:
    """A move by a caller without the claim; None if its precondition does not hold. The old worker is refused after."""
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
            info = replace(_freed(record.info), failures=0, rescues=0)
            return _readied(replace(record, info=info), at, move.delay, rank)
        case Cancel():
            return _cancelled(record, move.error, at)


def rescues(info: JobInfo, most: int) -> tuple[int, int]:
    """How often a job was rescued, and how often it may be: `most`, unless the job has its own budget for retries of
    any kind."""
    if info.retries_max is None:
        return info.rescues, most
    return info.failures + info.rescues, info.retries_max


def rescue(info: JobInfo, at: datetime, most: int) -> Requeue | DeadLetterJob:
    """The move for a running job whose worker stopped its heartbeat."""
    why = f"worker {info.worker} silent for {int((at - (info.heartbeat_at or at)).total_seconds())} s"
    so_far, most = rescues(info, most)
    if so_far >= most:
        return DeadLetterJob(info.claim, Reason.WORKER_DIED, error=why, spends=Budget.RESCUES)
    return Requeue(info.claim, Budget.RESCUES, Reason.WORKER_DIED, error=why)


def deletable(record: StoredJob, delete: Delete, at: datetime) -> bool:
    """Whether this job may be deleted in its present state."""
    info = record.info
    if delete.state is JobState.RUNNING or info.state is not delete.state or info.claim != delete.claim:
        return False
    return info.state is not JobState.DONE or info.kept_until is None or info.kept_until <= at


def _movable(record: StoredJob, move: Move, at: datetime) -> bool:
    match move:
        case Requeue() | DeadLetterJob():
            deadline = record.info.deadline
            return is_current(record, move.claim) and deadline is not None and deadline <= at
        case RequeueDead():
            return record.info.state is JobState.DEAD and record.info.claim == move.claim
        case Cancel():
            return record.info.state in (JobState.READY, JobState.RUNNING)


def _completed(record: R, complete: Complete, at: datetime) -> R:
    kept_until = at + record.job.keep if record.job.keep > _AT_ONCE else None
    info = replace(record.info, state=JobState.DONE, deadline=None, finished_at=at, kept_until=kept_until)
    return replace(record, info=info, result=complete.result, follow=complete.enqueues)


def _requeued(record: R, requeue: Requeue, at: datetime, rank: int) -> R:
    record = _noted(record, requeue.reason, requeue.error, at)
    info = _freed(_spent(record.info, requeue.spends))
    index_position = rank if requeue.delay > _AT_ONCE else -rank
    return _readied(replace(record, info=info), at, requeue.delay, index_position)


def _readied(record: R, at: datetime, delay: timedelta, rank: int) -> R:
    not_before = at + delay if delay > _AT_ONCE else None
    return replace(record, info=replace(record.info, state=JobState.READY, not_before=not_before), rank=rank)


def _dead_lettered(record: R, change: DeadLetterJob, at: datetime) -> R:
    record = _noted(record, change.reason, change.error, at)
    return _died(replace(record, info=_spent(record.info, change.spends)), change.reason, change.error, at)


def _cancelled(record: R, error: str, at: datetime) -> R:
    if record.info.state is JobState.RUNNING:  # only a running job has an attempt to record
        record = _noted(record, Reason.CANCELLED, error, at)
    return _died(record, Reason.CANCELLED, error, at)


def _died(record: R, reason: Reason, error: str, at: datetime) -> R:
    error = error_text(error)
    info = replace(record.info, state=JobState.DEAD, not_before=None, deadline=None, finished_at=at)
    return replace(record, info=replace(info, reason=reason, error=error))


def _noted(record: R, reason: Reason, error: str, at: datetime) -> R:
    """The record with the attempt that just ended in its history."""
    info = record.info
    assert info.claimed_at is not None, "an attempt begins with a claim"
    attempt = Attempt(info.attempts, info.worker, info.claimed_at, at, reason, error_text(error))
    return replace(record, history=(*record.history, attempt)[-HISTORY_MAX:])


def _spent(info: JobInfo, budget: Budget | None) -> JobInfo:
    """With one more counted against this budget: the count has its name."""
    return info if budget is None else replace(info, **{budget.value: getattr(info, budget.value) + 1})


def _freed(info: JobInfo) -> JobInfo:
    """Without worker, claim times and reason: the info of a job that is ready again."""
    return replace(
        info, worker="", claimed_at=None, heartbeat_at=None, deadline=None, finished_at=None, reason=None, error=""
    )


def setters(kind: type, *names: str) -> Iterator[Callable[[object, object], None]]:
    """The setter of each of these slots."""
    return (kind.__dict__[name].__set__ for name in names)


_id, _token, _nonce = setters(Claim, "id", "token", "nonce")
_job, _claim, _attempt, _failures, _rescues, _interruptions, _created_at, _deadline = setters(
    ClaimedJob, "job", "claim", "attempt", "failures", "rescues", "interruptions", "created_at", "deadline"
)


def claimed_job(
    job: Job, token: int, nonce: str, counts: tuple[int, int, int, int], created_at: datetime, deadline: datetime
) -> ClaimedJob:
    """A job as a worker gets it. `counts`: which attempt it is, and its failures, rescues and interruptions.

    A frozen dataclass sets each field through `object.__setattr__`, which costs more than all the rest of a claim. Here
    slots are filled directly, with the same result."""
    attempt, failures, rescues, interruptions = counts
    claim = _new(Claim)
    _id(claim, job.id)
    _token(claim, token)
    _nonce(claim, nonce)
    claimed = _new(ClaimedJob)
    _job(claimed, job)
    _claim(claimed, claim)
    _attempt(claimed, attempt)
    _failures(claimed, failures)
    _rescues(claimed, rescues)
    _interruptions(claimed, interruptions)
    _created_at(claimed, created_at)
    _deadline(claimed, deadline)
    return claimed


class RequestCache(Generic[T]):
    """The answers of one method by request id, for as long as a request is remembered; beyond a number, if there is
    one, the oldest go first. Time is monotonic here: a step of the wall clock must not drop an answer."""

    __slots__ = ("_answers", "_clock", "_most", "_order")

    def __init__(self, clock: Clock, most: int | None = None) -> None:
        self._clock, self._most = clock, most
        self._answers: dict[str, T] = {}
        self._order: deque[tuple[float, str]] = deque()

    def get(self, request: str) -> T | None:
        """The first answer, if it is younger than REQUESTS_KEPT."""
        horizon = self._clock.monotonic() - REQUESTS_KEPT.total_seconds()
        most = len(self._order) if self._most is None else self._most
        while self._order and (self._order[0][0] < horizon or len(self._order) > most):
            self._answers.pop(self._order.popleft()[1], None)
        return self._answers.get(request)

    def keep(self, request: str, answer: T) -> None:
        """Remembers an answer."""
        self._answers[request] = answer
        self._order.append((self._clock.monotonic(), request))

    def forget(self, request: str) -> None:
        """Drops the answer of a request that got nothing: a retry is a new request."""
        self._answers.pop(request, None)
