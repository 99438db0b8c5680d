"""A snapshot of the process's state: queues, workers, stuck jobs, leases, streams, sweeps, the end of the journal.

The status page, /status.json, /readyz and /metrics are views of it. A snapshot costs a few small reads and is shared:
however many clients there are, the backends are read at most once per `kept`. A part whose backend is unavailable is
None, and the other parts are shown all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from msgspec.structs import replace

from wrasse.archives.announce import ArchiverTally as ArchiveTally, Lag
from wrasse.clock import Clock
from wrasse.duration import format_duration
from wrasse.engine.loop import Engine, SweepStatus
from wrasse.errors import WrasseError
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.breakers import Breakers, ShutQueue, shut_queues
from wrasse.leases.lease import Lease, decode
from wrasse.observability.logs import LogTally, describe
from wrasse.observability.metrics import LeaseFacts, MetricInputs, OrphanFacts, SweepFacts
from wrasse.observability.tracing import SpanTally
from wrasse.orphans.scanner import Scanner
from wrasse.ports.backend import JobStore
from wrasse.ports.jobs import Counts, JobInfo, JobQueue
from wrasse.ports.journal import Journal, Line, LineFilter
from wrasse.ports.records import Records
from wrasse.ports.streams import Streams, StreamState
from wrasse.runtime.leases import Leasing
from wrasse.streams.consumer import StreamTally
from wrasse.streams.retention import RetentionTally

T = TypeVar("T")

LINES = 20
STUCK = 20
LEASES = 50
STREAMS = 30
ASK_MAX = 2.0  # seconds until a backend counts as unavailable
LEASES_AHEAD = timedelta(days=36_500)  # further than any lease lasts


@dataclass(frozen=True, slots=True)
class Check:
    """A condition for the readiness of this process."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Some(Generic[T]):
    """The first items of a listing, at a time of its backend's clock."""

    items: tuple[T, ...]
    more: bool
    at: datetime


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """The data of all views."""

    at: datetime
    started_at: datetime
    roles: tuple[str, ...]
    backend: str
    checks: tuple[Check, ...]
    counts: Counts | None
    skew: timedelta | None
    stuck: tuple[JobInfo, ...]
    shut: tuple[ShutQueue, ...]
    leases: Some[Lease] | None
    streams: Some[StreamState] | None
    sweeps: tuple[SweepStatus, ...]
    lines: tuple[Line, ...]
    orphans: tuple[OrphanFacts, ...] = ()
    unused: tuple[str, ...] = ()  # parts whose backend this process neither uses nor waits for

    @property
    def ready(self) -> bool:
        """Whether every check is ok."""
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class Subject:
    """The observed process. `worker` returns what is wrong with the worker, if this process has one."""

    clock: Clock
    roles: tuple[str, ...]
    backend: str
    jobs: JobStore | None  # None here and below: not used by this process, or not open yet
    journal: Journal | None
    leases: Records | None
    streams: Streams | None
    engine: Engine | None
    waiting: Mapping[str, str] = field(default_factory=dict)  # part of the process -> what it waits for
    worker: Callable[[], str | None] | None = None
    shut: Records | None = None  # where workers record paused queues
    breakers: Breakers | None = None  # of the worker in this process
    shut_max: timedelta = timedelta(minutes=2)  # how long one of them may stay open
    tally: Tally = field(default_factory=Tally)
    logs: LogTally = field(default_factory=LogTally)
    queues: Sequence[str] = ()
    messages: Mapping[str, StreamTally] = field(default_factory=dict)
    archives: ArchiveTally | None = None
    leasing: Leasing | None = None
    lease_calls: Mapping[tuple[str, int], int] = field(default_factory=dict)  # of the lease API in this process
    spans: SpanTally | None = None
    retention: RetentionTally | None = None
    orphans: Sequence[Scanner] = ()
    queue: JobQueue | None = None  # jobs and tasks as one, where there are tasks


@dataclass(frozen=True, slots=True)
class _Jobs:
    skew: timedelta
    counts: Counts
    stuck: tuple[JobInfo, ...]
    shut: tuple[ShutQueue, ...]


@dataclass(frozen=True, slots=True)
class _BackendAnswer(Generic[T]):
    """An answer, or what was wrong with asking."""

    answer: T | None
    wrong: str = ""


def _unreadable(jobs: _Jobs | None) -> Sequence[Check]:
    """Unreadable records are reported, but the process is ready."""
    found = () if jobs is None else jobs.counts.unreadable
    return [Check("inconsistencies", True, f"{'; '.join(found)}: see `wrasse jobs fsck`")] if found else []


async def _ask_backend(ask: Awaitable[T]) -> _BackendAnswer[T]:
    try:
        async with asyncio.timeout(ASK_MAX):
            return _BackendAnswer(await ask)
    except WrasseError as why:
        return _BackendAnswer(None, describe(why))
    except TimeoutError:
        return _BackendAnswer(None, "does not answer")


def _lag_text(lag: Lag) -> str:
    if not lag.messages:
        return "nothing waits"
    old = format_duration(timedelta(seconds=round(lag.seconds)))
    return f"{lag.messages} messages wait ({lag.bytes} bytes), the oldest for {old}"


def lease_facts(leasing: Leasing, calls: Mapping[tuple[str, int], int]) -> LeaseFacts:
    """The inputs of the metrics of leases."""
    sent, known = leasing.requests(), leasing.leases.requests
    # Requests of no operation: sweeps, the probe at the start, other data in that bucket.
    requests = None if sent is None else {**known, "other": max(0, sent - known.total())}
    return LeaseFacts(leasing.leases.tally, leasing.leases.waiting, requests, calls)


class SubjectWatch:
    """Takes snapshots of a subject, at most once per `kept`."""

    def __init__(self, subject: Callable[[], Subject], kept: timedelta) -> None:
        self.kept = kept
        self._subject_of = subject  # its parts may start late
        self._started_at = self._subject.clock.now()
        self._lock = asyncio.Lock()
        self._last: tuple[float, ProcessSnapshot] | None = None

    @property
    def _subject(self) -> Subject:
        return self._subject_of()

    @property
    def clock(self) -> Clock:
        """The clock of the snapshots."""
        return self._subject.clock

    async def refresh(self) -> ProcessSnapshot:
        """The current snapshot, not older than `kept`."""
        async with self._lock:
            now = self._subject.clock.monotonic()
            if self._last is None or now - self._last[0] >= self.kept.total_seconds():
                self._last = (now, await self._take())
            return self._last[1]

    async def facts(self) -> MetricInputs:
        """The inputs of the metrics: current counters, and queues as of the last snapshot."""
        snapshot, subject = await self.refresh(), self._subject
        sweeps = {each.name: SweepFacts(each.totals, each.paused) for each in snapshot.sweeps}
        return MetricInputs(
            tally=subject.tally,
            sweeps=sweeps,
            logs=subject.logs,
            counts=snapshot.counts,
            skew=snapshot.skew,
            queues=subject.queues,
            breakers=() if subject.breakers is None else subject.breakers.facts(),
            messages=subject.messages,
            archives=subject.archives,
            spans=subject.spans,
            leases=None if subject.leasing is None else lease_facts(subject.leasing, subject.lease_calls),
            retention=subject.retention,
            orphans=snapshot.orphans,
        )

    async def _take(self) -> ProcessSnapshot:
        subject = self._subject
        # Concurrently: backends may differ, and a slow one must not delay the others.
        async with asyncio.TaskGroup() as group:
            jobs_task = group.create_task(_ask_backend(self._jobs()))
            engine_task = group.create_task(_ask_backend(self._engine()))
            leases_task = group.create_task(_ask_backend(self._leases()))
            streams_task = group.create_task(_ask_backend(self._streams()))
            orphans_task = group.create_task(_ask_backend(self._orphans()))
        jobs, lines = jobs_task.result(), engine_task.result()
        wrong = jobs.wrong or lines.wrong
        sweeps = subject.engine.status() if subject.engine is not None else ()
        return ProcessSnapshot(
            at=subject.clock.now(),
            started_at=self._started_at,
            roles=subject.roles,
            backend=subject.backend,
            checks=(Check("backend", not wrong, wrong or "answers"), *_unreadable(jobs.answer), *self._checks(sweeps)),
            counts=jobs.answer.counts if jobs.answer else None,
            skew=jobs.answer.skew if jobs.answer else None,
            stuck=jobs.answer.stuck if jobs.answer else (),
            shut=jobs.answer.shut if jobs.answer else (),
            unused=self._unused(),
            leases=leases_task.result().answer,
            streams=streams_task.result().answer,
            sweeps=sweeps,
            lines=lines.answer or (),
            orphans=orphans_task.result().answer or (),
        )

    async def _jobs(self) -> _Jobs | None:
        store = self._subject.jobs
        if store is None:
            return None
        skew = self._subject.clock.now() - (await store.health_sample()).at
        queue = self._subject.queue or store.jobs
        counts = await queue.counts()
        alive = {worker.info.id for worker in counts.workers if worker.deadline > counts.at}
        shut = () if self._subject.shut is None else await shut_queues(self._subject.shut, alive)
        return _Jobs(skew, counts, (await queue.overdue(None, STUCK)).items, shut)

    def _unused(self) -> tuple[str, ...]:
        parts = {"leases": self._subject.leases, "streams": self._subject.streams}
        return () if self._subject.waiting else tuple(name for name, port in parts.items() if port is None)

    async def _engine(self) -> tuple[Line, ...]:
        if self._subject.engine is not None:
            await self._subject.engine.refresh()
        if self._subject.journal is None:
            return ()
        return (await self._subject.journal.page(LineFilter(), None, LINES, newest=True)).items

    async def _leases(self) -> Some[Lease] | None:
        """The leases that end soonest. A released lease has no due time, or is listed until an hour after its end."""
        if self._subject.leases is None:
            return None
        ahead = self._subject.clock.now() + LEASES_AHEAD
        page = await self._subject.leases.due(ahead, None, LEASES)
        found = {}
        for record in page:
            if (lease := decode(record).lease) is not None:
                found[record.key] = replace(lease, key=record.key)
        return Some(tuple(found.values()), page.more, page.at)

    async def _streams(self) -> Some[StreamState] | None:
        streams = self._subject.streams
        if streams is None:
            return None
        page = await streams.subjects(">", None, STREAMS)
        found = [state for subject in page if (state := await streams.info(subject)) is not None]
        return Some(tuple(found), page.more, page.at)

    async def _orphans(self) -> tuple[OrphanFacts, ...]:
        """The last complete scan of each root, by any process."""
        found = []
        for scanner in self._subject.orphans:
            last = (await scanner.sightings.standing(scanner.root.name)).last
            if last is not None:
                found.append(OrphanFacts(scanner.root.name, last))
        return tuple(found)

    def _checks(self, sweeps: Sequence[SweepStatus]) -> tuple[Check, ...]:
        checks = [Check(part, False, f"waits for its backend: {why}") for part, why in self._subject.waiting.items()]
        if self._subject.worker is not None:
            wrong = self._subject.worker()
            checks.append(Check("worker", wrong is None, wrong or "claims jobs"))
        if self._subject.breakers is not None:
            checks.append(self._breakers(self._subject.breakers))
        if sweeps:
            bad = [each.name for each in sweeps if each.last is not None and not each.last.good]
            checks.append(Check("sweeps", not bad, f"last run failed: {', '.join(bad)}" if bad else "run"))
        if self._subject.archives is not None:
            # A lag has its own alert; an archiver that waits for a store counts as ready.
            checks.append(Check("archives", True, _lag_text(self._subject.archives.lag)))
        return tuple(checks)

    def _breakers(self, breakers: Breakers) -> Check:
        """A half-open breaker that waits for a trial job does not count."""
        facts = [each for each in breakers.facts() if each.state and not each.waits]
        long = [each.queue for each in facts if each.shut > self._subject.shut_max.total_seconds()]
        if long:
            patience = format_duration(self._subject.shut_max)
            return Check("breakers", False, f"open for more than {patience}: {', '.join(long)}")
        shut = ", ".join(each.queue for each in facts)
        return Check("breakers", True, f"open: {shut}" if shut else "closed")
