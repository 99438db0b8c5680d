"""A JobQueue on records; its subclasses differ in the index of ready jobs: markers in a listing (`record_queue`), or
entries of streams (`stream_tasks`).

Every job is one record, and every change of it is a read, a transition, and a write under the version that was read;
after a conflict it is repeated. Of two concurrent claims one succeeds, and a crash between any two steps leaves the job
in its old or its new state. After a lost reply the record shows whether the write was made.

Unique names, groups and rates are not supported on records and are refused. A batch is stored job by job: a crash in
the middle of an enqueue leaves its first part, and a retry of the same request completes it.

A worker that has sent a heartbeat and has not deregistered has one record, which is listed for an hour after its last
heartbeat and decides nothing: each claim has a deadline of its own.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Generic, Protocol

from wrasse.bounded import decoded
from wrasse.clock import Clock, from_micros
from wrasse.errors import StoreBroken, StoreUnavailable, TooLarge, UsageError, WrasseError
from wrasse.jobs.record_core.claims import (
    GATHERED_MAX,
    Claims,
    MillisecondTime,
    RecordClaim,
    RecordStore,
    S,
    by_id,
    changing,
    gather_bounded,
)
from wrasse.jobs.record_core.record_names import RecordedIds, decode_worker, encode_worker
from wrasse.jobs.retry import RetryPolicy
from wrasse.ports.jobs import (
    BATCH_MAX,
    IDS_KEPT,
    NO_PROGRESS,
    Budget,
    Claim,
    Claimed,
    ClaimedJob,
    Counts,
    DeadLetterJob,
    Delete,
    Enqueued,
    HeartbeatAnswer,
    Job,
    JobFilter,
    JobGroup,
    JobInfo,
    JobRecord,
    JobState,
    Move,
    Progress,
    QueueCount,
    Rate,
    Reason,
    Rejected,
    Requeue,
    RequeueDead,
    Settlement,
    WorkerInfo,
    WorkerState,
    bounded,
    check_claim,
    check_job,
    check_settlements,
    moved_id,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit, pages
from wrasse.ports.records import Records
from wrasse.ports.rules import job_transitions as rules
from wrasse.ports.rules.job_transitions import RequestCache, StoredJob

_KEPT_FOR = 10  # times the duration of a count: counts are cached that long, unless something changed here
Numbers = tuple[tuple[QueueCount, ...], datetime]
DEAD_WORKERS_KEPT = timedelta(hours=1)
_PAGE = 1_000
_OLD_MAX = 20  # removed by one heartbeat


@dataclass(slots=True)
class QueueTally:
    """How many jobs of a queue are in each state, as counted so far. `oldest`: since when the oldest ready job is
    ready, in microseconds."""

    numbers: Counter[str] = field(default_factory=Counter)
    oldest: int | None = None

    def add(self, where: str, since: int = 0) -> None:
        """One more: `ready`, `scheduled`, `running`, `done` or `dead`."""
        self.numbers[where] += 1
        if where == "ready":
            self.oldest = since if self.oldest is None else min(self.oldest, since)

    def count(self, queue: str) -> QueueCount:
        """The counts as the port returns them."""
        since = None if self.oldest is None else from_micros(self.oldest)
        return QueueCount(queue, **self.numbers, oldest_ready_at=since)


class CachedCounts:
    """Cached counts. If a count takes longer than `long` seconds, the cache is used even if something changed here."""

    def __init__(self, clock: Clock, long: float = float("inf")) -> None:
        self._clock, self._long = clock, long
        self._cached: Numbers | None = None
        self._fresh_until = self._took = 0.0
        self._changes = -1

    async def get(self, changes: int, count: Callable[[], Awaitable[Numbers]]) -> Numbers:
        """The numbers. `changes`: how many writes this process has made so far."""
        begun = self._clock.monotonic()
        same = self._changes == changes or self._took > self._long
        if self._cached is None or not same or begun >= self._fresh_until:
            self._cached, self._changes = await count(), changes
            self._took = self._clock.monotonic() - begun
            self._fresh_until = begun + self._took * (1 + _KEPT_FOR)
        return self._cached


class RecordedWorkers:
    """The records of all workers."""

    def __init__(self, records: Records, time: MillisecondTime) -> None:
        self._records = records
        self._time = time
        self._versions: dict[str, str] = {}  # of the records that this process writes

    async def heartbeat(self, worker: WorkerInfo, at: datetime, heartbeat_timeout: timedelta) -> None:
        """Stores a heartbeat."""
        state = WorkerState(worker, heartbeat_at=at, deadline=at + heartbeat_timeout)
        value, due_at = encode_worker(state), state.deadline + DEAD_WORKERS_KEPT
        version = self._versions.get(worker.id)
        if version is not None:
            written = await self._records.put(worker.id, value, at=version, due_at=due_at)
        else:
            await self._forget(at)
            written = await self._records.create(worker.id, value, due_at=due_at)
        if written.outcome is not Outcome.DONE:
            # Another process of the same worker, such as its heartbeat process, wrote meanwhile.
            found = await self._records.get(worker.id)
            written = (
                await self._records.create(worker.id, value, due_at=due_at)
                if found is None
                else await self._records.put(worker.id, value, at=found.version, due_at=due_at)
            )
        self._time.heard(written.at)
        if written.version is None:
            self._versions.pop(worker.id, None)
        else:
            self._versions[worker.id] = written.version

    async def deregister(self, worker: WorkerInfo) -> None:
        """Deletes a worker's record."""
        self._versions.pop(worker.id, None)
        found = await self._records.get(worker.id)
        if found is not None:
            await self._records.delete(worker.id, at=found.version)

    async def all(self, at: datetime) -> tuple[WorkerState, ...]:
        """The workers, by their ids."""
        found: list[WorkerState] = []
        async for page in pages(lambda after: self._records.page("", after, _PAGE)):
            for record in page:
                with suppress(ValueError):  # for display only: a record that cannot be read is left out
                    found.append(decoded(decode_worker, record.value))
        return tuple(state for state in found if at - state.deadline <= DEAD_WORKERS_KEPT)

    async def counts(self) -> Counts:
        """The workers alone, for callers that need no counts of jobs."""
        at = await self._time.now()
        return Counts((), await self.all(at), at)

    async def _forget(self, at: datetime) -> None:
        for record in await self._records.due(None, None, _OLD_MAX):
            if record.due_at is not None and record.due_at <= at:
                await self._records.delete(record.key, at=record.version)


ANSWERS_MAX = 10_000
PENDING_MAX = 10_000
_TRIES = 20  # of one change against conflicts, mostly with heartbeats
_AWAY = RetryPolicy(base=timedelta(seconds=1), max=timedelta(minutes=1))  # for a payload whose store does not answer
_NOW = timedelta(0)
_log = logging.getLogger("wrasse.jobs")

Cause = Move | Progress | None  # what a change is made for: stream tasks publish it


class Views(Protocol):
    """Listings and counts of jobs."""

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool
    ) -> Page[JobInfo]:
        """Jobs of one state that match, in its order."""
        ...

    async def counts(self) -> Numbers:
        """How many jobs of each queue are in each state."""
        ...


def unreadable(
    id: str,
    queue: str,
    state: JobState,
    size: int,
    at: datetime,
    error: str,
    *,
    kind: str = "",
    until: datetime | None = None,
) -> JobInfo:
    """The info of a job whose record cannot be read."""
    return JobInfo(
        id=id, kind=kind, queue=queue, priority="", size=size, state=state, token=0, nonce="", attempts=0, failures=0,
        rescues=0, interruptions=0, created_at=at, deadline=until if state is JobState.RUNNING else None,
        finished_at=at if state in (JobState.DONE, JobState.DEAD) else None, reason=Reason.INVALID_PAYLOAD, error=error,
    )  # fmt: skip


class QueueOrder:
    """Ranks of new jobs, each behind everything that this process enqueued before."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, at: datetime) -> int:
        """The next rank."""
        self._last = max(rules.back(at), self._last + 1)
        return self._last


class RecordQueue(ABC, Generic[S]):
    """The port, except what depends on the index of ready jobs and the layout of a record."""

    what = "jobs on records"  # their name in errors
    at_once = enqueue_at_once = GATHERED_MAX  # jobs of one call that are changed at the same time
    _views: Views

    def __init__(
        self, store: RecordStore[S], claims: Claims[S], ids: Records, workers: Records, clock: Clock, ranks: QueueOrder
    ) -> None:
        self._records, self._claims, self._order = store, claims, ranks
        self.time = store.time
        self._ids = RecordedIds(ids, self.time)
        self.workers = RecordedWorkers(workers, self.time)
        # One cache for each call, since one request id may name an enqueue, a claim and a settle. Only in this
        # process: after a restart no request is retried.
        self._enqueues: RequestCache[Sequence[Enqueued]] = RequestCache(clock, ANSWERS_MAX)
        self._claim_requests: RequestCache[RecordClaim] = RequestCache(clock, ANSWERS_MAX)
        self._settles: RequestCache[Sequence[Outcome]] = RequestCache(clock, ANSWERS_MAX)
        self._pending: dict[str, None] = {}  # requests that began to settle a job and got no answer yet

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        if groups:
            raise UsageError(f"a group of {self.what}", do="use a queue on SQLite or Redis")
        for job in bounded(jobs):
            self._check(job)
        known = self._enqueues.get(request)
        if known is not None:
            return known
        at = await self.time.now()
        first = {job.id: n for n, job in reversed(list(enumerate(jobs)))}
        fresh = [job for n, job in enumerate(jobs) if first[job.id] == n]
        ranks = [self._rank(max(job.not_before or at, at + job.delay, at), at) for job in fresh]
        adds = [partial(self._add, job, rank, at, request) for job, rank in zip(fresh, ranks, strict=True)]
        new = dict(zip((job.id for job in fresh), await gather_bounded(adds, self.enqueue_at_once), strict=True))
        answers = [Enqueued(job.id, new=first[job.id] == n and new[job.id]) for n, job in enumerate(jobs)]
        self._enqueues.keep(request, answers)
        return answers

    async def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        heartbeat_timeout: timedelta,
        request: str,
        wait: timedelta = _NOW,
        rates: Sequence[Rate] = (),
    ) -> Claimed:
        check_claim(limit, heartbeat_timeout)
        if rates:
            raise UsageError(f"a rate for {self.what}", do="use a queue on SQLite or Redis")
        claim = self._claim_requests.get(request)
        seen = [] if claim is None else await self._claims.again(claim)
        if claim is None:
            claim = RecordClaim(worker, heartbeat_timeout, request, self._served(queues), min(limit, BATCH_MAX))
            self._claim_requests.keep(request, claim)
        if not seen and not claim.got:  # new, or cut short before it got anything
            seen = await self._claims.claim(claim, wait)
        if not seen:
            self._claim_requests.forget(request)
        self._note_claimed(seen)
        apart = [each for each in seen if each.apart]
        read = iter(
            await gather_bounded([partial(self._read_apart, each) for each in apart], self.at_once) if apart else ()
        )
        found = [next(read) if each.apart else self._claimed(each.stored) for each in seen]
        rejected = tuple(each for each in found if isinstance(each, Rejected))
        return Claimed(tuple(each for each in found if isinstance(each, ClaimedJob)), await self.time.now(), rejected)

    async def _read_apart(self, seen: S) -> ClaimedJob | Rejected | None:
        """A claimed job with its payload. A job whose payload cannot be read is dead-lettered; None if the store does
        not answer: the job is then released with a growing delay."""
        info = seen.stored.info
        try:
            return self._claimed(await self._records.whole(seen))
        except StoreUnavailable as away:
            delay = _AWAY.delay(info.interruptions + 1, 0.5)
            ended: Requeue | DeadLetterJob = Requeue(
                info.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED, error=away.message, delay=delay
            )
        except WrasseError as error:
            ended = DeadLetterJob(
                info.claim, Reason.INVALID_PAYLOAD, error=f"its parameters cannot be read: {error.message}"
            )
        await self.settle([ended], request=f"params {info.token} {info.nonce}")
        return Rejected(info.queue, info.id, ended.error) if isinstance(ended, DeadLetterJob) else None

    async def heartbeat(
        self,
        worker: WorkerInfo,
        claims: Sequence[Claim],
        *,
        heartbeat_timeout: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> HeartbeatAnswer:
        at = await self.time.now()
        calls = [partial(self._is_current, claim) for claim in bounded(claims)]
        if heartbeat_timeout <= _NOW:
            await self.workers.deregister(worker)
        else:
            await self.workers.heartbeat(worker, at, heartbeat_timeout)
            calls = [partial(self._heartbeat, claim, heartbeat_timeout, progress.get(claim.id)) for claim in claims]
        return HeartbeatAnswer(tuple(await gather_bounded(calls, self.at_once)), at)

    async def _is_current(self, claim: Claim) -> bool:
        seen = await self._named(claim.id, self._find)
        return seen is not None and rules.is_current(seen.stored, claim)

    async def _named(self, id: str, find: Callable[[str], Awaitable[S | None]]) -> S | None:
        """A job that its worker names. An unreadable record has no claim: it affects one job of a batch only."""
        try:
            return await find(id)
        except StoreBroken as broken:
            _log.error("job %s is left as it is: %s", id, broken)
            return None

    async def _heartbeat(self, claim: Claim, heartbeat_timeout: timedelta, progress: Progress | None = None) -> bool:
        def extended(stored: StoredJob, at: datetime) -> StoredJob | None:
            return rules.heartbeat(stored, claim, at, heartbeat_timeout=heartbeat_timeout, progress=progress)

        return await self._change(claim.id, extended, progress, again=True) is Outcome.DONE

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        check_settlements(settlements, self._check)
        known = self._settles.get(request)
        if known is not None:
            return known
        # Each has a name of its own within the request, since one batch may name a job twice.
        one = self._settle if len(settlements) == 1 else self._settle_one
        calls = [partial(one, each, f"{request}#{n}") for n, each in enumerate(settlements)]
        outcomes = await by_id([each.claim.id for each in settlements], calls, self.at_once)
        self._settles.keep(request, outcomes)
        return outcomes

    async def _settle_one(self, settlement: Settlement, request: str) -> Outcome:
        """One of several: a settlement too large for its record fails alone; settled alone, it raises the reason."""
        try:
            return await self._settle(settlement, request)
        except TooLarge:
            return Outcome.FAILED

    async def _settle(self, settlement: Settlement, request: str, *, beside: bool = False) -> Outcome:
        """Ends an attempt, by its worker. `beside`: other data stored under the job's id is to be deleted with it."""
        claim, retried = settlement.claim, request in self._pending
        delay = settlement.delay if isinstance(settlement, Requeue) else _NOW
        aside: dict[str, str] = {}  # objects stored for a write that had a conflict, for the next try
        for _ in range(_TRIES):
            seen = await self._named(claim.id, self._cached_or_stored)
            if seen is None:
                # Deleted; by this request, if its reply was lost.
                return Outcome.UNKNOWN if retried else Outcome.CONFLICT
            if rules.settled_by(seen.stored, claim, request):
                await self._finish_up(seen)
                return Outcome.DONE
            at = await self.time.now()
            rank = self._rank(at + delay, at)
            after = rules.settle(seen.stored, settlement, at, request=request, rank=rank)
            if after is None:
                if self._was_outdated(claim.id, seen):
                    continue
                return Outcome.CONFLICT
            self._pending[request] = None
            while len(self._pending) > PENDING_MAX:
                del self._pending[next(iter(self._pending))]
            outcome = await self._end(seen, after, at, settlement, aside, beside=beside)
            if not retried:
                self._pending.pop(request, None)
            self._was_outdated(claim.id, seen)
            if outcome is not Outcome.CONFLICT:
                return outcome
        raise changing(claim.id)

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        one = self._move if len(moves) == 1 else self._move_one
        calls = [partial(one, each) for each in bounded(moves)]
        return await by_id([moved_id(each) for each in moves], calls, self.at_once)

    async def _move_one(self, move: Move) -> Outcome:
        """One of several: a broken record fails alone."""
        try:
            return await self._move(move)
        except StoreBroken:
            return Outcome.FAILED

    async def _move(self, move: Move) -> Outcome:
        delay = move.delay if isinstance(move, Requeue | RequeueDead) else _NOW

        def moved(stored: StoredJob, at: datetime) -> StoredJob | None:
            return rules.move(stored, move, at, rank=self._rank(at + delay, at))

        return await self._change(moved_id(move), moved, move)

    async def _change(
        self, id: str, decide: Callable[[StoredJob, datetime], StoredJob | None], cause: Cause, *, again: bool = False
    ) -> Outcome:
        """One change of a job: `conflict` if its precondition does not hold, `unknown` if it is unclear whether it was
        made; with `again`, for changes that may be made twice, it is then repeated."""
        for _ in range(_TRIES):
            seen = await (self._named(id, self._cached_or_stored) if again else self._cached_or_stored(id))
            at = await self.time.now()
            after = None if seen is None or seen.leaving else decide(seen.stored, at)
            if seen is None or after is None:
                if seen is not None and self._was_outdated(id, seen):
                    continue
                return Outcome.CONFLICT
            outcome = await self._write(seen, after, at, cause)
            if outcome is Outcome.DONE or (outcome is Outcome.UNKNOWN and not again):
                return outcome
            self._was_outdated(id, seen)
        raise changing(id)

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        calls = [partial(self._delete, each, ids_kept) for each in bounded(deletes)]
        return await by_id([each.claim.id for each in deletes], calls, self.at_once)

    async def _delete(self, delete: Delete, ids_kept: timedelta) -> Outcome:
        seen, at = await self._find(delete.claim.id), await self.time.now()
        return Outcome.CONFLICT if seen is None else await self._remove(seen, delete, at, ids_kept)

    async def _remove(self, seen: S, delete: Delete, at: datetime, ids_kept: timedelta) -> Outcome:
        if seen.leaving or not rules.deletable(seen.stored, delete, at):
            return Outcome.CONFLICT
        if seen.stored.job.lasting:
            # Stored first: after a crash in between the id is refused twice, never forgotten.
            await self._ids.keep(seen.stored.info.id, at + ids_kept)
        return await self._drop(seen, at)

    async def get(self, id: str) -> JobRecord | None:
        seen = await self._find(id)
        return None if seen is None or seen.leaving else await self._shown(seen)

    async def _shown(self, seen: S) -> JobRecord:
        """A job whole; without parts that cannot be read, and with the reason."""
        try:
            stored = await self._records.whole(seen)
        except (StoreBroken, StoreUnavailable) as error:
            stored = seen.stored
            progress = f"its parameters or result cannot be read now: {error.message}"
            info = replace(stored.info, error=f"{stored.info.error}; {progress}" if stored.info.error else progress)
            stored = replace(stored, info=info)
        return stored.at(await self.time.now()).shown

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobInfo]:
        check_limit(limit, "jobs")
        return await self._views.page(state, where, after, limit, newest=newest)

    async def counts(self) -> Counts:
        queues, at = await self._views.counts()
        return Counts(queues, await self.workers.all(at), at)

    async def _add(self, job: Job, rank: int, at: datetime, request: str) -> bool:
        """Whether a job is new, and enqueued by this request."""
        if job.minted or not await self._is_known(job, at):
            stored = rules.added(job, at, rank=rank, request=request, retries_max=self._retries_max(job))
            if await self._create(stored, at, request):
                return True
        there = await self._named(job.id, lambda _: self._stored(job))
        return there is not None and there.stored.enqueued_by == request

    async def _is_known(self, job: Job, at: datetime) -> bool:
        return await self._ids.known(job.id, at)

    async def _follow(self, jobs: Sequence[Job], request: str) -> None:
        """Enqueues the follow-up jobs of a completion."""
        await self.enqueue(jobs, request=request)

    def _check(self, job: Job) -> None:
        """Refuses a job that this queue cannot store."""
        check_job(job)
        if job.unique or job.group:
            raise UsageError(
                f"{self.what} have no unique name and no group, as job {job.id!r} should have",
                do="give the job an id, or use a queue on SQLite or Redis",
            )

    def _served(self, queues: Sequence[str]) -> tuple[str, ...]:
        """The queues to claim from, in order."""
        return tuple(dict.fromkeys(queues))

    def _rank(self, due: datetime, at: datetime) -> int:
        """The rank of a job that becomes ready at `due`."""
        return self._order.next(at)

    def _claimed(self, stored: StoredJob) -> ClaimedJob:
        """The job as a claim returns it."""
        return stored.claimed

    def _note_claimed(self, claimed: Sequence[S]) -> None:
        """Called with the jobs that this process claimed."""

    def _was_outdated(self, id: str, seen: S) -> bool:
        """Drops a job from the cache; whether the cached entry was used, so that the stored record must be read."""
        return False

    async def _cached_or_stored(self, id: str) -> S | None:
        """A job as this process wrote it last, if cached; else as it is stored."""
        return await self._find(id)

    @abstractmethod
    def _retries_max(self, job: Job) -> int | None:
        """How often a new job may be retried for any reason; None: the worker's setting."""

    @abstractmethod
    async def _find(self, id: str) -> S | None:
        """The job of this id, as it is stored."""

    @abstractmethod
    async def _stored(self, job: Job) -> S | None:
        """The job stored under the key of this one."""

    @abstractmethod
    async def _create(self, stored: StoredJob, at: datetime, request: str) -> bool:
        """Stores a new job; False if its id exists, or if the outcome is unknown."""

    @abstractmethod
    async def _write(self, seen: S, after: StoredJob, at: datetime, cause: Cause) -> Outcome:
        """Writes the new state of a job."""

    @abstractmethod
    async def _end(
        self, seen: S, after: StoredJob, at: datetime, settlement: Settlement, aside: dict[str, str], *, beside: bool
    ) -> Outcome:
        """Writes the end of an attempt, and does what follows it; `conflict` to retry."""

    @abstractmethod
    async def _finish_up(self, seen: S) -> None:
        """Does what is left to do after the end of a job."""

    @abstractmethod
    async def _drop(self, seen: S, at: datetime) -> Outcome:
        """Deletes a job's record, and the objects beside it."""
