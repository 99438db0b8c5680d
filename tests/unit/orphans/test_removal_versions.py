"""Quarantine in a store that keeps what is deleted: nothing is copied, everything comes back as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from orphan_field import DAY, HOUR, SEED, Field, at_key
from wrasse.backends.memory.objects import MemoryObjects
from wrasse.clock import Clock, ManualClock
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.outcome import Outcome


class VersionedObjects(MemoryObjects):
    """What is deleted is kept, by key and version. It fails where `fails_at` says so."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.versions = self
        self.kept: dict[tuple[str, str], bytes] = {}
        self.on = True
        self.fails_at = 0  # the number of the delete that never answers; 0: none

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        self.fails_at -= 1
        if self.fails_at == 0:
            raise RuntimeError("cut short")
        before = {each.key: await self._bytes(each.key) for each in deletes}
        ends = await super().delete(deletes)
        for each, end in zip(deletes, ends, strict=True):
            if end is Outcome.DONE and self.on:
                self.kept[each.key, each.version] = before[each.key]
        return ends

    async def keeps_deleted(self) -> bool:
        return self.on

    async def deleted(self, key: str, *, at: str) -> bool:
        return (key, at) in self.kept

    async def undelete(self, key: str, *, at: str) -> Outcome:
        if (key, at) not in self.kept:
            return Outcome.CONFLICT
        stored = await self.create(key, self.kept[key, at])
        if stored:
            del self.kept[key, at]
        return stored.outcome

    async def purge(self, key: str, *, at: str) -> Outcome:
        self.kept.pop((key, at), None)
        return Outcome.DONE

    async def _bytes(self, key: str) -> bytes:
        return b"" if await self.head(key) is None else b"".join([chunk async for chunk in self.read(key)])


@pytest.fixture
async def store() -> VersionedObjects:
    return VersionedObjects(ManualClock())


async def planted(store: VersionedObjects, place: Path, quarantine: timedelta = SEED.quarantine) -> Field:
    field = Field(place, replace(SEED, quarantine=quarantine), objects=store, clock=store._clock)  # type: ignore[arg-type]
    await field.put("ws1", "old")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await field.run()
    return field


async def test_a_deleted_orphan_is_its_own_quarantine_and_is_purged_in_time(
    store: VersionedObjects, tmp_path: Path
) -> None:
    field = await planted(store, tmp_path)
    await field.run(after=2 * HOUR)
    assert (len(await field.keys()), await field.trash(), len(store.kept)) == (2, [], 2)
    await field.run(after=8 * DAY)
    assert store.kept == {}


async def test_a_reference_brings_it_back_byte_for_byte(store: VersionedObjects, tmp_path: Path) -> None:
    field = await planted(store, tmp_path)
    await field.run(after=2 * HOUR)
    field.refer("ws1", "old")
    await field.run(after=HOUR)
    assert await store._bytes(at_key("ws1", "old")) == b"homehome.tar.gz"
    assert (len(await field.keys()), store.kept) == (4, {})


@pytest.mark.parametrize("at", [1, 2])
async def test_a_run_that_is_cut_short_is_finished_by_the_next(
    store: VersionedObjects, tmp_path: Path, at: int
) -> None:
    field = await planted(store, tmp_path)
    store.fails_at = at
    await field.run(after=2 * HOUR)
    for gap in (HOUR, HOUR):
        await field.run(after=gap)
    assert (len(await field.keys()), len(store.kept)) == (2, 2)


async def test_what_was_deleted_comes_back_also_after_versions_were_suspended(
    store: VersionedObjects, tmp_path: Path
) -> None:
    field = await planted(store, tmp_path)
    await field.run(after=2 * HOUR)
    store.on = False
    field.refer("ws1", "old")
    await field.run(after=HOUR)
    assert len(await field.keys()) == 4


async def test_without_a_quarantine_nothing_is_kept(store: VersionedObjects, tmp_path: Path) -> None:
    field = await planted(store, tmp_path, timedelta(0))
    await field.run(after=2 * HOUR)
    assert (len(await field.keys()), store.kept) == (2, {})
