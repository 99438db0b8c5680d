"""JobQueue in memory. The reference for what the port's header promises.

Every change is computed and stored without an await in between, so each method is atomic. What a batch may be refused
for is checked before its first change: a batch is stored whole or not at all.

Ids are remembered after their job is deleted, so that a finished job never runs again under the same id; every change
drops expired ids, earliest first.

A member may finish before its group is opened, so counting starts with whichever comes first. A group that has fired
is remembered, so that it cannot fire again, and forgotten after GROUPS_KEPT.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count, islice

from wrasse.backends.memory import status_index
from wrasse.backends.memory.status_index import JobIndex, JobRow
from wrasse.clock import Clock
from wrasse.ports.jobs import (
    BATCH_MAX,
    GROUP_DEAD_HEADER,
    GROUP_DONE_HEADER,
    GROUP_HEADER,
    GROUPS_KEPT,
    IDS_KEPT,
    NO_PROGRESS,
    Claim,
    Claimed,
    Counts,
    Delete,
    Enqueued,
    HeartbeatAnswer,
    Job,
    JobFilter,
    JobGroup,
    JobInfo,
    JobRecord,
    JobState,
    JobStatus,
    Move,
    Progress,
    QueueCount,
    Rate,
    Settlement,
    WorkerInfo,
    WorkerState,
    bounded,
    check_claim,
    check_enqueue,
    check_settlements,
    moved_id,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.rules import job_transitions as rules
from wrasse.ports.rules.job_transitions import RequestCache

_NAMES_FORGOTTEN = 2  # expired names that are looked for at every new one
DEAD_WORKERS_KEPT = timedelta(hours=1)
_SHORTEST_WAIT = 0.001  # keeps a clock slower than the event loop's from being polled in a tight loop


class KnownIds:
    """Lasting ids of deleted jobs, each until it expires."""

    __slots__ = ("_order", "_until")

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}
        self._order: list[tuple[datetime, str]] = []

    def has(self, id: str, now: datetime) -> bool:
        """Whether an enqueue of this id is refused."""
        until = self._until.get(id)
        return until is not None and now < until

    def keep(self, id: str, until: datetime, now: datetime) -> None:
        """Remembers an id."""
        self._until[id] = until
        heapq.heappush(self._order, (until, id))
        while self._order and self._order[0][0] <= now:
            moment, old = heapq.heappop(self._order)
            if self._until.get(old) == moment:
                del self._until[old]


class Rates:
    """When jobs of limited queues were claimed."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: dict[str, deque[datetime]] = {}

    def allowed(self, queue: str, rates: Sequence[Rate], now: datetime) -> int | None:
        """How many jobs of this queue may be claimed now; None if no rate limits it."""
        return min((rate.limit - self._within(rate, now) for rate in rates if rate.queue == queue), default=None)

    def note_claims(self, queue: str, count: int, rates: Sequence[Rate], now: datetime) -> None:
        """Notes that `count` jobs were claimed."""
        limit = max((rate.limit for rate in rates if rate.queue == queue), default=0)
        if limit:
            claims = self._claims.get(queue, ())
            self._claims[queue] = deque([*claims, *[now] * count], maxlen=limit)

    def next_at(self, queues: Sequence[str], rates: Sequence[Rate], now: datetime) -> datetime | None:
        """When the first of the queues that are at their limit may be claimed from again."""
        ends = [
            self._claims[rate.queue][-rate.limit] + rate.per
            for rate in rates
            if rate.queue in queues and self._within(rate, now) >= rate.limit
        ]
        return min(ends, default=None)

    def _within(self, rate: Rate, now: datetime) -> int:
        return sum(at > now - rate.per for at in self._claims.get(rate.queue, ()))


@dataclass(frozen=True, slots=True)
class _Name:
    id: str
    until: datetime | None  # None: until the job is finished


class Uniques:
    """Unique names, and the job that has each. `unfinished` says whether a job is still to run."""

    __slots__ = ("_names", "_unfinished")

    def __init__(self, unfinished: Callable[[str], bool]) -> None:
        self._unfinished = unfinished
        self._names: dict[str, _Name] = {}

    def in_the_way(self, job: Job, now: datetime) -> str | None:
        """The id of the job that has this job's name, if it still counts."""
        name = self._names.get(job.unique)
        return name.id if name is not None and self._counts(name, now) else None

    def assign(self, job: Job, now: datetime) -> None:
        """Gives the name to a job that was just enqueued."""
        for old in [name for name, _ in zip(self._names, range(_NAMES_FORGOTTEN), strict=False)]:
            held = self._names.pop(old)
            if self._counts(held, now):
                self._names[old] = held  # moved to the end: the next check sees other names
        self._names[job.unique] = _Name(job.id, now + job.window if job.window > timedelta(0) else None)

    def _counts(self, name: _Name, now: datetime) -> bool:
        return self._unfinished(name.id) if name.until is None else now < name.until


@dataclass(slots=True)
class _GroupCount:
    seen_at: datetime
    group: JobGroup | None = None
    done: int = 0
    dead: int = 0
    fired: bool = False


class JobGroups:
    """All groups of one queue."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, _GroupCount] = {}

    def open(self, group: JobGroup, now: datetime) -> Job | None:
        """Opens a group unless it is known; returns its callback if all members have finished already."""
        self._forget(now)
        counted = self._groups.setdefault(group.id, _GroupCount(now))
        if counted.group is None:
            counted.group = group
        return self._fire(counted)

    def count(self, id: str, now: datetime, *, done: bool) -> Job | None:
        """Counts a member that finished; returns the callback if it was the last."""
        counted = self._groups.setdefault(id, _GroupCount(now))
        counted.done += done
        counted.dead += not done
        return self._fire(counted)

    def _fire(self, counted: _GroupCount) -> Job | None:
        if counted.group is None or counted.fired or counted.done + counted.dead < counted.group.size:
            return None
        counted.fired = True
        return called(counted.group, counted.done, counted.dead)

    def _forget(self, now: datetime) -> None:
        for id, counted in [*self._groups.items()][:2]:
            if now - counted.seen_at > GROUPS_KEPT and (counted.fired or counted.group is None):
                del self._groups[id]


def called(group: JobGroup, done: int, dead: int) -> Job:
    """The callback as it becomes ready, with the numbers of its group."""
    told = {GROUP_HEADER: group.id, GROUP_DONE_HEADER: str(done), GROUP_DEAD_HEADER: str(dead)}
    return replace(group.callback, headers={**group.callback.headers, **told})


class MemoryJobs:
    """All jobs of one process, in memory."""

    def __init__(self, clock: Clock, *, done_max: int = 10_000) -> None:
        assert done_max >= 0, "a limit is not negative"
        self._clock = clock
        self._done_max = done_max
        self._index = JobIndex()
        self._known = KnownIds()
        self._uniques = Uniques(self._is_unfinished)
        self._groups = JobGroups()
        self._rates = Rates()
        self._workers: dict[str, WorkerState] = {}
        self._enqueues: RequestCache[tuple[Enqueued, ...]] = RequestCache(clock)
        self._claim_requests: RequestCache[tuple[Claim, ...]] = RequestCache(clock)
        self._settles: RequestCache[tuple[Outcome, ...]] = RequestCache(clock)
        self._wakeups: dict[asyncio.Event, frozenset[str]] = {}
        # Tokens come from one counter, so that they also grow for an id that is deleted and enqueued again.
        self._token, self._seq, self._back = count(1), count(1), count(1)

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        check_enqueue(jobs, groups)
        answer = self._enqueues.get(request)
        if answer is None:
            now = self._now()
            answer = tuple(self._add(job, now) for job in jobs)
            for group in groups:
                self._call(self._groups.open(group, now), now)
            self._enqueues.keep(request, answer)
        return answer

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
        check_claim(limit, heartbeat_timeout)
        limit = min(limit, BATCH_MAX)
        queues = tuple(dict.fromkeys(queues))
        grant = partial(self._grant, queues, limit, worker, heartbeat_timeout, request, rates)
        claimed = grant()
        if claimed.jobs or wait <= timedelta(0):
            return claimed
        wakeup = asyncio.Event()
        self._wakeups[wakeup] = frozenset(queues)
        try:
            async with asyncio.timeout(wait.total_seconds()):
                while not claimed.jobs:
                    await self._wait_for_wakeup(wakeup, queues, rates)
                    claimed = grant()
        except TimeoutError:
            claimed = grant()
        finally:
            del self._wakeups[wakeup]
        return claimed

    async def heartbeat(
        self,
        worker: WorkerInfo,
        claims: Sequence[Claim],
        *,
        heartbeat_timeout: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> HeartbeatAnswer:
        now = self._now()
        rows = [self._index.current(claim, JobState.RUNNING) for claim in bounded(claims)]
        mine = HeartbeatAnswer(tuple(row is not None for row in rows), now)
        if heartbeat_timeout <= timedelta(0):
            self._workers.pop(worker.id, None)
            return mine
        self._forget_workers(now)
        self._workers[worker.id] = WorkerState(worker, heartbeat_at=now, deadline=now + heartbeat_timeout)
        for row in {row.seq: row for row in rows if row is not None}.values():
            told = progress.get(row.job.id)
            if (
                after := rules.heartbeat(row, row.info.claim, now, heartbeat_timeout=heartbeat_timeout, progress=told)
            ) is not None:
                self._index.set(after)
        return mine

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        check_settlements(settlements)
        answer = self._settles.get(request)
        if answer is None:
            now = self._now()
            answer = tuple(self._end(settlement, now) for settlement in settlements)
            self._settles.keep(request, answer)
            self._trim_done(now)
        return answer

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        now = self._now()
        return tuple(self._move(move, now) for move in bounded(moves))

    async def get(self, id: str) -> JobRecord | None:
        self._now()
        row = self._index.find(id)
        return None if row is None else row.shown

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobInfo]:
        return status_index.page(self._index, state, where, after, limit, newest=newest, at=self._now())

    async def overdue(self, after: str | None, limit: int) -> Page[JobInfo]:
        return status_index.overdue(self._index, after, limit, at=self._now())

    async def counts(self) -> Counts:
        now = self._now()
        self._forget_workers(now)
        queues = tuple(self._count(queue) for queue in self._index.queues())
        return Counts(queues, tuple(self._workers[id] for id in sorted(self._workers)), now)

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        now = self._now()
        return tuple(self._delete(delete, ids_kept, now) for delete in bounded(deletes))

    def _now(self) -> datetime:
        """The time. Every scheduled job that is due by then is moved to the end of its queue."""
        now = self._clock.now()
        while (row := self._index.first(JobStatus.SCHEDULED)) and (due := row.info.not_before) and due <= now:
            ready = replace(row, rank=next(self._back), ready_at=due, info=replace(row.info, not_before=None))
            self._index.set(ready)
        return now

    def _add(self, job: Job, now: datetime) -> Enqueued:
        if self._index.find(job.id) is not None or self._known.has(job.id, now):
            return Enqueued(job.id, new=False)
        other = self._uniques.in_the_way(job, now) if job.unique else None
        if other is not None:
            return Enqueued(other, new=False)
        info, seq = rules.new_info(job, now), next(self._seq)
        ready_at = info.not_before or now
        self._ready(JobRow(rules.copied(job), info, next(self._back), seq=seq, ready_at=ready_at))
        if job.unique:
            self._uniques.assign(job, now)
        return Enqueued(job.id, new=True)

    def _is_unfinished(self, id: str) -> bool:
        row = self._index.find(id)
        return row is not None and row.info.state in (JobState.READY, JobState.RUNNING)

    def _finish(self, row: JobRow, now: datetime) -> None:
        """Stores a row that is done or dead, and enqueues the callback if it was the last of its group."""
        member, counted = row.job.group, row.counted
        self._index.set(replace(row, counted=True) if member else row)
        if member and not counted:
            self._call(self._groups.count(member, now, done=row.info.state is JobState.DONE), now)

    def _call(self, callback: Job | None, now: datetime) -> None:
        if callback is not None:
            self._add(callback, now)

    def _ready(self, row: JobRow) -> None:
        """Stores a row that is ready or scheduled, and wakes waiting workers."""
        self._index.set(row)
        for wakeup, queues in self._wakeups.items():
            if row.job.queue in queues:
                wakeup.set()

    def _grant(
        self,
        queues: Sequence[str],
        limit: int,
        worker: str,
        heartbeat_timeout: timedelta,
        request: str,
        rates: Sequence[Rate],
    ) -> Claimed:
        now = self._now()
        answer = self._claim_requests.get(request)
        if answer is not None:
            rows = [self._index.current(claim, JobState.RUNNING) for claim in answer]
            return Claimed(tuple(row.claimed for row in rows if row is not None), now)
        found: list[JobRow] = []
        for queue in queues:
            allowed = self._rates.allowed(queue, rates, now)
            room = limit - len(found) if allowed is None else min(limit - len(found), max(allowed, 0))
            next_ones = list(islice(self._index.walk(JobStatus.READY, queue), room))
            self._rates.note_claims(queue, len(next_ones), rates, now)
            found += next_ones
        jobs = tuple(self._claim_row(row, worker, now, heartbeat_timeout).claimed for row in found)
        if jobs:
            self._claim_requests.keep(request, tuple(job.claim for job in jobs))
        return Claimed(jobs, now)

    def _claim_row(self, row: JobRow, worker: str, now: datetime, heartbeat_timeout: timedelta) -> JobRow:
        token = next(self._token)
        held = rules.claim(
            row, now, worker=worker, nonce=f"{token:x}", heartbeat_timeout=heartbeat_timeout, token=token
        )
        assert held is not None, "what is listed as ready is ready"
        self._index.set(held)
        return held

    async def _wait_for_wakeup(self, wakeup: asyncio.Event, queues: Sequence[str], rates: Sequence[Rate]) -> None:
        """Waits for a change in one of the queues, or until the next scheduled job of one of them is due or a limit
        allows more."""
        wakeup.clear()
        now = self._clock.now()
        nexts = [row for queue in queues if (row := self._index.first(JobStatus.SCHEDULED, queue)) is not None]
        moments = [row.info.not_before for row in nexts] + [self._rates.next_at(queues, rates, now)]
        due = min((moment for moment in moments if moment is not None), default=None)
        seconds = None if due is None else max((due - now).total_seconds(), _SHORTEST_WAIT)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wakeup.wait()

    def _end(self, settlement: Settlement, now: datetime) -> Outcome:
        row = self._index.find(settlement.claim.id)
        if row is None:
            return Outcome.CONFLICT
        return self._changed(rules.settle(row, settlement, now, request="", rank=next(self._back)), now)

    def _move(self, move: Move, now: datetime) -> Outcome:
        row = self._index.find(moved_id(move))
        return Outcome.CONFLICT if row is None else self._changed(self._moved(row, move, now), now)

    def _moved(self, row: JobRow, move: Move, now: datetime) -> JobRow | None:
        """The row after this move, if the move's condition holds."""
        return rules.move(row, move, now, rank=next(self._back), token=next(self._token))

    def _changed(self, row: JobRow | None, now: datetime) -> Outcome:
        """Stores a changed row, with the follow-ups of a finish."""
        if row is None:
            return Outcome.CONFLICT
        if row.info.state is JobState.READY:
            self._ready(replace(row, ready_at=row.info.not_before or now))
        else:
            self._finish(replace(row, follow=()) if row.follow else row, now)
        for job in row.follow:
            self._add(job, now)
        return Outcome.DONE

    def _delete(self, delete: Delete, ids_kept: timedelta, now: datetime) -> Outcome:
        row = self._index.find(delete.claim.id)
        if row is None or not rules.deletable(row, delete, now):
            return Outcome.CONFLICT
        self._drop(row, ids_kept, now)
        if row.job.group and not row.counted:
            self._call(self._groups.count(row.job.group, now, done=False), now)
        return Outcome.DONE

    def _drop(self, row: JobRow, ids_kept: timedelta, now: datetime) -> None:
        self._index.drop(row)
        if row.job.lasting:
            self._known.keep(row.job.id, now + ids_kept, now)

    def _trim_done(self, now: datetime) -> None:
        while self._index.count(JobStatus.DONE) > self._done_max:
            oldest = self._index.first(JobStatus.DONE)
            assert oldest is not None, "a list that is not empty has a first row"
            if oldest.info.kept_until is not None and now < oldest.info.kept_until:
                return  # and so are all after it
            self._drop(oldest, IDS_KEPT, now)

    def _forget_workers(self, now: datetime) -> None:
        for id in [id for id, worker in self._workers.items() if now - worker.deadline > DEAD_WORKERS_KEPT]:
            del self._workers[id]

    def _count(self, queue: str) -> QueueCount:
        count = self._index.count
        # Ranks below zero are served next, the newest of them first; the others wait in order of arrival.
        waiting = [self._index.first(JobStatus.READY, queue, (0, 0), newest=newest) for newest in (False, True)]
        return QueueCount(
            queue,
            ready=count(JobStatus.READY, queue),
            scheduled=count(JobStatus.SCHEDULED, queue),
            running=count(JobStatus.RUNNING, queue),
            done=count(JobStatus.DONE, queue),
            dead=count(JobStatus.DEAD, queue),
            oldest_ready_at=min((row.ready_at for row in waiting if row is not None), default=None),
        )
