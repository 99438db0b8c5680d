"""Listings and numbers of tasks: from the shelves on which their records stand, or, where a backend has none, by
reading the records of their types.

Reading is bounded. Of a type with more than SCAN_MAX records each asking for numbers reads on by so many, and what is
told is what the last whole round came to, or before its end what it has come to so far; a listing is then in the order
of ids. With fewer both are as from shelves.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from wrasse.clock import Clock, from_micros
from wrasse.jobs.task_search import TaskSearch
from wrasse.jobs.task_shelves import TaskShelves
from wrasse.jobs.task_spots import Position, position_of, read_position, write_position
from wrasse.jobs.task_store import Malformed, TaskStore
from wrasse.ports.job_transitions import StoredJob
from wrasse.ports.jobs import JobFilter, JobState, Place, QueueCount
from wrasse.ports.page import Page
from wrasse.ports.shelves import ShelvedRecords

SCAN_MAX = 10_000
_PAGE = 1_000
_KEPT_FOR = 10  # times what counting took: numbers are not counted again before that, unless something changed here
_LONG = 0.25  # seconds: where counting takes longer than this, not even then
_BY_ID = "~"  # begins the cursor of a listing in the order of ids


class Views(Protocol):
    """What can be seen of tasks."""

    async def page(
        self, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool
    ) -> Page[JobState]:
        """Tasks of one place that match, in its order."""
        ...

    async def counts(self) -> tuple[tuple[QueueCount, ...], datetime]:
        """How many tasks of each type are where."""
        ...


def views_of(
    shelves: ShelvedRecords | None, store: TaskStore, search: TaskSearch, types: Sequence[str], clock: Clock
) -> Views:
    """The views of a store with or without shelves."""
    if shelves is not None:
        return TaskShelves(shelves, store, search, types)
    return ScannedTasks(store, search, types, clock)


@dataclass(slots=True)
class _Round:
    """How far the counting of a type has come."""

    after: str | None = None
    tally: Counter[str] = field(default_factory=Counter)
    oldest: int | None = None


class ScannedTasks:
    """What can be seen of tasks by reading them."""

    def __init__(
        self, store: TaskStore, search: TaskSearch, types: Sequence[str], clock: Clock, scan_max: int = SCAN_MAX
    ) -> None:
        self._store = store
        self._search = search
        self._types = tuple(types)
        self._clock = clock
        self._scan_max = scan_max
        self._rounds = {each: _Round() for each in types}
        self._told: dict[str, QueueCount] = {}  # by type: what the last whole round came to
        self._counted: tuple[QueueCount, ...] = ()
        self._counted_at: datetime | None = None
        self._fresh_until = 0.0
        self._took = 0.0
        self._changes = -1

    async def page(
        self, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool
    ) -> Page[JobState]:
        """See Views."""
        types = self._types if where.queue is None else (where.queue,)
        at = await self._store.time.now()
        if after is not None and after.startswith(_BY_ID):
            return await self._by_id(place, where, types, after, limit, at)
        start = None if after is None else read_position(after)
        found: list[tuple[Position, JobState]] = []
        seen = 0
        pick = heapq.nlargest if newest else heapq.nsmallest
        async for _, stored in self._all(types):
            seen += 1
            if seen > self._scan_max and after is None:
                return await self._by_id(place, where, types, _BY_ID, limit, at)
            state = stored.at(at).state
            position = position_of(stored)
            beyond = start is None or (position < start if newest else position > start)
            if beyond and state.place is place and where.allows(state):
                found.append((position, state))
                if len(found) > 2 * limit + _PAGE:
                    found = pick(limit + 1, found, key=lambda each: each[0])
        found = pick(limit + 1, found, key=lambda each: each[0])
        return _cut([(write_position(position), state) for position, state in found], limit, at)

    async def _by_id(
        self, place: Place, where: JobFilter, types: Sequence[str], after: str, limit: int, at: datetime
    ) -> Page[JobState]:
        found: list[tuple[str, JobState]] = []
        async for cursor, stored in self._all(types, after.removeprefix(_BY_ID)):
            state = stored.at(at).state
            if state.place is place and where.allows(state):
                found.append((_BY_ID + cursor, state))
                if len(found) > limit:
                    break
        return _cut(found, limit, at)

    async def counts(self) -> tuple[tuple[QueueCount, ...], datetime]:
        """See Views."""
        begun = self._clock.monotonic()
        same = self._changes == self._store.changes or self._took > _LONG
        if same and begun < self._fresh_until and self._counted_at is not None:
            return self._counted, self._counted_at
        changes, at = self._store.changes, await self._store.time.now()
        queues = tuple([await self._count(each, at) for each in self._types])
        self._took = self._clock.monotonic() - begun
        self._counted, self._counted_at, self._changes = queues, at, changes
        self._fresh_until = begun + self._took * (1 + _KEPT_FOR)
        return queues, at

    async def _count(self, task_type: str, at: datetime) -> QueueCount:
        own = self._rounds[task_type]
        for _ in range(max(self._scan_max // _PAGE, 1)):
            page = await self._store.page(f"{task_type}:", own.after, min(_PAGE, self._scan_max))
            for record in page:
                task = self._search.read(record)
                if not isinstance(task, Malformed):
                    _add(own, task.stored.at(at))
            own.after = page.cursor
            if own.after is None:
                self._rounds[task_type] = _Round()
                self._told[task_type] = _number(task_type, own)
                break
        return self._told.get(task_type) or _number(task_type, own)

    async def _all(self, types: Sequence[str], after: str = "") -> AsyncIterator[tuple[str, StoredJob]]:
        for start in sorted(f"{each}:" for each in types):
            if after and not after.startswith(start) and after > start:
                continue  # that type was listed before
            goes_on: str | None = after if after.startswith(start) else None
            while True:
                page = await self._store.page(start, goes_on, _PAGE)
                for record, cursor in zip(page.items, page.cursors, strict=True):
                    task = self._search.read(record)
                    if not isinstance(task, Malformed):
                        yield cursor, task.stored
                goes_on = page.cursor
                if goes_on is None:
                    break


def _add(own: _Round, stored: StoredJob) -> None:
    shelf = "delayed" if stored.delayed else stored.state.place.value
    own.tally[shelf] += 1
    if shelf == "ready":
        own.oldest = min(abs(stored.rank), abs(stored.rank) if own.oldest is None else own.oldest)


def _number(task_type: str, own: _Round) -> QueueCount:
    tally = own.tally
    since = None if own.oldest is None else from_micros(own.oldest // 1_000)
    return QueueCount(
        task_type, tally["ready"], tally["delayed"], tally["held"], tally["done"], tally["dead"], oldest_ready_at=since
    )


def _cut(found: Sequence[tuple[str, JobState]], limit: int, at: datetime) -> Page[JobState]:
    shown = found[:limit]
    return Page(
        items=tuple(state for _, state in shown),
        cursors=tuple(cursor for cursor, _ in shown),
        at=at,
        more=len(found) > limit,
    )
