"""Reads stream tasks by their indexes: due work, strays, listings and counts.

`TaskSearch` does due work for workers and sweeps: it delivers events and follow-ups that a crash left undelivered, and
makes scheduled tasks ready that have become due. It spends no budget, and a second copy of an event loses at the claim.
Each step is one conditional write, so that two concurrent searches do it once.

`TaskStrays` finds records without a due entry that should have one, since other programs write tasks too. A task that
was claimed elsewhere has no due entry until a scan has read it and noted its deadline. And a ready task may have no
entry in its queue: a stream was lost, or a program wrote the record and died before it published. Such a task is
published again, but only if its entry is provably gone: its group has read to the end of the stream and has no pending
entries. Age proves nothing: under a backlog all entries are old.

`IndexedTasks` lists and counts from the status index, so that the cost follows what is shown, not what is stored. A
page reads the index of its types side by side, and checks each record before listing it: a task that another program
has changed since it was indexed is left out if its state differs. Counts are those of the index.

`ScannedTasks` reads all records, where a backend has no status index. Of a type with more than SCAN_MAX records each
call of counts reads so many more, and returns the result of the last whole round, or of the current one until a round
has ended; a listing is then in the order of ids. With fewer records both are as from the index.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from wrasse.clock import Clock, from_micros, to_micros
from wrasse.errors import StoreBroken
from wrasse.jobs.record_core.queue import CachedCounts, Numbers, QueueOrder, QueueTally, Views
from wrasse.jobs.stream_tasks.events import queued
from wrasse.jobs.stream_tasks.fields import (
    Position,
    group_of,
    index_entry_of,
    position_of,
    queue_of,
    read_position,
    record_key,
    status_name,
    statuses_of,
    write_position,
)
from wrasse.jobs.stream_tasks.store import Malformed, Task, TaskStore, due_of
from wrasse.ports.inconsistency import StrayScan
from wrasse.ports.jobs import Job, JobFilter, JobInfo, JobState, JobStatus, QueueCount
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit, pages
from wrasse.ports.records import (
    IndexedRecords,
    Record,
    Records,
    SharedRecords,
    StatusRange,
    index_cursor,
    read_cursor,
    stored_name,
)
from wrasse.ports.rules.job_transitions import StoredJob
from wrasse.ports.streams import Streams

DUE_MAX = 100  # due records that a worker reads in one page
MALFORMED_MAX = 1_000  # malformed tasks whose reasons are kept
SCAN_MAX = 10_000
_DUE_PAGES_MAX = 10  # the rest is left to the next search
_PAGE = 1_000
_LONG = 0.25  # seconds: counts that take longer are cached even if something changed here
_RANKS = 1_000  # in one microsecond
_AFTER_ALL = chr(0x10FFFF)  # sorts after every name
_BY_ID = "~"  # begins the cursor of a listing in the order of ids

EnqueueJobs = Callable[[Sequence[Job], str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Due:
    """The due tasks: those that are claimed before all others, and when the next one is due."""

    at: datetime
    next_ones: tuple[Task, ...]
    next_at: datetime | None = None


class TaskSearch:
    """Finds and does due work. `enqueue` enqueues follow-up tasks."""

    def __init__(self, store: TaskStore, enqueue: EnqueueJobs, order: QueueOrder) -> None:
        self._store, self._enqueue, self._order = store, enqueue, order
        self.malformed: dict[str, str] = {}  # reasons by key; the newest MALFORMED_MAX

    async def repair_and_list(self, within: timedelta) -> Due:
        """Does what is due, and returns the tasks to claim first."""
        ready: list[Task] = []
        later: list[datetime] = []
        async for page in pages(lambda after: self._store.due(after, DUE_MAX, within=within), most=_DUE_PAGES_MAX):
            at = self._store.time.heard(page.at)
            idle = 0  # expired finished tasks, and those of other workers: nothing to do for a worker
            for record in page:
                task = self.read(record)
                if isinstance(task, Malformed) or task.stored.info.state is not JobState.READY:
                    idle += 1
                    if isinstance(task, Malformed) or not (task.outbox or task.stored.follow):
                        continue
                if record.due_at is not None and record.due_at > at:
                    later.append(record.due_at)
                    continue
                done = await self.repair(task, at)
                if done.stored.served_next:
                    ready.append(done)
            if idle < len(page):
                break
        return Due(at, tuple(sorted(ready, key=lambda task: task.stored.rank)), min(later, default=None))

    async def repair_due(self, *, dry: bool) -> int:
        """Repairs due tasks, up to a bound; returns how many needed it."""
        needed = 0
        async for page in pages(lambda after: self._store.due(after, DUE_MAX), most=_DUE_PAGES_MAX):
            at = self._store.time.heard(page.at)
            for record in page:
                task = self.read(record)
                if isinstance(task, Malformed) or not _needs_repair(task, at):
                    continue
                needed += 1
                if not dry:
                    await self.repair(task, at)
        return needed

    async def repair(self, task: Task, at: datetime) -> Task:
        """Delivers a task's pending events and follow-ups, and makes a due scheduled task ready; returns the new
        task."""
        if task.outbox:
            task = await self._store.deliver(task, at) or task
        if task.stored.follow:
            task = await self.follow(task, at)
        stored = task.stored.at(at)
        if task.stored.scheduled and not stored.scheduled:
            # It is added to the end of its queue, and published now, not when it was enqueued.
            readied = replace(stored, rank=self._order.next(at))
            reason = "" if stored.info.attempts == 0 else "retry"
            return await self._store.put(task, readied, at, [queued(readied, task.fields, reason=reason)]) or task
        return task

    async def follow(self, task: Task, at: datetime) -> Task:
        """Enqueues the follow-ups of a completed task, then removes them from its record."""
        info = task.stored.info
        await self._enqueue(task.stored.follow, f"follow-{info.queue}-{info.id}-{info.token}")
        return await self._store.put(task, replace(task.stored, follow=()), at) or task

    def read(self, record: Record) -> Task | Malformed:
        """The task in a record, or why it is malformed."""
        try:
            task = self._store.read(record)
        except StoreBroken as broken:
            self.malformed.pop(record.key, None)
            self.malformed[record.key] = broken.message
            while len(self.malformed) > MALFORMED_MAX:
                del self.malformed[next(iter(self.malformed))]
            return Malformed(record.key, broken.message)
        self.malformed.pop(record.key, None)
        return task


def _needs_repair(task: Task, at: datetime) -> bool:
    return bool(task.outbox or task.stored.follow) or (task.stored.scheduled and not task.stored.at(at).scheduled)


def is_stuck(task: Task) -> bool:
    """Whether it is running, with no pending events. The due index says whether its deadline has passed."""
    return task.stored.info.state is JobState.RUNNING and not task.outbox


async def due_tasks(
    store: TaskStore, search: TaskSearch, after: str | None, limit: int, wanted: Callable[[Task], bool]
) -> Page[JobInfo]:
    """Due tasks that `wanted` accepts, longest due first. Reads only."""
    check_limit(limit, "jobs")
    found: list[tuple[JobInfo, str]] = []
    while True:
        page = await store.due(after, limit)
        at = store.time.heard(page.at)
        for record, cursor in zip(page.items, page.cursors, strict=True):
            after = cursor
            task = search.read(record)
            if isinstance(task, Malformed) or record.due_at is None or record.due_at > at:
                continue
            if wanted(task) and _passed(task, at):
                found.append((task.stored.info, cursor))
            if len(found) == limit:
                break
        if len(found) == limit or not page.more:
            break
    more = len(found) == limit and (page.more or found[-1][1] != page.cursors[-1])
    return Page(tuple(info for info, _ in found), tuple(cursor for _, cursor in found), at, more)


def _passed(task: Task, at: datetime) -> bool:
    deadline = task.stored.info.deadline
    return deadline is None or deadline <= at


class TaskStrays:
    """The port, for tasks."""

    def __init__(
        self, records: Records, streams: Streams, store: TaskStore, search: TaskSearch, types: tuple[str, ...]
    ) -> None:
        self._shared = records.shared
        self._streams, self._store, self._search, self._types = streams, store, search, types
        self._after: dict[str, str | None] = {}  # by type: where the scan for tasks without an entry continues

    async def scan(self, after: str | None, limit: int, *, heartbeat_timeout: timedelta, dry: bool) -> StrayScan:
        """One scan of records of other programs, and one of ready tasks. `heartbeat_timeout` applies to neither: each
        record has its own deadline."""
        seen = adopted = 0
        cursor, ended = "", True
        if self._shared is not None:
            found = await self._shared.scan(after, limit, dry=dry)
            cursor, ended = found.cursor, found.ended
            for record in found.changed:
                seen += 1
                adopted += 0 if dry else await self._note(self._shared, record, found.at)
            if not dry:
                await self._reindex(found.changed)
        if after is None:
            owed = await self._search.repair_due(dry=dry)
            seen, adopted = seen + owed, adopted + (0 if dry else owed)
        for task_type in self._types:
            more = await self._publish_lost(task_type, limit, dry=dry)
            seen, adopted = seen + more, adopted + (0 if dry else more)
        return StrayScan(len(self._types), seen, adopted, cursor, ended)

    async def _note(self, shared: SharedRecords, record: Record, at: datetime) -> int:
        task = self._search.read(record)
        # A malformed one is reported; it is never due.
        due_at = None if isinstance(task, Malformed) else due_of(task.stored, at)
        return int(await shared.note(record.key, at=record.version, due_at=due_at) is Outcome.DONE)

    async def _reindex(self, records: Sequence[Record]) -> None:
        """Indexes tasks that another program has changed, or that were written before the index existed, so that
        listings and counts are right after a round."""
        if self._store.status_index is not None and records:
            tasks = [(record, self._search.read(record)) for record in records]
            await self._store.status_index.reindex(
                [(each, None if isinstance(task, Malformed) else index_entry_of(task.stored)) for each, task in tasks]
            )

    async def _publish_lost(self, task_type: str, limit: int, *, dry: bool) -> int:
        """Publishes ready tasks whose entry is provably gone; returns how many."""
        page = await self._store.page(f"{task_type}:", self._after.get(task_type), limit)
        if not dry:
            self._after[task_type] = page.cursor
            await self._reindex(page.items)
        waiting = [task for record in page if (task := self._waiting(record)) is not None]
        # Read after the records: an entry that existed when they were read still exists, or was acked since, and then
        # the record has changed.
        if not waiting or not await self._is_queue_drained(task_type):
            return 0
        at = self._store.time.heard(page.at)
        if not dry:
            for task in waiting:
                await self._store.put(task, task.stored, at, [queued(task.stored, task.fields, reason="untold")])
        return len(waiting)

    def _waiting(self, record: Record) -> Task | None:
        task = self._search.read(record)
        if isinstance(task, Malformed) or task.outbox or task.due_at is not None:
            return None
        stored = task.stored
        return task if stored.info.state is JobState.READY and not stored.scheduled else None

    async def _is_queue_drained(self, task_type: str) -> bool:
        state = await self._streams.info(queue_of(task_type))
        if state is None or state.last is None:
            return True
        group = next((each for each in state.groups if each.name == group_of(task_type)), None)
        # Not the group's lag, which is wrong after some trims.
        return group is not None and group.pending == 0 and group.delivered >= state.last


def views_of(
    status_index: IndexedRecords | None, store: TaskStore, search: TaskSearch, types: Sequence[str], clock: Clock
) -> Views:
    """The views of a store with or without a status index."""
    if status_index is not None:
        return IndexedTasks(status_index, store, search, types)
    return ScannedTasks(store, search, types, clock)


@dataclass(slots=True)
class _Round(QueueTally):
    """The progress of a count of one type."""

    after: str | None = None


class ScannedTasks:
    """Listings and counts of tasks by reading their records."""

    def __init__(
        self, store: TaskStore, search: TaskSearch, types: Sequence[str], clock: Clock, scan_max: int = SCAN_MAX
    ) -> None:
        self._store, self._search, self._types, self._scan_max = store, search, tuple(types), scan_max
        self._rounds = {each: _Round() for each in types}
        self._last_counts: dict[str, QueueCount] = {}  # by type: the result of the last whole round
        self._counted = CachedCounts(clock, _LONG)

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool
    ) -> Page[JobInfo]:
        """See Views."""
        types = self._types if where.queue is None else (where.queue,)
        at = await self._store.time.now()
        if after is not None and after.startswith(_BY_ID):
            return await self._by_id(state, where, types, after, limit, at)
        start = None if after is None else read_position(after)
        found: list[tuple[Position, JobInfo]] = []
        seen = 0
        pick = heapq.nlargest if newest else heapq.nsmallest
        async for _, stored in self._all(types):
            seen += 1
            if seen > self._scan_max and after is None:
                return await self._by_id(state, where, types, _BY_ID, limit, at)
            info = stored.at(at).info
            position = position_of(stored)
            beyond = start is None or (position < start if newest else position > start)
            if beyond and info.state is state and where.allows(info):
                found.append((position, info))
                if len(found) > 2 * limit + _PAGE:
                    found = pick(limit + 1, found, key=lambda each: each[0])
        found = pick(limit + 1, found, key=lambda each: each[0])
        return Page.cut([(write_position(position), info) for position, info in found], limit, at)

    async def _by_id(
        self, state: JobState, where: JobFilter, types: Sequence[str], after: str, limit: int, at: datetime
    ) -> Page[JobInfo]:
        found: list[tuple[str, JobInfo]] = []
        async for cursor, stored in self._all(types, after.removeprefix(_BY_ID)):
            info = stored.at(at).info
            if info.state is state and where.allows(info):
                found.append((_BY_ID + cursor, info))
                if len(found) > limit:
                    break
        return Page.cut(found, limit, at)

    async def counts(self) -> Numbers:
        """See Views."""
        return await self._counted.get(self._store.changes, self._count_all)

    async def _count_all(self) -> Numbers:
        at = await self._store.time.now()
        return tuple([await self._count(each, at) for each in self._types]), at

    async def _count(self, task_type: str, at: datetime) -> QueueCount:
        own = self._rounds[task_type]
        for _ in range(max(self._scan_max // _PAGE, 1)):
            page = await self._store.page(f"{task_type}:", own.after, min(_PAGE, self._scan_max))
            for record in page:
                task = self._search.read(record)
                if not isinstance(task, Malformed):
                    stored = task.stored.at(at)
                    own.add(stored.status, abs(stored.rank) // _RANKS)
            own.after = page.cursor
            if own.after is None:
                self._rounds[task_type] = _Round()
                self._last_counts[task_type] = own.count(task_type)
                break
        return self._last_counts.get(task_type) or own.count(task_type)

    async def _all(self, types: Sequence[str], after: str = "") -> AsyncIterator[tuple[str, StoredJob]]:
        for start in sorted(f"{each}:" for each in types):
            if after and not after.startswith(start) and after > start:
                continue  # that type was listed before
            begin = after if after.startswith(start) else None
            async for page in pages(partial(self._store.page, start, limit=_PAGE), begin):
                for record, cursor in zip(page.items, page.cursors, strict=True):
                    task = self._search.read(record)
                    if not isinstance(task, Malformed):
                        yield cursor, task.stored


class IndexedTasks:
    """Listings and counts of tasks from the status index."""

    def __init__(
        self, status_index: IndexedRecords, store: TaskStore, search: TaskSearch, types: Sequence[str]
    ) -> None:
        self._status_index, self._store, self._search, self._types = status_index, store, search, tuple(types)

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool
    ) -> Page[JobInfo]:
        """See Views."""
        at = await self._store.time.now()
        start = None if after is None else read_position(after)
        types = self._types if where.queue is None else (where.queue,)
        found: list[tuple[Position, JobInfo]] = []
        async for stored in self._walk(state, types, start, limit, newest=newest):
            info = stored.at(at).info
            if info.state is state and where.allows(info):
                found.append((position_of(stored), info))
                if len(found) > limit:
                    break
        return Page.cut([(write_position(position), info) for position, info in found], limit, at)

    async def counts(self) -> Numbers:
        """See Views."""
        now = to_micros(await self._store.time.now())
        spans = [span for each in self._types for span in _spans(each, now)]
        counts, at = await self._status_index.status_counts(spans)
        rows = [counts[n : n + 6] for n in range(0, len(counts), 6)]
        oldest = await asyncio.gather(
            *(self._oldest(each, now, any(row[:2])) for each, row in zip(self._types, rows, strict=True))
        )
        queues = [
            QueueCount(each, ready + passed, delayed - passed, running, done, dead, since)
            for each, (ready, passed, delayed, running, done, dead), since in zip(
                self._types, rows, oldest, strict=True
            )
        ]
        return tuple(queues), self._store.time.heard(at)

    async def _oldest(self, task_type: str, now: int, some: bool) -> datetime | None:
        """Since when the oldest ready task is ready."""
        if not some:
            return None
        ready, delayed = status_name(task_type, JobStatus.READY), status_name(task_type, JobStatus.SCHEDULED)
        oldest_ready, released, due_first = await asyncio.gather(
            self._status_index.status_page(ready, index_cursor(-1, _AFTER_ALL), 1),
            # Below zero are released tasks, which go before the others, the newest first.
            self._status_index.status_page(ready, index_cursor(0, ""), 1, newest=True),
            self._status_index.status_page(delayed, None, 1),
        )
        since = [abs(position) // _RANKS for page in (oldest_ready, released) for position in _positions(page.cursors)]
        since += [position for position in _positions(due_first.cursors) if position <= now]
        return from_micros(min(since)) if since else None

    async def _walk(
        self, state: JobState, types: Sequence[str], start: Position | None, limit: int, *, newest: bool
    ) -> AsyncIterator[StoredJob]:
        parts = list(enumerate(statuses_of(state)))
        for number, status in reversed(parts) if newest else parts:
            if start is not None and (number > start[0] if newest else number < start[0]):
                continue
            begin = start[1:] if start is not None and number == start[0] else None
            rows = [_TypeCursor(self, each, status, begin, min(limit + 1, _PAGE), newest) for each in types]
            await asyncio.gather(*(row.fill() for row in rows))
            while rows := [row for row in rows if row.waiting]:
                first = (max if newest else min)(rows, key=lambda row: row.waiting[0][0])
                yield first.waiting.pop(0)[1]
                await first.fill()

    async def read(
        self, status: str, after: str | None, limit: int, *, newest: bool
    ) -> tuple[list[tuple[tuple[int, str], StoredJob]], str | None]:
        """Tasks of a status, each with its position and id, and the cursor to continue at."""
        page = await self._status_index.status_page(status, after, limit, newest=newest)
        self._store.time.heard(page.at)
        tasks = [(cursor, self._search.read(each)) for each, cursor in zip(page.items, page.cursors, strict=True)]
        found = [
            ((read_cursor(cursor)[0], task.stored.info.id), task.stored)
            for cursor, task in tasks
            if not isinstance(task, Malformed)
        ]
        return found, page.cursor


class _TypeCursor:
    """Reads one status of a type page by page. `waiting`: tasks that were read and not returned yet."""

    def __init__(
        self,
        status_index: IndexedTasks,
        task_type: str,
        status: JobStatus,
        start: tuple[int, str] | None,
        limit: int,
        newest: bool,
    ) -> None:
        self.waiting: list[tuple[tuple[int, str], StoredJob]] = []
        self._status_index = status_index
        self._status = status_name(task_type, status)
        self._after = None if start is None else index_cursor(start[0], stored_name(record_key(task_type, start[1])))
        self._limit = limit
        self._newest = newest
        self._ended = False

    async def fill(self) -> None:
        """Reads the next page if nothing waits."""
        while not self.waiting and not self._ended:
            found, after = await self._status_index.read(self._status, self._after, self._limit, newest=self._newest)
            self.waiting, self._after, self._ended = found, after, after is None


def _spans(task_type: str, now: int) -> tuple[StatusRange, ...]:
    """Ready, delayed until now, delayed, running, done and dead."""
    names = {each: status_name(task_type, each) for each in JobStatus}
    return (
        StatusRange(names[JobStatus.READY]),
        StatusRange(names[JobStatus.SCHEDULED], now),
        *(
            StatusRange(names[each])
            for each in (JobStatus.SCHEDULED, JobStatus.RUNNING, JobStatus.DONE, JobStatus.DEAD)
        ),
    )


def _positions(cursors: Sequence[str]) -> list[int]:
    return [read_cursor(each)[0] for each in cursors]
