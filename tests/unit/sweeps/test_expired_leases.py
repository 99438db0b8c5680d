"""Expired leases: cleared, looked at once more, fair between namespaces, and never in anybody's way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from conformance.stores import Store
from wrasse.backends.directory.connect import Directory
from wrasse.backends.memory.connect import Memory
from wrasse.backends.s3.connect import S3
from wrasse.clock import ManualClock
from wrasse.engine.guard import Activity, Traffic
from wrasse.engine.report import Report
from wrasse.engine.run import RunBudget, RunContext, run_once
from wrasse.engine.sweep import Action, Keep
from wrasse.ids import Ids
from wrasse.leases import expiry_index
from wrasse.leases.expiry_index import EndedKeys, QuietNamespaces
from wrasse.leases.lease import KeyRecord, StateObject, Terms
from wrasse.leases.leases import LeasePolicy, Leases
from wrasse.leases.names import state_folder
from wrasse.ports.objects import Objects
from wrasse.ports.records import Namespaces
from wrasse.sweeps.expired_leases import ExpiredLeases

TTL = timedelta(seconds=30)
HOUR = timedelta(hours=1)
STATE = b'{"paid":true}'


@dataclass
class Place:
    """A store with leases, and the sweep over them."""

    clock: ManualClock
    leases: Leases
    objects: Objects
    namespaces: Namespaces
    cursors: dict[str, str | None] = field(default_factory=dict)

    @property
    def sweep(self) -> ExpiredLeases:
        return ExpiredLeases(self.leases, self.namespaces)

    async def holds(self, *keys: str, namespace: str = "default") -> list[KeyRecord]:
        """Leases with something staged under them."""
        found = [await self.leases.acquire(key, "me", namespace=namespace, ttl=TTL) for key in keys]
        for lease in found:
            await self.leases.update(lease.granted, STATE)
        return found

    async def run(self, *, after: timedelta = timedelta(0), budget: RunBudget | None = None) -> Report:
        self.clock.advance(after)
        frame = RunContext(Memory(self.clock).journal, self.clock, Ids(self.clock))
        report = await run_once(self.sweep, frame, cursor=self.cursors.get("it"), budget=budget)
        self.cursors["it"] = report.cursor
        assert not report.errors, report.errors
        return report

    async def states(self, key: str = "", namespace: str = "default") -> list[str]:
        prefix = state_folder(namespace, key) if key else f"{namespace}/state/"
        return [info.key for info in await self.objects.page(prefix, None, 1_000)]

    async def late_write(self, lease: KeyRecord) -> StateObject:
        """What a holder still had on its way when its lease ended."""
        return await self.leases.keys(lease.granted.namespace).versions.write(
            lease.granted.key, lease.granted.token, b"late"
        )


@pytest.fixture(params=["memory", "directory", "strict s3"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    clock = ManualClock()
    opened = Store(request.param, tmp_path, clock=clock)
    await opened.open()
    store = opened.backend
    assert isinstance(store, Memory | Directory | S3)
    place = Place(clock, Leases(store.records, store.objects, clock), store.objects, store.namespaces)
    yield place
    await place.leases.close()
    await opened.close()


async def test_a_lease_that_ended_is_cleared_with_what_was_staged_under_it(place: Place) -> None:
    await place.holds("orders/42")
    report = await place.run(after=2 * HOUR)
    await place.leases.close()
    meta = await place.leases.describe("default", "orders/42")
    assert meta is not None
    assert (report.done, meta.lease, meta.staged, await place.states()) == (1, None, None, [])


async def test_after_the_second_look_nothing_is_due(place: Place) -> None:
    await place.holds("a", "b")
    for _ in range(2):
        await place.run(after=2 * HOUR)
    assert (await place.run(after=2 * HOUR)).seen == 0


async def test_what_a_dead_holder_wrote_late_goes_at_the_second_look(place: Place) -> None:
    (lease,) = await place.holds("a")
    await place.run(after=2 * HOUR)
    await place.late_write(lease)
    await place.run(after=2 * HOUR)
    assert await place.states() == []


async def test_what_a_dead_holder_wrote_late_goes_though_the_next_held_the_key_meanwhile(place: Place) -> None:
    (lease,) = await place.holds("a")
    place.clock.advance(2 * TTL)
    (again,) = await place.holds("a")
    await place.leases.close()
    await place.late_write(lease)
    for _ in range(10):
        await place.leases.renew(again.granted, timedelta(minutes=20))
        place.clock.advance(timedelta(minutes=10))
    await place.leases.release(again.granted)
    await place.leases.close()
    for _ in range(3):
        await place.run(after=2 * HOUR)
    seen = await place.leases.read_public("default", "a")
    assert seen is not None
    assert (seen.data, len(await place.states())) == (STATE, 1)


async def test_a_lease_that_is_held_stays_and_so_does_its_state(place: Place) -> None:
    await place.holds("a")
    place.clock.advance(2 * TTL)
    (lease,) = await place.holds("a")
    for _ in range(12):
        await place.leases.renew(lease.granted, timedelta(minutes=30))
        await place.run(after=timedelta(minutes=25))
    await place.leases.release(lease.granted)
    seen = await place.leases.read_public("default", "a")
    assert seen is not None
    assert seen.data == STATE


async def test_a_committed_state_survives_every_look(place: Place) -> None:
    (lease,) = await place.holds("a")
    await place.leases.release(lease.granted)
    await place.holds("a")
    for _ in range(4):
        await place.run(after=2 * HOUR)
    seen = await place.leases.read_public("default", "a")
    assert seen is not None
    assert (seen.data, len(await place.states())) == (STATE, 1)


async def test_every_namespace_drains_however_many_entries_another_has(place: Place) -> None:
    await place.holds(*(f"k{n}" for n in range(60)), namespace="a")
    await place.holds("k", namespace="b")
    place.clock.advance(2 * HOUR)
    page = await place.sweep.find(None, 5)
    following = await place.sweep.find(page.cursor, 5)
    assert {each.namespace for each in following} == {"b"}
    assert sum([(await place.run(budget=RunBudget(actions_max=20))).done for _ in range(5)]) == 61


async def test_a_cursor_goes_on_exactly_where_a_run_stopped(place: Place) -> None:
    for name in ("a", "b", "c"):
        await place.holds(*(f"k{n}" for n in range(7)), namespace=name)
    place.clock.advance(2 * HOUR)
    seen = []
    after: str | None = None
    while True:
        page = await place.sweep.find(after, 3)
        if not page.items:
            break
        seen.append(page.items[0])  # only the first is processed
        after = page.cursors[0]
    assert (
        len(seen) == len({(each.namespace, each.key) for each in seen if not isinstance(each, QuietNamespaces)}) == 21
    )


async def test_a_look_over_very_many_quiet_namespaces_comes_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry_index, "EMPTY_NAMESPACES_MAX", 3)
    for name in "abcdefgh":
        (lease,) = await place.holds("k", namespace=name)
        await place.leases.release(lease.granted)
    await place.leases.close()
    await place.holds("last", namespace="z")
    place.clock.advance(2 * HOUR)
    assert isinstance((await place.sweep.find(None, 10)).items[0], QuietNamespaces)
    assert (await place.run()).done == 1


async def test_not_too_many_namespaces_are_begun_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry_index, "UNFINISHED_MAX", 2)
    for name in "abcd":
        await place.holds("k1", "k2", "k3", namespace=name)
    place.clock.advance(2 * HOUR)
    order = []
    after: str | None = None
    while True:
        page = await EndedKeys(place.leases, place.namespaces).page(after, 1)
        if not page.items:
            break
        order.append(page.items[0].namespace)
        after = page.cursor
    assert (order[:2], sorted(order), "c" in order[:5]) == (["a", "b"], sorted("abcd" * 3), False)


async def test_it_stops_within_one_entry_of_new_traffic(place: Place) -> None:
    await place.holds("a", "b", "c")
    activity = Activity(place.clock)
    busy = Leases(place.leases.records, place.objects, place.clock, traffic=activity.note)

    class Busy(Traffic):
        """Somebody asks for a lease when the second entry is about to be cleared."""

        asked = 0

        async def pause_reason(self) -> str | None:
            Busy.asked += 1
            if Busy.asked == 3:
                await busy.describe("default", "other")
            return await super().pause_reason()

    place.clock.advance(2 * HOUR)
    frame = RunContext(Memory(place.clock).journal, place.clock, Ids(place.clock))
    report = await run_once(place.sweep, frame, guards=[Busy(activity, timedelta(minutes=5), place.clock)])
    assert (report.done, report.stopped_by) == (1, "traffic")


async def test_nothing_is_cleared_before_margin_and_delay_are_over() -> None:
    clock = ManualClock()
    memory = Memory(clock)
    terms = Terms(timedelta(seconds=5), timedelta(seconds=10))
    leases = Leases(memory.records, memory.objects, clock, LeasePolicy(terms))
    await leases.acquire("a", "me", ttl=TTL)
    clock.advance(TTL)
    sweep = ExpiredLeases(leases, memory.namespaces)
    (suspect,) = await sweep.find(None, 10)

    def verdict(at: datetime) -> bool:
        return isinstance(sweep.decide(suspect, at), Action)

    early = clock.now() + timedelta(seconds=15) - timedelta(microseconds=1)
    assert isinstance(sweep.decide(suspect, clock.now()), Keep)
    assert (verdict(early), verdict(early + timedelta(microseconds=1))) == (False, True)


@pytest.mark.full
async def test_ten_namespaces_with_ten_thousand_entries_each_all_drain() -> None:
    clock = ManualClock()
    memory = Memory(clock)
    place = Place(clock, Leases(memory.records, memory.objects, clock), memory.objects, memory.namespaces)
    for name in "abcdefghij":
        for number in range(10_000):
            await place.leases.acquire(f"k{number}", "me", namespace=name, ttl=TTL)
    clock.advance(2 * HOUR)
    runs = [await place.run(budget=RunBudget(actions_max=1_000)) for _ in range(101)]
    assert (sum(run.done for run in runs), runs[-1].seen) == (100_000, 0)
