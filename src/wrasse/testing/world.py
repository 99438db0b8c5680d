"""A world in memory for one test: a clock, every port, and all that can be seen in them at one moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.run import RunContext
from wrasse.ids import Ids
from wrasse.ports.jobs import JobFilter, JobState
from wrasse.ports.journal import Line, LineFilter
from wrasse.ports.page import Page, pages
from wrasse.ports.records import Collection, Records
from wrasse.ports.streams import EntryId

T = TypeVar("T")
_PAGE = 500
_PAGES_MAX = 1_000


class World:
    """`store` has the ports: `jobs`, `journal`, `streams`, `groups`, `objects`; records are asked for here."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Memory(self.clock)
        self._collections: dict[str, Collection] = {}

    def records(self, collection: Collection) -> Records:
        """The records of one collection; the same ones each time."""
        self._collections[collection.data] = collection
        return self.store.records(collection)

    def context(self) -> RunContext:
        """What a run of the engine needs."""
        return RunContext(self.store.journal, self.clock, Ids(self.clock))

    async def seen(self) -> tuple[str, ...]:
        """Everything a reader of the ports can see now, a line each, without the journal."""
        return tuple([line async for line in self._lines()])

    async def journal(self) -> tuple[Line, ...]:
        """Every line of the journal."""
        return tuple([line async for line in _all(partial(self.store.journal.page, LineFilter(), limit=_PAGE))])

    async def _lines(self) -> AsyncIterator[str]:
        jobs, objects, streams = self.store.jobs, self.store.objects, self.store.streams
        for state in JobState:
            async for job in _all(partial(jobs.page, state, JobFilter(), limit=_PAGE)):
                yield f"{state.value} {await jobs.get(job.id)!r}"
        for worker in (await jobs.counts()).workers:
            yield f"worker {worker!r}"
        for name, collection in sorted(self._collections.items()):
            records = self.store.records(collection)
            async for record in _all(partial(records.page, "", limit=_PAGE)):
                yield f"{name} {record!r}"
        async for info in _all(partial(objects.page, "", limit=_PAGE)):
            yield f"{info!r} {b''.join([chunk async for chunk in objects.read(info.key)])!r}"
        async for subject in _all(partial(streams.subjects, ">", limit=_PAGE)):
            yield f"{subject} {await streams.info(subject)!r}"
            async for entry in self._entries(subject):
                yield f"{subject} {entry}"

    async def _entries(self, subject: str) -> AsyncIterator[str]:
        after = EntryId(0, 0)
        for _ in range(_PAGES_MAX):
            page = await self.store.streams.read(subject, after, _PAGE)
            for entry in page:
                yield repr(entry)
                after = entry.id
            if not page.more:
                return


async def _all(read: Callable[[str | None], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    async for page in pages(read, most=_PAGES_MAX):
        for item in page:
            yield item
