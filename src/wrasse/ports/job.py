"""What a job is, and everything that is known about one. The port that keeps them is in `jobs.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from wrasse.bounded import DURATION_MAX, in_utc
from wrasse.errors import TooLarge, UsageError

ID_BYTES_MAX = 255
NAME_BYTES_MAX = 255  # queue, kind, priority
PAYLOAD_BYTES_MAX = 16 << 20
HEADERS_BYTES_MAX = 64 << 10  # names and values of all headers of a job; records that hold a job have room for them

NOTHING: Mapping[str, str] = {}
NONE = timedelta(0)


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
    unique: str = ""  # refused while an earlier job of this name stands in the way, see `window`
    window: timedelta = timedelta(0)  # how long after its put a unique job does so; zero: until it is finished
    keep: timedelta = timedelta(0)  # how long at least its result is kept once it is done
    group: str = ""  # the JobGroup it is a member of
    minted: bool = False  # only for put: the id was made for this very put, so that no backend need look it up


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs with something to do when all are finished. In the same step in which the last of `size` members becomes
    done or dead, `callback` becomes ready, once and for ever, with the numbers of both in its headers."""

    id: str
    size: int
    callback: Job


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
    kept_until: datetime | None = None  # of a done job whose result is kept: until when it is not deleted
    reason: Reason | None = None
    error: str = ""
    retries_max: int | None = None  # of a task: how often it may be tried again, for whatever reason

    @property
    def hold(self) -> Hold:
        """The hold that a change to this state must name."""
        return Hold(self.id, self.token, self.nonce)

    @property
    def freed(self) -> JobState:
        """Nobody's: what a job looks like when it is ready again."""
        return replace(
            self, worker="", taken_at=None, beat_at=None, until=None, finished_at=None, reason=None, error=""
        )

    def spent(self, budget: Budget | None) -> JobState:
        """With one more counted against this budget."""
        match budget:
            case Budget.FAILURES:
                return replace(self, failures=self.failures + 1)
            case Budget.RESCUES:
                return replace(self, rescues=self.rescues + 1)
            case Budget.INTERRUPTIONS:
                return replace(self, interruptions=self.interruptions + 1)
            case None:
                return self

    def taken(self, job: Job) -> TakenJob:
        """The job as its holder gets it."""
        assert self.until is not None, "only held jobs are handed out"
        return TakenJob(
            job,
            self.hold,
            attempt=self.attempts,
            failures=self.failures,
            rescues=self.rescues,
            interruptions=self.interruptions,
            created_at=self.created_at,
            until=self.until,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a handler says it is: a share from 0 to 1 and a few words. `at` is the backend's, set by it."""

    fraction: float
    note: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it is stored, whole."""

    job: Job
    state: JobState
    history: tuple[Attempt, ...] = ()
    result: bytes | None = None
    progress: Progress | None = None  # the latest of the newest attempt that told any


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
    """Refuses times and headers that decoders would not read back; the bounds are theirs (`wrasse.bounded`)."""
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
    size = sum(len(name.encode()) + len(text.encode()) for name, text in job.headers.items())
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
