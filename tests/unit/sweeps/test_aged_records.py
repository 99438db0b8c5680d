"""Aged records: what nobody touches goes with all it has; what is held stays; tokens grow for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from faults import LOST_REQUEST, Network, Script
from object_faults import FaultyObjects
from wrasse.backends.directory.connect import Directory
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.report import Report
from wrasse.engine.run import RunContext, run_once
from wrasse.engine.sweep import Action
from wrasse.ids import Ids
from wrasse.leases import expiry_index
from wrasse.leases.core import leases_in
from wrasse.leases.lease import KEYS
from wrasse.leases.leases import Leases
from wrasse.ports.journal import Intent, Journal, Line
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.aged_records import AgedRecords

TTL = timedelta(seconds=30)
HOUR = timedelta(hours=1)
KEPT = timedelta(days=7)


@dataclass
class Place:
    """A store with keys, and the sweep over them."""

    clock: ManualClock
    store: Memory | Directory
    leases: Leases
    journal: Journal

    @property
    def sweep(self) -> AgedRecords:
        return AgedRecords(self.leases, self.store.namespaces, KEPT)

    async def used(self, *keys: str, namespace: str = "default") -> None:
        for key in keys:
            lease = await self.leases.acquire(key, "me", namespace=namespace, ttl=TTL)
            await self.leases.update(lease.granted, b"{}")
            await self.leases.release(lease.granted)
        await self.leases.close()

    async def run(self) -> Report:
        report = await run_once(self.sweep, RunContext(self.journal, self.clock, Ids(self.clock)))
        assert not report.errors, report.errors
        return report

    async def keys(self, namespace: str = "default") -> list[str]:
        return [record.key for record in await self.store.records(leases_in(namespace)).page("", None, 1_000)]

    async def objects(self) -> list[str]:
        return [info.key for info in await self.store.objects.page("default/state/", None, 1_000)]


@pytest.fixture(params=["memory", "directory"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    clock = ManualClock()
    store = Memory(clock) if request.param == "memory" else await Directory.open(tmp_path / "data", clock)
    place = Place(clock, store, Leases(store.records, store.objects, clock), Memory(clock).journal)
    yield place
    await place.leases.close()
    await store.close()


async def test_a_key_goes_with_its_state_when_its_time_is_over_and_no_earlier(place: Place) -> None:
    await place.used("a")
    place.clock.advance(KEPT - timedelta(microseconds=1))
    assert (await place.run()).done == 0
    place.clock.advance(timedelta(microseconds=1))
    assert ((await place.run()).done, await place.keys(), await place.objects()) == (1, [], [])


async def test_a_key_that_is_held_stays_however_old_it_is(place: Place) -> None:
    await place.leases.acquire("a", "me", ttl=TTL)
    place.clock.advance(2 * KEPT)
    report = await place.run()
    assert (dict(report.kept), await place.keys()) == ({"held": 1}, ["a"])


async def test_a_token_after_the_deletion_is_above_every_one_before(place: Place) -> None:
    await place.used(*["a"] * 5)
    before = await place.leases.describe("default", "a")
    place.clock.advance(KEPT)
    await place.run()
    lease = await place.leases.acquire("a", "me", ttl=TTL)
    assert before is not None
    assert lease.granted.token > before.token


async def test_a_key_whose_token_ran_ahead_of_the_time_stays(place: Place) -> None:
    ahead = ManualClock(place.clock.now() + 2 * KEPT)
    theirs = Leases(Memory(ahead).records, Memory(ahead).objects, ahead)
    lease = await theirs.acquire("a", "me", ttl=TTL)
    await place.used("a")
    keys = place.leases.keys("default")
    kept = await keys.read("a")
    assert kept is not None
    records = place.store.records(leases_in("default"))
    await records.put("a", KEYS.encode(replace(kept, token=lease.granted.token)), at=kept.stored)
    place.clock.advance(KEPT)
    assert dict((await place.run()).kept) == {"its token is ahead of the time": 1}


async def test_a_key_that_is_used_in_the_last_moment_keeps_everything(place: Place) -> None:
    await place.used("a")
    place.clock.advance(KEPT)
    page = await place.sweep.find(None, 10)
    action = place.sweep.decide(page.items[0], page.at)
    await place.used("a")
    assert isinstance(action, Action)
    assert list(await place.sweep.apply([action])) == [Outcome.CONFLICT]
    seen = await place.leases.read_public("default", "a")
    assert seen is not None


async def test_every_namespace_is_looked_at_in_small_pages_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry_index, "EMPTY_NAMESPACES_MAX", 2)
    for name in "abcdef":
        await place.used("x", "y/z", "z", namespace=name)
    found, after = [], None
    while True:
        page = await place.sweep.find(after, 2)
        found += [(each.namespace, each.key) for each in page]
        after = page.cursor
        if after is None:
            break
    assert found == [(name, key) for name in "abcdef" for key in ("x", "y/z", "z")]


async def test_without_a_retention_nothing_is_even_read(place: Place) -> None:
    await place.used("a")
    place.clock.advance(100 * KEPT)
    assert len(await AgedRecords(place.leases, place.store.namespaces).find(None, 10)) == 0


async def test_what_a_crash_left_after_the_record_went_is_taken_away_by_the_next_run(place: Place) -> None:
    await place.used("a")
    place.clock.advance(KEPT)
    broken = Leases(
        place.store.records, FaultyObjects(place.store.objects, Network(Script({1: LOST_REQUEST}))), place.clock
    )
    sweep = AgedRecords(broken, place.store.namespaces, KEPT)
    frame = RunContext(place.journal, place.clock, Ids(place.clock))
    assert (await run_once(sweep, frame)).unknown == 1
    assert (await place.keys(), len(await place.objects())) == ([], 1)
    place.clock.advance(HOUR)
    await place.run()
    assert await place.objects() == []


async def test_an_open_end_takes_nothing_from_a_key_that_was_not_deleted(place: Place) -> None:
    await place.used("a")
    place.clock.advance(KEPT)
    line = Line(Intent("1", "run", "aged_records", "delete", "default/a", "", 1), place.clock.now())
    assert (await place.sweep.resolve([line]), len(await place.objects())) == ([Outcome.CONFLICT], 1)


async def test_an_open_end_takes_nothing_from_a_key_that_came_back(place: Place) -> None:
    line = Line(Intent("1", "run", "aged_records", "delete", "default/a", "", 1), place.clock.now())
    place.clock.advance(HOUR)
    lease = await place.leases.acquire("a", "me", ttl=TTL)
    await place.leases.update(lease.granted, b"{}")
    assert (await place.sweep.resolve([line]), len(await place.objects())) == ([Outcome.DONE], 1)
