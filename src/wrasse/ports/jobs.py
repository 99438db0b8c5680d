"""JobQueue: a job is in exactly one state.

Promise. A job is ready, running, done or dead, and every transition is one atomic step that names the state it expects.
A claim gets a token and a deadline in the same step; tokens only grow, also when a dead job is requeued. The holder of
the current token may send heartbeats and settle, even past the deadline; only a rescue or a cancel makes a new token,
and from then on the old worker is refused. A ready job never expires. Payload bytes come back as they were enqueued.

enqueue, claim and settle carry a request id that is remembered for REQUESTS_KEPT: a retry after a lost reply returns
the first answer and changes nothing.

Costs. Every call is one round trip for a whole batch. claim and overdue read an index: their cost follows what they
return, not what is stored. The cost of counts follows the number of queues and workers. `at` is always the backend's
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol, TypeVar

from wrasse.bounded import DURATION_MAX, encodable, in_utc, json_size
from wrasse.errors import TooLarge, UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

ID_BYTES_MAX = 255  # of its id, queue, kind, priority, unique name and group, each
PAYLOAD_BYTES_MAX = 16 << 20
HEADERS_BYTES_MAX = 64 << 10  # names and values of all headers of a job as JSON; records that hold a job have room

NOTHING: Mapping[str, str] = {}
NONE = timedelta(0)
BATCH_MAX = 1_000  # jobs in one call
HISTORY_MAX = 20  # attempts remembered per job, the newest
ERROR_CHARS_MAX = 2_000
REQUESTS_KEPT = timedelta(seconds=60)
IDS_KEPT = timedelta(days=30)
GROUP_HEADER = "wrasse-group"  # of a callback: which group, how many members are done, how many dead
GROUP_DONE_HEADER = "wrasse-group-done"
GROUP_DEAD_HEADER = "wrasse-group-dead"
GROUPS_KEPT = timedelta(days=30)  # how long a group whose callback was enqueued is remembered
T = TypeVar("T")


class JobState(StrEnum):
    """The state of a job. Scheduled is ready with a `not_before` to come; finished is done or dead."""

    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"


class JobStatus(StrEnum):
    """The state of a job as it is displayed, listed and counted: ready and scheduled jobs apart."""

    READY = "ready"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"

    @property
    def state(self) -> JobState:
        """The state of jobs with this status."""
        return JobState.READY if self is JobStatus.SCHEDULED else JobState(self.value)

    @property
    def scheduled(self) -> bool | None:
        """The `scheduled` of a JobFilter that lists jobs with this status."""
        return None if self.state is not JobState.READY else self is JobStatus.SCHEDULED


_STATUSES = {state: JobStatus(state.value) for state in JobState}


class Reason(StrEnum):
    """Why an attempt did not succeed, or a job is dead: a closed set, usable as a metric label."""

    FAILED = "failed"  # the handler raised
    TIMEOUT = "timeout"  # the handler took longer than the job allows
    INTERRUPTED = "interrupted"  # the worker stopped cleanly and released the job; spends no retry
    WORKER_DIED = "worker_died"  # the worker stopped its heartbeat while the job was running
    CANCELLED = "cancelled"  # by a request to cancel it
    INVALID_PAYLOAD = "invalid_payload"  # the payload does not have the type that the handler expects
    NO_HANDLER = "no_handler"  # the worker has no handler for this kind
    UNROUTABLE = "unroutable"  # the queue it came from is not known


class Budget(StrEnum):
    """Which count a requeue adds to: failures and rescues are limited, interruptions are not."""

    FAILURES = "failures"
    RESCUES = "rescues"
    INTERRUPTIONS = "interruptions"


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work, as its producer described it. An empty kind means the default handler."""

    id: str
    kind: str = ""
    queue: str = "low"
    priority: str = "low"
    payload: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    not_before: datetime | None = None
    delay: timedelta = timedelta(0)  # only for enqueue: not before the backend's now plus this
    timeout: timedelta | None = None  # how long a handler may take; None: the worker's default
    lasting: bool = False  # its id is remembered for IDS_KEPT after the job is gone
    unique: str = ""  # refused while an earlier job of this name blocks it, see `window`
    window: timedelta = timedelta(0)  # how long after its enqueue a unique job blocks others; zero: until finished
    keep: timedelta = timedelta(0)  # how long at least its result is kept once it is done
    group: str = ""  # the JobGroup it is a member of
    minted: bool = False  # only for enqueue: the id was made for this very enqueue, so that no backend checks for it


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs with a callback for when all are finished. In the same step in which the last of `size` members becomes
    done or dead, `callback` becomes ready, once and for ever, with the numbers of both in its headers."""

    id: str
    size: int
    callback: Job


@dataclass(frozen=True, slots=True)
class Claim:
    """Proof that a worker claimed a job: its token, and a nonce in case a failover repeats a token."""

    id: str
    token: int
    nonce: str


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job as a worker gets it. `attempt` counts claims, this one included."""

    job: Job
    claim: Claim
    attempt: int
    failures: int
    rescues: int
    interruptions: int
    created_at: datetime
    deadline: datetime


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that did not succeed, as a job's history keeps it."""

    number: int
    worker: str
    claimed_at: datetime
    ended_at: datetime
    reason: Reason
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """Everything about a job but its payload, result and history: what listings and sweeps read."""

    id: str
    kind: str
    queue: str
    priority: str
    size: int  # payload bytes
    state: JobState
    token: int
    nonce: str  # of the newest claim; empty if it was never claimed
    attempts: int
    failures: int
    rescues: int
    interruptions: int
    created_at: datetime
    not_before: datetime | None = None  # set while it is scheduled
    worker: str = ""
    claimed_at: datetime | None = None
    heartbeat_at: datetime | None = None
    deadline: datetime | None = None  # of its claim, while it is running
    finished_at: datetime | None = None
    kept_until: datetime | None = None  # of a done job whose result is kept: not deleted before
    reason: Reason | None = None
    error: str = ""
    retries_max: int | None = None  # of a stream task: how often it may be tried again, for any reason

    @property
    def claim(self) -> Claim:
        """The claim that a change to this state must name."""
        return Claim(self.id, self.token, self.nonce)

    @property
    def status(self) -> JobStatus:
        """Its state, with `scheduled` for a job whose `not_before` is to come."""
        return _STATUSES[self.state] if self.not_before is None else JobStatus.SCHEDULED


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress a handler reports: a fraction from 0 to 1 and a note. `at` is set by the backend."""

    fraction: float
    note: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it is stored, whole."""

    job: Job
    info: JobInfo
    history: tuple[Attempt, ...] = ()
    result: bytes | None = None
    progress: Progress | None = None  # the latest of the newest attempt that reported any


def check_job(job: Job) -> None:
    """Refuses a job that no backend could store, before anything is sent."""
    names = job.id + job.queue + job.kind + job.priority
    if names.isascii() and names.isprintable() and len(names) <= ID_BYTES_MAX and job.id and job.queue:
        named: tuple[tuple[str, str, int], ...] = ()  # each fits if their sum does: the common case
    else:
        named = (("id", job.id, 1), ("queue", job.queue, 1), ("kind", job.kind, 0), ("priority", job.priority, 0))
    for what, text, low in named:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if not low <= size <= ID_BYTES_MAX or not text.isprintable():
            raise UsageError(
                f"the {what} of a job is {size} bytes of {text[:40]!r}",
                do=f"use {low} to {ID_BYTES_MAX} bytes of printable characters",
            )
    for what, text in (("unique name", job.unique), ("group", job.group)) if job.unique or job.group else ():
        if len(_utf8(job, what, text)) > ID_BYTES_MAX:
            raise UsageError(f"the {what} of job {job.id!r} is too long", do=f"use at most {ID_BYTES_MAX} bytes")
    if job.delay or job.timeout is not None or job.window or job.keep or job.not_before is not None or job.headers:
        _check_readable(job)
    if len(job.payload) > PAYLOAD_BYTES_MAX:
        raise TooLarge(
            f"a payload of {len(job.payload)} bytes for job {job.id!r}",
            do=f"payloads hold at most {PAYLOAD_BYTES_MAX} bytes; put the data elsewhere and send its name",
        )


def _check_readable(job: Job) -> None:
    """Refuses times and headers that decoders would not accept; the bounds are theirs (`wrasse.bounded`)."""
    spans = (("timeout", job.timeout or NONE), ("window", job.window), ("keep", job.keep), ("delay", job.delay))
    for what, span in spans:
        if not (-DURATION_MAX if what == "delay" else NONE) <= span <= DURATION_MAX:
            raise UsageError(
                f"the {what} of job {job.id!r} is {span}", do=f"give a duration of at most {DURATION_MAX.days} days"
            )
    if job.not_before is not None:
        if job.not_before.tzinfo is None:
            raise UsageError("a not_before without a time zone", do="give an aware datetime, e.g. in UTC")
        try:
            in_utc(job.not_before)
        except ValueError as error:
            raise UsageError(f"the not_before of job {job.id!r}: {error}", do="give an earlier or later time") from None
    for name, text in job.headers.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise UsageError(
                f"the header {name!r} of job {job.id!r} is {type(text).__name__}, not text",
                do="give headers as a mapping of text to text",
            )
        _utf8(job, f"header {name!r}", name + text)
    size = sum(json_size(name) + json_size(text) for name, text in job.headers.items())
    if size > HEADERS_BYTES_MAX:
        raise TooLarge(
            f"headers of {size} bytes for job {job.id!r}",
            do=f"the headers of a job hold at most {HEADERS_BYTES_MAX} bytes; put the data into the payload",
        )


def _utf8(job: Job, what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeError:
        raise UsageError(
            f"the {what} of job {job.id!r} has a lone surrogate, which is no text", do="give text that UTF-8 can encode"
        ) from None


NO_PROGRESS: Mapping[str, Progress] = {}


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to the enqueue of one job: true when it is new. If it is not, `id` is that of the job that blocks it:
    the one of the same id, or the one of the same unique name."""

    id: str
    new: bool

    def __bool__(self) -> bool:
        return self.new


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit of a queue: in any interval of length `per`, at most `limit` of its jobs are claimed."""

    queue: str
    limit: int
    per: timedelta


@dataclass(frozen=True, slots=True)
class Rejected:
    """An entry of a queue that cannot be decoded as a job: dead-lettered with its bytes, reason invalid_payload."""

    queue: str
    id: str
    error: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim; no jobs when nothing was ready within the wait. `rejected`: entries that it dead-lettered
    because they cannot be decoded."""

    jobs: tuple[ClaimedJob, ...]
    at: datetime
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class Complete:
    """Running to done, with a result and follow-up jobs in the same step."""

    claim: Claim
    result: bytes | None = None
    enqueues: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Requeue:
    """Running to ready, not before `delay` from now, adding one to `spends`. Without a delay it is claimed next."""

    claim: Claim
    spends: Budget
    reason: Reason
    error: str = ""
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class DeadLetterJob:
    """Running to dead, with the bytes kept. `spends` is the budget whose last unit this attempt used up."""

    claim: Claim
    reason: Reason
    error: str = ""
    spends: Budget | None = None


@dataclass(frozen=True, slots=True)
class RequeueDead:
    """Dead to ready: failures and rescues start again at zero, the token keeps growing."""

    claim: Claim
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ready or running to dead, reason cancelled. A worker is refused from then on."""

    id: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a done, dead or ready job if it is still in that state under that token. Running jobs are never
    deleted."""

    claim: Claim
    state: JobState


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs of a state to list; every field that is set must match."""

    queue: str | None = None
    kind: str | None = None
    reason: Reason | None = None
    error_contains: str | None = None
    finished_before: datetime | None = None
    finished_after: datetime | None = None
    scheduled: bool | None = None  # of ready jobs: only those with, or without, a not_before to come

    def allows(self, info: JobInfo) -> bool:
        """Whether every field that is set matches: for backends that check each job."""
        finished_at = info.kept_until or info.finished_at
        return (
            (self.queue is None or info.queue == self.queue)
            and (self.kind is None or info.kind == self.kind)
            and (self.reason is None or info.reason is self.reason)
            and (self.error_contains is None or self.error_contains in info.error)
            and (self.finished_before is None or (finished_at is not None and finished_at < self.finished_before))
            and (self.finished_after is None or (finished_at is not None and finished_at > self.finished_after))
            and (self.scheduled is None or (info.not_before is not None) is self.scheduled)
        )


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker that sends heartbeats. No two processes ever have the same `id`."""

    id: str
    host: str = ""
    pid: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker that has sent a heartbeat and has not deregistered. Past `deadline` it counts as dead."""

    info: WorkerInfo
    heartbeat_at: datetime
    deadline: datetime


@dataclass(frozen=True, slots=True)
class QueueCount:
    """How many jobs of one queue are in each state. `ready` does not count `scheduled`."""

    queue: str
    ready: int = 0
    scheduled: int = 0
    running: int = 0
    done: int = 0
    dead: int = 0
    oldest_ready_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """All queues and workers in numbers. Dead workers stay listed for an hour."""

    queues: tuple[QueueCount, ...]
    workers: tuple[WorkerState, ...]
    at: datetime
    unreadable: tuple[str, ...] = ()  # records that could not be read and are not counted: a sentence each


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """Per claim: whether it is still the current one."""

    mine: tuple[bool, ...]
    at: datetime


Settlement = Complete | Requeue | DeadLetterJob
Move = Requeue | DeadLetterJob | RequeueDead | Cancel


class JobQueue(Protocol):
    """All jobs of one backend: ten methods."""

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        """Makes the jobs ready, all or none, except each whose id is stored already or whose unique name is in use: the
        existing job stays as it is. `groups` opens groups; their members may come in this enqueue and in later ones,
        and a group that exists already stays as it is."""
        ...

    async def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        heartbeat_timeout: timedelta,
        request: str,
        wait: timedelta = timedelta(0),
        rates: Sequence[Rate] = (),
    ) -> Claimed:
        """Up to `limit` ready jobs, all of the first queue before any of the second, oldest first, each with a deadline
        `heartbeat_timeout` from now. With nothing ready, or nothing that `rates` allow, it waits up to `wait` for that
        to change, by an enqueue from any process or by time."""
        ...

    async def heartbeat(
        self,
        worker: WorkerInfo,
        claims: Sequence[Claim],
        *,
        heartbeat_timeout: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> HeartbeatAnswer:
        """Extends the claims and the worker's own row to `heartbeat_timeout` from now, and stores the progress of those
        running jobs whose ids it names. A heartbeat timeout of zero is deregistration: the worker's row is removed and
        no claim is touched."""
        ...

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        """Ends attempts, by their worker: `done`, or `conflict` where the claim is no longer current."""
        ...

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        """Moves jobs, by a caller that has no claim. A Requeue or DeadLetterJob here also needs the deadline to have
        passed at this step; otherwise it is `conflict`."""
        ...

    async def get(self, id: str) -> JobRecord | None:
        """One job, whole."""
        ...

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobInfo]:
        """Jobs of one state: ready in the order they are claimed, running by deadline, done and dead by when they
        finished, or by `kept_until` where a result is kept; filters by time compare the same moment. `newest` reverses
        the order."""
        ...

    async def overdue(self, after: str | None, limit: int) -> Page[JobInfo]:
        """Running jobs whose deadline has passed, longest ago first, from the deadline index."""
        ...

    async def counts(self) -> Counts:
        """Jobs per queue and state, and the workers."""
        ...

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        """Removes jobs; enqueue refuses the id of a lasting one for `ids_kept` longer. A done job is `conflict`
        while its result is kept. A ready member of a group counts as dead."""
        ...


def error_text(error: str) -> str:
    """The stored part of an error: its first ERROR_CHARS_MAX characters, encodable as UTF-8."""
    return encodable(error[:ERROR_CHARS_MAX])


def bounded(batch: Sequence[T]) -> Sequence[T]:
    """The same batch; refused if it is too large for one call."""
    if len(batch) > BATCH_MAX:
        raise UsageError(f"a batch of {len(batch)}", do=f"send at most {BATCH_MAX} at once")
    return batch


def check_enqueue(jobs: Sequence[Job], groups: Sequence[JobGroup]) -> None:
    """Refuses a batch that is too large, or jobs that no backend could store: every backend's check on enqueue."""
    for job in bounded(jobs):
        check_job(job)
    for group in bounded(groups):
        check_job(group.callback)


def check_settlements(settlements: Sequence[Settlement], check: Callable[[Job], None] = check_job) -> None:
    """Refuses a batch that is too large, or results and follow-up jobs that no backend could store."""
    for settlement in bounded(settlements):
        if isinstance(settlement, Complete):
            check_result(settlement.result)
            for job in settlement.enqueues:
                check(job)


def check_result(result: bytes | None) -> None:
    """Refuses a result that no backend could store."""
    if result is not None and len(result) > PAYLOAD_BYTES_MAX:
        raise TooLarge(
            f"a result of {len(result)} bytes",
            do=f"results hold at most {PAYLOAD_BYTES_MAX} bytes; put the data elsewhere and return its name",
        )


def check_claim(limit: int, heartbeat_timeout: timedelta) -> None:
    """Refuses a claim of no jobs, or without a heartbeat timeout."""
    if limit < 1 or heartbeat_timeout <= timedelta(0):
        raise UsageError(
            f"a claim of {limit} jobs for {heartbeat_timeout}", do="claim at least one, for longer than zero"
        )


def moved_id(move: Move) -> str:
    """The id of the job that a move is for."""
    return move.id if isinstance(move, Cancel) else move.claim.id
