"""Listings and counts of jobs that are kept as records, read from their markers.

A page of ready, done or dead jobs costs one listing and one read per job; from the newest on, and for counts, every
marker of the state is listed, a thousand per request. Running jobs are read from the index of deadlines, all of them.
Counts are cached for ten times the duration of a count, unless something changed here. A marker left by a crash is
counted until it is stale; a listing ignores it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from datetime import datetime

from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreBroken
from wrasse.jobs.record_core.queue import CachedCounts, Numbers, QueueTally, unreadable
from wrasse.jobs.record_queue.store import JobRecordRead, ReadyMarker, RecordedStore, Unreadable
from wrasse.ports.jobs import Job, JobFilter, JobInfo, JobRecord, JobState
from wrasse.ports.page import Page
from wrasse.ports.records import index_cursor, read_cursor

_PAGE = 1_000
_AT_ONCE = 32  # records read together
QUEUES_MAX = 10_000
UNREADABLE = "unreadable-"  # prefix of the id shown for a job whose record cannot be read; its key follows
NO_QUEUE = "unreadable"  # the queue shown for running jobs whose record cannot be read


class RecordedViews:
    """Listings and counts of a queue on records."""

    def __init__(self, store: RecordedStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._counted = CachedCounts(clock)
        self._queues: dict[str, str] = {}  # names of queues by their part of a marker

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool
    ) -> Page[JobInfo]:
        """Jobs of one state that match, in its order."""
        await self._store.finished()
        if state is JobState.RUNNING:
            return await self._page_running(where, after, limit, newest=newest)
        prefix = self._store.names.folder(state)
        if state is JobState.READY and where.queue is not None:
            prefix = self._store.names.queue(where.queue)
        markers = self._backwards(prefix, after) if newest else self._forwards(prefix, after)
        found: list[tuple[str, JobInfo]] = []
        async for marker, info in self._states(markers, state):
            if where.allows(info):
                found.append((marker.name.removeprefix(prefix), info))
                if len(found) > limit:
                    break
        return Page.cut(found, limit, await self._store.time.now())

    async def overdue(self, after: str | None, limit: int) -> tuple[list[JobRecordRead], Page[JobInfo]]:
        """Running jobs whose deadline has passed, longest ago first; and the other due records."""
        at = await self._store.time.now()
        running, others = await self._running()
        # Unreadable records are listed, and never moved.
        readable = (each for each in running if each[1].queue != NO_QUEUE)
        late = sorted((each for each in readable if each[0][0] <= to_micros(at)), key=lambda each: each[0])
        start = None if after is None else read_cursor(after)
        left = [(index_cursor(when, id), info) for (when, id), info in late if start is None or (when, id) > start]
        return others, Page.cut(left[: limit + 1], limit, at)

    async def counts(self) -> Numbers:
        """How many jobs of each queue are in each state."""
        return await self._counted.get(self._store.changes, self._count)

    async def _count(self) -> Numbers:
        await self._store.finished()
        at = await self._store.time.now()
        tally: dict[str, QueueTally] = {}
        for state in (JobState.READY, JobState.DONE, JobState.DEAD):
            async for marker in self._forwards(self._store.names.folder(state), None):
                delayed = state is JobState.READY and marker.position > 0 and marker.ready_at > to_micros(at)
                where = "scheduled" if delayed else state.value
                tally.setdefault(await self._queue(marker), QueueTally()).add(where, marker.ready_at)
        for _, info in (await self._running())[0]:
            tally.setdefault(info.queue, QueueTally()).add("running")
        return tuple(each.count(queue) for queue, each in sorted(tally.items())), at

    async def oldest(self, state: JobState, beyond: int) -> list[ReadyMarker]:
        """The oldest markers of a state, except the newest `beyond`; all of them are listed."""
        markers = [marker async for marker in self._forwards(self._store.names.folder(state), None)]
        return markers[: max(0, len(markers) - beyond)]

    async def unreadable(self, key: str) -> JobRecord | None:
        """A job whose record cannot be read: its state, its bytes, and the error."""
        found = await self._store.unreadable(key)
        if found is None:
            return None
        at = await self._store.time.now()
        info = next((info for _, info in (await self._running())[0] if info.id == UNREADABLE + key), None)
        for state in (JobState.READY, JobState.DONE, JobState.DEAD) if info is None else ():
            async for marker in self._forwards(self._store.names.folder(state), None):
                if marker.key == key:
                    info = _unreadable(key, marker.queue, state, found, marker.made_at or at)
        info = info or _unreadable(key, NO_QUEUE, JobState.READY, found, at)
        return JobRecord(Job(info.id, queue=info.queue, payload=found.value), info)

    async def _page_running(self, where: JobFilter, after: str | None, limit: int, *, newest: bool) -> Page[JobInfo]:
        running, _ = await self._running()
        start = None if after is None else read_cursor(after)
        kept = [
            each
            for each in running
            if where.allows(each[1]) and (start is None or (each[0] < start if newest else each[0] > start))
        ]
        pick = heapq.nlargest if newest else heapq.nsmallest
        chosen = pick(limit + 1, kept, key=lambda each: each[0])
        found = [(index_cursor(*position), info) for position, info in chosen]
        return Page.cut(found, limit, await self._store.time.now())

    async def _running(self) -> tuple[list[tuple[tuple[int, str], JobInfo]], list[JobRecordRead]]:
        """Every running job with its deadline, and the records with something left to do."""
        running: list[tuple[tuple[int, str], JobInfo]] = []
        others: list[JobRecordRead] = []
        at = await self._store.time.now()
        async for seen in self._store.every_due():
            if isinstance(seen, Unreadable):
                info = _unreadable(seen.key, NO_QUEUE, JobState.RUNNING, seen, at)
                running.append(((to_micros(seen.due_at or at), info.id), info))
                continue
            info = seen.stored.info
            if info.state is JobState.RUNNING and info.deadline is not None:
                running.append(((to_micros(info.deadline), info.id), info))
            elif seen.recorded.leaving or seen.stored.follow:
                others.append(seen)
        return running, others

    async def _forwards(self, prefix: str, after: str | None) -> AsyncIterator[ReadyMarker]:
        start = None if after is None else prefix + after
        while True:
            markers, more = await self._store.markers(prefix, start, _PAGE)
            for marker in markers:
                yield marker
            if not more or not markers:
                return
            start = markers[-1].name

    async def _backwards(self, prefix: str, after: str | None) -> AsyncIterator[ReadyMarker]:
        """Stores list forwards only: all names of the state are read."""
        markers = [marker async for marker in self._forwards(prefix, None)]
        for marker in reversed(markers):
            if after is None or marker.name < prefix + after:
                yield marker

    async def _states(
        self, markers: AsyncIterator[ReadyMarker], state: JobState
    ) -> AsyncIterator[tuple[ReadyMarker, JobInfo]]:
        at = await self._store.time.now()
        batch: list[ReadyMarker] = []
        async for marker in markers:
            batch.append(marker)
            if len(batch) == _AT_ONCE:
                for each in await self._read(batch, state, at):
                    yield each
                batch.clear()
        for each in await self._read(batch, state, at):
            yield each

    async def _read(
        self, markers: list[ReadyMarker], state: JobState, at: datetime
    ) -> list[tuple[ReadyMarker, JobInfo]]:
        jobs = await asyncio.gather(*(self._store.looked_at(marker.key) for marker in markers))
        found: list[tuple[ReadyMarker, JobInfo]] = []
        for marker, seen in zip(markers, jobs, strict=True):
            if isinstance(seen, StoreBroken):
                known = Unreadable(marker.key, b"", None, seen.message)
                found.append((marker, _unreadable(marker.key, marker.queue, state, known, marker.made_at or at)))
            elif await self._store.counts(marker, seen, at) and seen is not None:
                info = seen.stored.at(at).info
                found += [(marker, info)] if info.state is state else []
        return found

    async def _queue(self, marker: ReadyMarker) -> str:
        """The name of a marker's queue; one that is not plain is read from a record, once."""
        if not marker.queue.startswith("~"):
            return marker.queue
        if marker.queue not in self._queues:
            seen = await self._store.looked_at(marker.key)
            if seen is None or isinstance(seen, StoreBroken):
                return marker.queue
            if len(self._queues) >= QUEUES_MAX:
                self._queues.clear()
            self._queues[marker.queue] = seen.stored.info.queue
        return self._queues[marker.queue]


def _unreadable(key: str, queue: str, state: JobState, found: Unreadable, at: datetime) -> JobInfo:
    return unreadable(UNREADABLE + key, queue, state, len(found.value), at, found.error, until=found.due_at)
