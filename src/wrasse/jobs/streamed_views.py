"""Listings and numbers of tasks. There is no index of them but that of what is due, so both read the records of their
types, a page at a time: their cost follows what is stored, their memory what is shown.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from wrasse.clock import Clock, from_micros, to_micros
from wrasse.errors import UsageError
from wrasse.jobs.job_record import StoredJob
from wrasse.jobs.task_fields import FAR
from wrasse.jobs.task_search import TaskSearch
from wrasse.jobs.task_store import Malformed, TaskStore
from wrasse.ports.jobs import JobFilter, JobState, Place, QueueCount
from wrasse.ports.page import Page

_PAGE = 1_000
_KEPT_FOR = 10  # times what counting took: numbers are not counted again before that, unless something changed here
_LONG = 0.25  # seconds: where counting takes longer than this, not even then
Position = tuple[int, int, str]


class Views:
    """What can be seen of tasks."""

    def __init__(self, store: TaskStore, search: TaskSearch, types: Sequence[str], clock: Clock) -> None:
        self._store = store
        self._search = search
        self._types = tuple(types)
        self._clock = clock
        self._counted: tuple[QueueCount, ...] = ()
        self._counted_at: datetime | None = None
        self._fresh_until = 0.0
        self._took = 0.0
        self._changes = -1

    async def page(
        self, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool
    ) -> Page[JobState]:
        """Tasks of one place that match, in its order."""
        if limit < 1:
            raise UsageError(f"a page of {limit} jobs", do="ask for at least one")
        start = None if after is None else _position(after)
        found: list[tuple[Position, JobState]] = []
        at = await self._store.time.now()
        pick = heapq.nlargest if newest else heapq.nsmallest
        async for stored in self._all(self._types if where.queue is None else (where.queue,)):
            state = stored.at(at).state
            if state.place is not place or not matches(state, where):
                continue
            position = _position_of(stored.at(at))
            if start is None or (position < start if newest else position > start):
                found.append((position, state))
                if len(found) > 2 * limit + _PAGE:
                    found = pick(limit + 1, found, key=lambda each: each[0])
        found = pick(limit + 1, found, key=lambda each: each[0])
        shown = found[:limit]
        return Page(
            items=tuple(state for _, state in shown),
            cursors=tuple(":".join(map(str, position)) for position, _ in shown),
            at=at,
            more=len(found) > limit,
        )

    async def counts(self) -> tuple[tuple[QueueCount, ...], datetime]:
        """How many tasks of each type are where."""
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
        tally: Counter[str] = Counter()
        oldest: int | None = None
        async for stored in self._all((task_type,)):
            now = stored.at(at)
            shelf = "delayed" if now.delayed else now.state.place.value
            tally[shelf] += 1
            if shelf == "ready":
                oldest = min(abs(now.rank), abs(now.rank) if oldest is None else oldest)
        since = None if oldest is None else from_micros(oldest // 1_000)
        return QueueCount(
            task_type,
            ready=tally["ready"],
            delayed=tally["delayed"],
            held=tally["held"],
            done=tally["done"],
            dead=tally["dead"],
            oldest_ready_at=since,
        )

    async def _all(self, types: Sequence[str]) -> AsyncIterator[StoredJob]:
        for task_type in types:
            after: str | None = None
            while True:
                page = await self._store.page(f"{task_type}:", after, _PAGE)
                for record in page:
                    task = self._search.read(record)
                    if not isinstance(task, Malformed):
                        yield task.stored
                after = page.cursor
                if after is None:
                    break


def matches(state: JobState, where: JobFilter) -> bool:
    """Whether every field that is set matches."""
    finished_at = state.kept_until or state.finished_at
    return (
        (where.queue is None or state.queue == where.queue)
        and (where.kind is None or state.kind == where.kind)
        and (where.reason is None or state.reason is where.reason)
        and (where.error_contains is None or where.error_contains in state.error)
        and (where.finished_before is None or (finished_at is not None and finished_at < where.finished_before))
        and (where.finished_after is None or (finished_at is not None and finished_at > where.finished_after))
        and (where.delayed is None or (state.not_before is not None) is where.delayed)
    )


def _position_of(stored: StoredJob) -> Position:
    state = stored.state
    if state.not_before is not None:
        return 1, to_micros(min(state.not_before, FAR)), state.id
    instants = {
        Place.READY: stored.rank,
        Place.HELD: _micros(state.until),
        Place.DONE: _micros(state.kept_until or state.finished_at),
        Place.DEAD: _micros(state.finished_at),
    }
    return 0, instants[state.place], state.id


def _micros(at: datetime | None) -> int:
    return 0 if at is None else to_micros(at)


def _position(cursor: str) -> Position:
    shelf, _, rest = cursor.partition(":")
    number, _, id = rest.partition(":")
    try:
        return int(shelf), int(number), id
    except ValueError:
        raise UsageError(f"{cursor!r} is not a cursor", do="use one that a page of jobs gave") from None
