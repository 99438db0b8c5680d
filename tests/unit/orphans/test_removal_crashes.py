"""A process that dies at any call leaves nothing torn: whoever comes after it ends where nobody died.

Every call of the store and of the sightings is one at which it dies: before the call reaches the port, or after it was
answered and before anybody heard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from orphan_field import DAY, HOUR, SEED, Field, at_key
from wrasse.backends.memory.objects import MemoryObjects
from wrasse.backends.memory.sightings import MemorySightings
from wrasse.clock import ManualClock
from wrasse.orphans.root import MARK, Root
from wrasse.ports.journal import LineFilter
from wrasse.ports.objects import NO_METADATA, Data, ObjectDelete, ObjectHead, WriteResult
from wrasse.ports.outcome import Outcome
from wrasse.ports.sightings import Change, CompleteScan, SightingChange

T = TypeVar("T")
DELETING = replace(SEED, quarantine=timedelta(0))
MARKING = replace(SEED, quarantine_by=MARK)


class Died(BaseException):
    """The process is gone."""


class Fate:
    """At which call the process dies, and whether the port still heard of it."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.heard = False
        self.instead: Callable[[], object] | None = None  # what happens there, if nobody dies

    async def call(self, do: Callable[[], Awaitable[T]]) -> T:
        if self.left is None:
            return await do()
        self.left -= 1
        if self.left > 0:
            return await do()
        if self.instead is not None:
            return await self._meanwhile(do, self.instead)
        if self.heard:
            await do()
        raise Died

    async def _meanwhile(self, do: Callable[[], Awaitable[T]], happens: Callable[[], object]) -> T:
        self.left = None
        if not self.heard:
            happens()
            return await do()
        answer = await do()
        happens()
        return answer


class MortalObjects(MemoryObjects):
    """Objects whose user may die at any call."""

    fate = Fate()

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        return await self.fate.call(lambda: super(MortalObjects, self).create(key, data, metadata=metadata))

    async def head(self, key: str) -> ObjectHead | None:
        return await self.fate.call(lambda: super(MortalObjects, self).head(key))

    async def copy(self, key: str, to: str, *, at: str) -> Outcome:
        return await self.fate.call(lambda: super(MortalObjects, self).copy(key, to, at=at))

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        return await self.fate.call(lambda: super(MortalObjects, self).delete(deletes))


class Streaming(MortalObjects):
    """A store that cannot copy by itself, as one without links or for objects beyond its limit."""

    async def copy(self, key: str, to: str, *, at: str) -> Outcome:
        return Outcome.FAILED


class WithoutCopies(MortalObjects):
    """A store that declares that it cannot copy."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.copies = None

    async def copy(self, key: str, to: str, *, at: str) -> Outcome:
        raise AssertionError("asked for what it declares that it lacks")


class MortalSightings(MemorySightings):
    """Sightings whose user may die at any call."""

    fate = Fate()

    async def commit(self, made: CompleteScan, changes: Iterable[Sequence[Change]]) -> bool:
        return await self.fate.call(lambda: super(MortalSightings, self).commit(made, changes))

    async def mark(self, root: str, marks: Sequence[SightingChange]) -> Sequence[Outcome]:
        return await self.fate.call(lambda: super(MortalSightings, self).mark(root, marks))


class World:
    """A field with two archives of one workspace, of which one is due at the next run."""

    def __init__(self, place: Path, root: Root, store: type[MortalObjects] = MortalObjects) -> None:
        clock = ManualClock()
        self.fate = Fate()
        objects, sightings = store(clock), MortalSightings(clock)
        objects.fate = sightings.fate = self.fate
        self.field = Field(place, root, objects=objects, sightings=sightings, clock=clock)

    async def plant(self) -> None:
        for op in ("old1", "old2", "new"):
            await self.field.put("ws1", op, data=op.encode())
        self.field.refer("ws1", "new")
        await self.field.arm()
        await self.field.run()

    async def die_at(self, call: int, heard: bool, after: timedelta) -> bool:
        """One run that dies at this call; False if it ended before."""
        self.fate.left, self.fate.heard = call, heard
        scanner = self.field.another()
        died = False
        try:
            with suppress(Died):
                await self.field.run(scanner, after=after)
                return False
            died = True
        except BaseExceptionGroup:
            died = True  # a task group wraps it
        finally:
            self.fate.left = None
            scanner.close()
        return died

    async def contents(self) -> dict[str, bytes]:
        """Every object with its bytes, wherever it is."""
        found = {}
        for prefix in ("archives/", ".trash/"):
            for info in await self.field.objects.page(prefix, None, 1_000):
                chunks = [chunk async for chunk in self.field.objects.read(info.key)]
                found[info.key] = b"".join(chunks)
        return found

    async def check_whole(self) -> None:
        """No unit looks whole and is not, and nothing is missing that nobody took away for good."""
        found = await self.contents()
        for op in ("old1", "old2", "new"):
            data, marker = at_key("ws1", op), at_key("ws1", op, "home.tar.gz.meta")
            assert marker not in found or data in found, f"{op} has its marker and not its data"
            assert op == "new" or self.field.root is DELETING or self._somewhere(found, data), f"{op} is nowhere"

    def _somewhere(self, found: dict[str, bytes], key: str) -> bool:
        return any(each.endswith(key) for each in found)


async def worlds(
    place: Path, root: Root, heard: bool, store: type[MortalObjects] = MortalObjects
) -> AsyncIterator[tuple[int, World]]:
    """A world for every call at which a run may die."""
    for call in range(1, 100):
        world = World(place / f"{call}", root, store)
        await world.plant()
        if not await world.die_at(call, heard, 2 * HOUR):
            assert call > 2, "the run makes calls"
            return
        yield call, world
    raise AssertionError("a run that never ends")


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
@pytest.mark.parametrize("root", [SEED, MARKING, DELETING], ids=["moved", "marked", "deleted"])
async def test_whoever_comes_after_a_dead_process_ends_where_nobody_died(
    tmp_path: Path, root: Root, heard: bool
) -> None:
    async for call, world in worlds(tmp_path, root, heard):
        await world.check_whole()
        field = world.field
        scanner = field.another()
        for gap in (HOUR, HOUR, HOUR, 8 * DAY, HOUR):
            report = await field.run(scanner, after=gap)
            assert not report.errors, (call, report.errors)
        assert await field.keys() == [at_key("ws1", "new"), at_key("ws1", "new", "home.tar.gz.meta")], call
        assert await field.trash() == [], call
        assert not list(await field.journal.page(LineFilter(open=True), None, 10)), call


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
@pytest.mark.parametrize("store", [MortalObjects, Streaming, WithoutCopies])
async def test_a_reference_brings_back_whatever_a_dead_process_left_byte_for_byte(
    tmp_path: Path, heard: bool, store: type[MortalObjects]
) -> None:
    async for call, world in worlds(tmp_path, SEED, heard, store):
        field = world.field
        for op in ("old1", "old2"):
            field.refer("ws1", op)
        for gap in (HOUR, HOUR):
            report = await field.run(field.another(), after=gap)
            assert not report.errors, (call, report.errors)
        found = await world.contents()
        assert len(found) == 6, call
        for op in ("old1", "old2", "new"):
            assert found[at_key("ws1", op)] == op.encode() + b"home.tar.gz", call


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
async def test_a_restoring_that_dies_at_any_call_is_finished_by_the_next(tmp_path: Path, heard: bool) -> None:
    for call in range(1, 100):
        world = World(tmp_path / f"{call}", SEED)
        await world.plant()
        await world.field.run(world.field.another(), after=2 * HOUR)
        assert len(await world.field.trash()) == 4
        world.field.refer("ws1", "old1")
        world.field.refer("ws1", "old2")
        died = await world.die_at(call, heard, HOUR)
        await world.check_whole()
        await world.field.run(world.field.another(), after=HOUR)
        assert (len(await world.field.keys()), await world.field.trash()) == (6, []), call
        if not died:
            assert call > 3
            return


@pytest.mark.parametrize("heard", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("root", [SEED, MARKING], ids=["moved", "marked"])
async def test_a_reference_that_is_committed_at_any_call_of_a_run_finds_its_archive_after_the_next(
    tmp_path: Path, root: Root, heard: bool
) -> None:
    for call in range(1, 100):
        world = World(tmp_path / f"{call}", root)
        await world.plant()
        field, fate = world.field, world.fate
        before = await world.contents()
        fate.left, fate.heard, fate.instead = call, heard, partial(field.refer, "ws1", "old1")
        await field.run(after=2 * HOUR)
        happened, fate.left = fate.left is None, None
        for gap in (HOUR, 8 * DAY):
            await field.run(after=gap)
        if not happened:
            assert call > 2
            return
        found = await world.contents()
        assert {key: data for key, data in before.items() if "/old2/" not in key} == found, call
