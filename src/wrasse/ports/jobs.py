"""JobQueue: a job is in exactly one place.

Promise. A job is ready, held, done or dead, and every move between them is one atomic step that names what it
expects. Taking grants a hold with a token and a deadline in the same step; the token only grows, for ever, also when
a dead job is made ready again. Whoever holds the current token may beat and settle, even past the deadline; only a
rescue or a cancel makes a new token, and from then on the old holder is refused. A ready job is never touched by
time. Payload bytes come back as they were put.

put, take and settle carry a request id that is remembered for REQUESTS_KEPT: asking again after a lost reply gives
the first answer and changes nothing.

Costs. Every call is one round trip for a whole batch. take and overdue read an index: their cost follows what they
return, not what is stored. counts follows the number of queues and workers. `at` is always the backend's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from wrasse.errors import TooLarge, UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

ID_BYTES_MAX = 255
NAME_BYTES_MAX = 255  # queue, kind, priority
PAYLOAD_BYTES_MAX = 16 << 20
BATCH_MAX = 1_000  # jobs in one call
HISTORY_MAX = 20  # attempts remembered per job, the newest
ERROR_CHARS_MAX = 2_000
REQUESTS_KEPT = timedelta(seconds=60)
IDS_KEPT = timedelta(days=30)

NOTHING: Mapping[str, str] = {}


class Place(StrEnum):
    """Where a job is. Delayed is ready with a `not_before` to come; finished is done or dead."""

    READY = "ready"
    HELD = "held"
    DONE = "done"
    DEAD = "dead"


class Reason(StrEnum):
    """Why an attempt ended other than well, or a job is dead: a closed set, fit for a metric label."""

    FAILED = "failed"  # the handler raised
    TIMEOUT = "timeout"  # the handler took longer than the job allows
    INTERRUPTED = "interrupted"  # the worker stopped cleanly and gave the job back; free
    WORKER_DIED = "worker_died"  # the worker fell silent while it held the job
    CANCELLED = "cancelled"  # somebody asked for it
    INVALID_PAYLOAD = "invalid_payload"  # the bytes are not what the handler's kind takes
    NO_HANDLER = "no_handler"  # no handler of this kind is known to the worker
    UNROUTABLE = "unroutable"  # the queue it came from is not known


class Budget(StrEnum):
    """Which count a requeue adds to: failures and rescues are limited, interruptions are free."""

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
    delay: timedelta = timedelta(0)  # only for put: not before the backend's now plus this
    timeout: timedelta | None = None  # how long a handler may take; None: the worker's default
    lasting: bool = False  # its id is remembered for IDS_KEPT after the job is gone


@dataclass(frozen=True, slots=True)
class Hold:
    """Proof of holding a job: its token, and a nonce in case a failover repeats a token."""

    id: str
    token: int
    nonce: str


@dataclass(frozen=True, slots=True)
class TakenJob:
    """A job as a worker gets it. `attempt` counts takes, this one included."""

    job: Job
    hold: Hold
    attempt: int
    failures: int
    rescues: int
    interruptions: int
    created_at: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer to a take; empty when nothing was ready within the wait."""

    jobs: tuple[TakenJob, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class Attempt:
    """One take that did not end well, as a job's history keeps it."""

    number: int
    worker: str
    taken_at: datetime
    ended_at: datetime
    reason: Reason
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobState:
    """Everything about a job but its payload, result and history: what listings and sweeps look at."""

    id: str
    kind: str
    queue: str
    priority: str
    size: int  # payload bytes
    place: Place
    token: int
    nonce: str  # of the newest take; empty if it was never taken
    attempts: int
    failures: int
    rescues: int
    interruptions: int
    created_at: datetime
    not_before: datetime | None = None  # set while it is delayed
    worker: str = ""
    taken_at: datetime | None = None
    beat_at: datetime | None = None
    until: datetime | None = None  # the deadline while it is held
    finished_at: datetime | None = None
    reason: Reason | None = None
    error: str = ""

    @property
    def hold(self) -> Hold:
        """The hold that a change to this state must name."""
        return Hold(self.id, self.token, self.nonce)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it is stored, whole."""

    job: Job
    state: JobState
    history: tuple[Attempt, ...] = ()
    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Held to done, with a result and follow-up jobs in the same step."""

    hold: Hold
    result: bytes | None = None
    puts: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Requeue:
    """Held to ready, not before `delay` from now, adding one to `spends`. Without a delay it is served next."""

    hold: Hold
    spends: Budget
    reason: Reason
    error: str = ""
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Bury:
    """Held to dead, with the bytes kept. `spends` is the budget whose last unit this attempt used up."""

    hold: Hold
    reason: Reason
    error: str = ""
    spends: Budget | None = None


@dataclass(frozen=True, slots=True)
class Revive:
    """Dead to ready: failures and rescues start again at zero, the token goes on growing."""

    hold: Hold
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ready or held to dead, reason cancelled. A holder is refused from then on."""

    id: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """A done, dead or ready job, gone, if it is still in that place under that token. Held jobs are never deleted."""

    hold: Hold
    place: Place


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs of a place to list; every field that is set must match."""

    queue: str | None = None
    kind: str | None = None
    reason: Reason | None = None
    error_contains: str | None = None
    finished_before: datetime | None = None
    finished_after: datetime | None = None
    delayed: bool | None = None  # of ready jobs: only those with, or without, a not_before to come


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Who beats. `id` differs between any two processes, ever."""

    id: str
    host: str = ""
    pid: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker that has beaten and has not said goodbye. Past `until` it has fallen silent."""

    info: WorkerInfo
    beat_at: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class QueueCount:
    """How many jobs of one queue are where. `ready` does not count `delayed`."""

    queue: str
    ready: int = 0
    delayed: int = 0
    held: int = 0
    done: int = 0
    dead: int = 0
    oldest_ready_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """The whole of a job queue in numbers. Workers that fell silent stay listed for an hour."""

    queues: tuple[QueueCount, ...]
    workers: tuple[WorkerState, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class Beaten:
    """Per hold: is it still the current one?"""

    mine: tuple[bool, ...]
    at: datetime


Settlement = Finish | Requeue | Bury
Move = Requeue | Bury | Revive | Cancel


class JobQueue(Protocol):
    """The port: ten methods."""

    async def put(self, jobs: Sequence[Job], *, request: str) -> Sequence[bool]:
        """Makes the jobs ready, all or none; False for each whose id is known already, which stays as it is."""
        ...

    async def take(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        silence: timedelta,
        request: str,
        wait: timedelta = timedelta(0),
    ) -> Taken:
        """Up to `limit` ready jobs, all of the first queue before any of the second, oldest first, each held until
        `silence` from now. With nothing ready it waits up to `wait` for a put from any process."""
        ...

    async def beat(self, worker: WorkerInfo, holds: Sequence[Hold], *, silence: timedelta) -> Beaten:
        """Extends the holds and the worker's own row to `silence` from now. A silence of zero is goodbye: the
        worker's row is removed and no hold is touched."""
        ...

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        """Ends attempts, by their holder: `done`, or `lost` where the hold is no longer current."""
        ...

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        """Moves jobs, by anybody else. A Requeue or Bury here also needs the deadline to have passed at this very
        step; otherwise it is `lost`."""
        ...

    async def get(self, id: str) -> JobRecord | None:
        """One job, whole."""
        ...

    async def page(
        self, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobState]:
        """Jobs of one place: ready in the order they are served, held by deadline, done and dead by when they
        finished; `newest` turns the order round."""
        ...

    async def overdue(self, after: str | None, limit: int) -> Page[JobState]:
        """Held jobs whose deadline has passed, longest ago first, from the deadline index."""
        ...

    async def counts(self) -> Counts:
        """Jobs per queue and place, and the workers."""
        ...

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        """Removes jobs; the id of a lasting one answers put with False for `ids_kept` longer."""
        ...


def check_job(job: Job) -> None:
    """Refuses what no backend could keep, before anything is sent."""
    names = job.id + job.queue + job.kind + job.priority
    if names.isascii() and names.isprintable() and len(names) <= ID_BYTES_MAX and job.id and job.queue:
        named: tuple[tuple[str, str, int], ...] = ()  # fits whichever way it is cut: the common case, and cheap to see
    else:
        named = (("id", job.id, 1), ("queue", job.queue, 1), ("kind", job.kind, 0), ("priority", job.priority, 0))
    for what, text, low in named:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if not low <= size <= ID_BYTES_MAX or not text.isprintable():
            raise UsageError(
                f"the {what} of a job is {size} bytes of {text[:40]!r}",
                do=f"use {low} to {ID_BYTES_MAX} bytes of printable characters",
            )
    if len(job.payload) > PAYLOAD_BYTES_MAX:
        raise TooLarge(
            f"a payload of {len(job.payload)} bytes for job {job.id!r}",
            do=f"payloads hold at most {PAYLOAD_BYTES_MAX} bytes; put the data elsewhere and send its name",
        )
