"""Listings and numbers of tasks where their records stand on shelves: both cost what they show, not what is stored.

A page reads the shelves of its types side by side, and looks at each record before it shows it: what another program
has changed since it was put on its shelf is not shown where it no longer is. Numbers are those of the shelves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from wrasse.clock import from_micros, to_micros
from wrasse.jobs.task_names import record_key
from wrasse.jobs.task_search import TaskSearch
from wrasse.jobs.task_spots import (
    DELAYED,
    Position,
    position_of,
    read_position,
    shelf_name,
    shelves_of,
    write_position,
)
from wrasse.jobs.task_store import Malformed, TaskStore
from wrasse.ports.job_transitions import StoredJob
from wrasse.ports.jobs import JobFilter, JobState, Place, QueueCount
from wrasse.ports.page import Page
from wrasse.ports.records import stored_name
from wrasse.ports.shelves import ShelvedRecords, Span, read_cursor, spot_cursor

_PAGE = 1_000
_RANKS = 1_000  # in one microsecond
_AFTER_ALL = chr(0x10FFFF)  # no name is beyond


class TaskShelves:
    """What can be seen of tasks."""

    def __init__(
        self, shelves: ShelvedRecords, store: TaskStore, search: TaskSearch, types: Sequence[str]
    ) -> None:
        self._shelves = shelves
        self._store = store
        self._search = search
        self._types = tuple(types)

    async def page(
        self, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool
    ) -> Page[JobState]:
        """Tasks of one place that match, in its order."""
        at = await self._store.time.now()
        start = None if after is None else read_position(after)
        types = self._types if where.queue is None else (where.queue,)
        found: list[tuple[Position, JobState]] = []
        async for stored in self._walk(place, types, start, limit, newest=newest):
            state = stored.at(at).state
            if state.place is place and where.allows(state):
                found.append((position_of(stored), state))
                if len(found) > limit:
                    break
        shown = found[:limit]
        return Page(
            items=tuple(state for _, state in shown),
            cursors=tuple(write_position(position) for position, _ in shown),
            at=at,
            more=len(found) > limit,
        )

    async def counts(self) -> tuple[tuple[QueueCount, ...], datetime]:
        """How many tasks of each type are where."""
        now = to_micros(await self._store.time.now())
        spans = [span for each in self._types for span in _spans(each, now)]
        counts, at = await self._shelves.shelf_counts(spans)
        rows = [counts[n : n + 6] for n in range(0, len(counts), 6)]
        oldest = await asyncio.gather(
            *(self._oldest(each, now, any(row[:2])) for each, row in zip(self._types, rows, strict=True))
        )
        queues = [
            QueueCount(each, ready + passed, delayed - passed, held, done, dead, since)
            for each, (ready, passed, delayed, held, done, dead), since in zip(self._types, rows, oldest, strict=True)
        ]
        return tuple(queues), self._store.time.heard(at)

    async def _oldest(self, task_type: str, now: int, some: bool) -> datetime | None:
        """Since when the task that waits longest is ready."""
        if not some:
            return None
        ready, delayed = shelf_name(task_type, Place.READY.value), shelf_name(task_type, DELAYED)
        waits, next_ones, let_out = await asyncio.gather(
            self._shelves.shelf_page(ready, spot_cursor(-1, _AFTER_ALL), 1),
            # Below zero is who goes before the others, the newest first.
            self._shelves.shelf_page(ready, spot_cursor(0, ""), 1, newest=True),
            self._shelves.shelf_page(delayed, None, 1),
        )
        since = [abs(turn) // _RANKS for page in (waits, next_ones) for turn in _turns(page.cursors)]
        since += [turn for turn in _turns(let_out.cursors) if turn <= now]
        return from_micros(min(since)) if since else None

    async def _walk(
        self, place: Place, types: Sequence[str], start: Position | None, limit: int, *, newest: bool
    ) -> AsyncIterator[StoredJob]:
        parts = list(enumerate(shelves_of(place)))
        for number, shelf in reversed(parts) if newest else parts:
            if start is not None and (number > start[0] if newest else number < start[0]):
                continue
            begin = start[1:] if start is not None and number == start[0] else None
            rows = [_Row(self, each, shelf, begin, min(limit + 1, _PAGE), newest) for each in types]
            await asyncio.gather(*(row.fill() for row in rows))
            while rows := [row for row in rows if row.waiting]:
                first = (max if newest else min)(rows, key=lambda row: row.waiting[0][0])
                yield first.waiting.pop(0)[1]
                await first.fill()

    async def read(
        self, shelf: str, after: str | None, limit: int, *, newest: bool
    ) -> tuple[list[tuple[tuple[int, str], StoredJob]], str | None]:
        """Tasks of a shelf, each with its turn and id, and where it goes on."""
        page = await self._shelves.shelf_page(shelf, after, limit, newest=newest)
        self._store.time.heard(page.at)
        tasks = [(cursor, self._search.read(each)) for each, cursor in zip(page.items, page.cursors, strict=True)]
        found = [
            ((read_cursor(cursor)[0], task.stored.state.id), task.stored)
            for cursor, task in tasks
            if not isinstance(task, Malformed)
        ]
        return found, page.cursor


class _Row:
    """One shelf that is read on and on. `waiting` are tasks that were read and not given yet."""

    def __init__(
        self, shelves: TaskShelves, task_type: str, shelf: str, start: tuple[int, str] | None, limit: int, newest: bool
    ) -> None:
        self.waiting: list[tuple[tuple[int, str], StoredJob]] = []
        self._shelves = shelves
        self._shelf = shelf_name(task_type, shelf)
        self._after = None if start is None else spot_cursor(start[0], stored_name(record_key(task_type, start[1])))
        self._limit = limit
        self._newest = newest
        self._ended = False

    async def fill(self) -> None:
        """Reads on if nothing waits."""
        while not self.waiting and not self._ended:
            found, after = await self._shelves.read(self._shelf, self._after, self._limit, newest=self._newest)
            self.waiting, self._after, self._ended = found, after, after is None


def _spans(task_type: str, now: int) -> tuple[Span, ...]:
    """Ready, delayed until now, delayed, held, done and dead."""
    names = {each: shelf_name(task_type, each) for each in (DELAYED, *(place.value for place in Place))}
    return (
        Span(names["ready"]),
        Span(names[DELAYED], now),
        Span(names[DELAYED]),
        *(Span(names[each]) for each in ("held", "done", "dead")),
    )


def _turns(cursors: Sequence[str]) -> list[int]:
    return [read_cursor(each)[0] for each in cursors]
