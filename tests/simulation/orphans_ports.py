"""The ports of a collector as the simulated world has them: slow, sometimes very, and watched; a process may die at any
call, and after that none of its calls does anything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from simulation.orphans_app import Database, Workspace
from simulation.orphans_laws import Truth, Witness, unit_of
from wrasse.backends.memory.catalog import MemoryCatalog
from wrasse.backends.memory.objects import MemoryObjects
from wrasse.backends.memory.sightings import MemorySightings
from wrasse.ports.catalog import CatalogSnapshot, Reference
from wrasse.ports.objects import ObjectDelete, ObjectInfo
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.sightings import Change, CompleteScan, NewSighting, Standing, Unseen

T = TypeVar("T")
LIST_PAGE = 7  # small, so that much can happen between two pages


class Died(BaseException):
    """The process is no more."""


@dataclass(slots=True)
class Line:
    """How long calls take, and after how many the process dies."""

    rng: random.Random
    slow: float = 0.0  # how often a call takes minutes
    calls_left: int | None = None

    async def call(self, do: Callable[[], Awaitable[T]]) -> T:
        """One call: its way there, its effect, its way back."""
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left <= 0:
                raise Died
        await asyncio.sleep(self._delay())
        answer = await do()
        await asyncio.sleep(self._delay())
        return answer

    def _delay(self) -> float:
        if self.rng.random() < self.slow:
            return self.rng.uniform(5, 250)
        return self.rng.uniform(0, 0.5)


class SlowObjects:
    """The store."""

    def __init__(self, inner: MemoryObjects, line: Line, witness: Witness, db: Database) -> None:
        self._inner = inner
        self._line = line
        self._witness = witness
        self._db = db
        self.read = inner.read
        self.copies = self
        self.multipart = self.versions = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **named: Any) -> Any:
            return await self._line.call(lambda: method(*args, **named))

        return call

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        self._witness.listing_over = False
        page = await self._line.call(lambda: self._inner.page(prefix, after, min(limit, LIST_PAGE)))
        self._witness.listing_over = not page.more
        return page

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        return await self._line.call(lambda: self._delete(deletes))

    async def _delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        now, needed = asyncio.get_running_loop().time(), self._db.needed()
        before = [await content(self._inner, each.key) for each in deletes]
        ends = await self._inner.delete(deletes)
        for each, data, end in zip(deletes, before, ends, strict=True):
            if end is Outcome.DONE:
                self._witness.leaves(each.key, data, "/" in each.key and unit_of(each.key) in needed, now)
        return ends


async def content(objects: MemoryObjects, key: str) -> bytes | None:
    """The bytes of an object, if it is there."""
    if await objects.head(key) is None:
        return None
    return b"".join([chunk async for chunk in objects.read(key)])


class WorldCatalog:
    """The database as a collector sees it: `missing` says which rows it does not tell of, `lag` how old a snapshot
    is."""

    def __init__(self, db: Database, line: Line, witness: Witness, faults: Faults) -> None:
        self._db = db
        self._line = line
        self._witness = witness
        self._faults = faults

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[CatalogSnapshot]:
        loop = asyncio.get_running_loop()
        self._witness.snapshot(loop.time())
        rows = self._db.rows if self._faults.lag == 0 else self._db.at(loop.time() - self._faults.lag)
        told = self._told(rows)
        await self._line.call(lambda: asyncio.sleep(0))
        async with told.snapshot() as snapshot:
            yield snapshot

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        answers = await self._line.call(lambda: self._told(self._db.rows).referenced(keys, below=below))
        self._witness.asked(keys, answers)
        return answers

    def leader(self, name: str) -> None:
        return None

    def _told(self, rows: dict[str, Workspace]) -> MemoryCatalog:
        told = MemoryCatalog(self._db.clock)
        shown = [row for row in rows.values() if row.id not in self._faults.missing]
        told.add(*(reference for row in shown for reference in row.references()))
        return told


@dataclass(slots=True)
class Faults:
    """What is wrong with the database now."""

    missing: frozenset[str] = frozenset()
    lag: float = 0.0


class SlowSightings:
    """The sightings."""

    def __init__(self, inner: MemorySightings, line: Line, truth: Truth) -> None:
        self._inner = inner
        self._line = line
        self._truth = truth
        self._looked = 0.0  # when the round that is under way asked for the time, after its snapshot

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **named: Any) -> Any:
            return await self._line.call(lambda: method(*args, **named))

        return call

    async def standing(self, root: str) -> Standing:
        return await self._line.call(lambda: self._standing(root))

    async def _standing(self, root: str) -> Standing:
        self._looked = asyncio.get_running_loop().time()
        return await self._inner.standing(root)

    async def commit(self, made: CompleteScan, changes: Iterable[Sequence[Change]]) -> bool:
        return await self._line.call(lambda: self._commit(made, changes))

    async def _commit(self, made: CompleteScan, changes: Iterable[Sequence[Change]]) -> bool:
        done = await self._inner.commit(made, changes)
        if done:
            for change in (each for batch in changes for each in batch):
                match change:
                    case NewSighting(sighting):
                        self._truth.noted[sighting.unit] = self._looked
                    case Unseen(unit):
                        self._truth.noted.pop(unit, None)
        return done
