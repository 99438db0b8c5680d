"""Listings and numbers of jobs that are kept as records, read from their signs.

A page of ready, done or dead jobs costs one listing and one read for each that is shown; from the newest on, or by
number, every sign of the place is listed, a thousand a request. Held jobs are read from the index of deadlines: as many
as there are. Numbers are not counted again before ten times what counting took has passed, unless something changed
here. A sign that a crash left is counted until it is old; a listing sees through it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from datetime import datetime

from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreBroken
from wrasse.jobs.record_core.job_counts import CachedCounts, Numbers, QueueTally
from wrasse.jobs.record_core.queue import unreadable
from wrasse.jobs.record_queue.store import JobRecordRead, ReadyMarker, RecordedStore, Unreadable
from wrasse.ports.jobs import Job, JobFilter, JobRecord, JobState, Place
from wrasse.ports.page import Page
from wrasse.ports.status_index import index_cursor, read_cursor

_PAGE = 1_000
_AT_ONCE = 32  # records read together
QUEUES_MAX = 10_000
UNREADABLE = "unreadable-"  # begins what a job is called whose record cannot be read; its key follows
NO_QUEUE = "unreadable"  # the queue of running jobs whose record cannot be read: nothing else says it


class RecordedViews:
    """What can be seen of a queue on records."""

    def __init__(self, store: RecordedStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._counted = CachedCounts(clock)
        self._queues: dict[str, str] = {}  # names of queues by the part of a sign

    async def page(
        self, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool
    ) -> Page[JobState]:
        """Jobs of one place that match, in its order."""
        await self._store.finished()
        if place is Place.HELD:
            return await self._page_held(where, after, limit, newest=newest)
        prefix = self._store.names.folder(place)
        if place is Place.READY and where.queue is not None:
            prefix = self._store.names.queue(where.queue)
        markers = self._backwards(prefix, after) if newest else self._forwards(prefix, after)
        found: list[tuple[str, JobState]] = []
        async for marker, state in self._states(markers, place):
            if where.allows(state):
                found.append((marker.name.removeprefix(prefix), state))
                if len(found) > limit:
                    break
        return Page.cut(found, limit, await self._store.time.now())

    async def overdue(self, after: str | None, limit: int) -> tuple[list[JobRecordRead], Page[JobState]]:
        """Held jobs whose deadline has passed, longest ago first; and what else is due."""
        at = await self._store.time.now()
        held, others = await self._held()
        # What cannot be read is shown, and never moved.
        readable = (each for each in held if each[1].queue != NO_QUEUE)
        late = sorted((each for each in readable if each[0][0] <= to_micros(at)), key=lambda each: each[0])
        start = None if after is None else read_cursor(after)
        left = [(index_cursor(when, id), state) for (when, id), state in late if start is None or (when, id) > start]
        return others, Page.cut(left[: limit + 1], limit, at)

    async def counts(self) -> Numbers:
        """How many jobs of each queue are where."""
        return await self._counted.get(self._store.changes, self._count)

    async def _count(self) -> Numbers:
        await self._store.finished()
        at = await self._store.time.now()
        tally: dict[str, QueueTally] = {}
        for place in (Place.READY, Place.DONE, Place.DEAD):
            async for marker in self._forwards(self._store.names.folder(place), None):
                delayed = place is Place.READY and marker.position > 0 and marker.ready_at > to_micros(at)
                where = "delayed" if delayed else place.value
                tally.setdefault(await self._queue(marker), QueueTally()).add(where, marker.ready_at)
        for _, state in (await self._held())[0]:
            tally.setdefault(state.queue, QueueTally()).add("held")
        return tuple(each.count(queue) for queue, each in sorted(tally.items())), at

    async def oldest(self, place: Place, beyond: int) -> list[ReadyMarker]:
        """The oldest signs of a place, of those beyond so many; all of them are listed."""
        markers = [marker async for marker in self._forwards(self._store.names.folder(place), None)]
        return markers[: max(0, len(markers) - beyond)]

    async def unreadable(self, key: str) -> JobRecord | None:
        """A job whose record cannot be read, as far as it can be shown: where it is, its bytes, and what is wrong."""
        found = await self._store.unreadable(key)
        if found is None:
            return None
        at = await self._store.time.now()
        state = next((state for _, state in (await self._held())[0] if state.id == UNREADABLE + key), None)
        for place in (Place.READY, Place.DONE, Place.DEAD) if state is None else ():
            async for marker in self._forwards(self._store.names.folder(place), None):
                if marker.key == key:
                    state = _unreadable(key, marker.queue, place, found, marker.made_at or at)
        state = state or _unreadable(key, NO_QUEUE, Place.READY, found, at)
        return JobRecord(Job(state.id, queue=state.queue, payload=found.value), state)

    async def _page_held(self, where: JobFilter, after: str | None, limit: int, *, newest: bool) -> Page[JobState]:
        held, _ = await self._held()
        start = None if after is None else read_cursor(after)
        kept = [
            each
            for each in held
            if where.allows(each[1]) and (start is None or (each[0] < start if newest else each[0] > start))
        ]
        pick = heapq.nlargest if newest else heapq.nsmallest
        chosen = pick(limit + 1, kept, key=lambda each: each[0])
        found = [(index_cursor(*position), state) for position, state in chosen]
        return Page.cut(found, limit, await self._store.time.now())

    async def _held(self) -> tuple[list[tuple[tuple[int, str], JobState]], list[JobRecordRead]]:
        """Every held job with its deadline, and what else is due: of jobs that left something to do."""
        held: list[tuple[tuple[int, str], JobState]] = []
        others: list[JobRecordRead] = []
        at = await self._store.time.now()
        async for seen in self._store.every_due():
            if isinstance(seen, Unreadable):
                state = _unreadable(seen.key, NO_QUEUE, Place.HELD, seen, at)
                held.append(((to_micros(seen.due_at or at), state.id), state))
                continue
            state = seen.stored.state
            if state.place is Place.HELD and state.until is not None:
                held.append(((to_micros(state.until), state.id), state))
            elif seen.recorded.leaving or seen.stored.follow:
                others.append(seen)
        return held, others

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
        """Stores list forwards only: all names of the place are read."""
        markers = [marker async for marker in self._forwards(prefix, None)]
        for marker in reversed(markers):
            if after is None or marker.name < prefix + after:
                yield marker

    async def _states(
        self, markers: AsyncIterator[ReadyMarker], place: Place
    ) -> AsyncIterator[tuple[ReadyMarker, JobState]]:
        at = await self._store.time.now()
        batch: list[ReadyMarker] = []
        async for marker in markers:
            batch.append(marker)
            if len(batch) == _AT_ONCE:
                for each in await self._read(batch, place, at):
                    yield each
                batch.clear()
        for each in await self._read(batch, place, at):
            yield each

    async def _read(self, markers: list[ReadyMarker], place: Place, at: datetime) -> list[tuple[ReadyMarker, JobState]]:
        jobs = await asyncio.gather(*(self._store.looked_at(marker.key) for marker in markers))
        found: list[tuple[ReadyMarker, JobState]] = []
        for marker, seen in zip(markers, jobs, strict=True):
            if isinstance(seen, StoreBroken):
                known = Unreadable(marker.key, b"", None, seen.message)
                found.append((marker, _unreadable(marker.key, marker.queue, place, known, marker.made_at or at)))
            elif await self._store.counts(marker, seen, at) and seen is not None:
                state = seen.stored.at(at).state
                found += [(marker, state)] if state.place is place else []
        return found

    async def _queue(self, marker: ReadyMarker) -> str:
        """The name of the queue that a sign belongs to; one that is not plain is read from a record, once."""
        if not marker.queue.startswith("~"):
            return marker.queue
        if marker.queue not in self._queues:
            seen = await self._store.looked_at(marker.key)
            if seen is None or isinstance(seen, StoreBroken):
                return marker.queue
            if len(self._queues) >= QUEUES_MAX:
                self._queues.clear()
            self._queues[marker.queue] = seen.stored.state.queue
        return self._queues[marker.queue]


def _unreadable(key: str, queue: str, place: Place, found: Unreadable, at: datetime) -> JobState:
    return unreadable(UNREADABLE + key, queue, place, len(found.value), at, found.error, until=found.due_at)
