"""Listings and counts of stream tasks: from the status index of their records, or, where a backend has none, by reading
the records of their types.

From the index the cost of both follows what they show, not what is stored. A page reads the index of its types side by
side, and checks each record before listing it: a task that another program has changed since it was indexed is left out
if its state differs. Counts are those of the index.

Reading is bounded. Of a type with more than SCAN_MAX records each call of counts reads so many more, and returns the
result of the last whole round, or of the current one until a round has ended; a listing is then in the order of ids.
With fewer records both are as from the index.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from wrasse.clock import Clock, from_micros, to_micros
from wrasse.jobs.record_core.job_counts import CachedCounts, Numbers, QueueTally
from wrasse.jobs.record_core.queue import Views
from wrasse.jobs.stream_tasks.fields import (
    Position,
    position_of,
    read_position,
    record_key,
    status_name,
    statuses_of,
    write_position,
)
from wrasse.jobs.stream_tasks.search import TaskSearch
from wrasse.jobs.stream_tasks.store import Malformed, TaskStore
from wrasse.ports.jobs import JobFilter, JobInfo, JobState, QueueCount
from wrasse.ports.page import Page, pages
from wrasse.ports.records import stored_name
from wrasse.ports.rules.job_transitions import JobStatus, StoredJob
from wrasse.ports.status_index import IndexedRecords, StatusRange, index_cursor, read_cursor

SCAN_MAX = 10_000
_PAGE = 1_000
_LONG = 0.25  # seconds: counts that take longer are cached even if something changed here
_RANKS = 1_000  # in one microsecond
_AFTER_ALL = chr(0x10FFFF)  # sorts after every name
_BY_ID = "~"  # begins the cursor of a listing in the order of ids


def views_of(
    status_index: IndexedRecords | None, store: TaskStore, search: TaskSearch, types: Sequence[str], clock: Clock
) -> Views:
    """The views of a store with or without a status index."""
    if status_index is not None:
        return IndexedTaskViews(status_index, store, search, types)
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


class IndexedTaskViews:
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
        status_index: IndexedTaskViews,
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
