"""Several engines on one store, over hours of virtual time: one run per interval, and nobody is missed for long."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from virtual_time import VirtualClock, run_virtual
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.loop import ENGINE_LEASES, Engine
from wrasse.engine.run import AnySweep, RunContext
from wrasse.engine.turn import ENGINE_STATE, Scheduled, SweepBackend
from wrasse.ids import Ids
from wrasse.leases.manager import LeaseManager

from .scene import OldBottles, Shelf

INTERVAL = timedelta(minutes=10)
TTL = timedelta(seconds=30)


class Together:
    """A store and engines that come and go."""

    def __init__(self, interval: timedelta = INTERVAL) -> None:
        self.clock = VirtualClock()
        self.memory = Memory(self.clock)
        self.status = Shelf(ManualClock())
        self.interval = interval
        self.runs: list[float] = []
        self.status.before_find = lambda: self.runs.append(self.clock.monotonic())

    def engine(
        self,
        owner: str,
        *,
        off: timedelta = timedelta(0),
        drift: float = 0.0,
        sweep: AnySweep | None = None,
        ttl: timedelta = TTL,
    ) -> Engine:
        clock = VirtualClock(off=off, drift=drift)
        return Engine(
            [Scheduled(sweep or OldBottles(self.status), self.interval)],
            home=SweepBackend(
                LeaseManager(self.memory.records(ENGINE_LEASES), clock), self.memory.records(ENGINE_STATE)
            ),
            context=RunContext(self.memory.journal, clock, Ids(clock)),
            owner=owner,
            lease_ttl=ttl,
        )


async def _for(seconds: float, *engines: Engine) -> None:
    async with asyncio.TaskGroup() as tasks:
        for engine in engines:
            tasks.create_task(engine.run())
        await asyncio.sleep(seconds)
        for engine in engines:
            engine.stop()


@pytest.mark.parametrize("count", [1, 3, 10])
def test_any_number_of_engines_makes_one_run_per_interval(count: int) -> None:
    async def story() -> None:
        world = Together()
        await _for(10 * INTERVAL.total_seconds(), *(world.engine(f"e{n}") for n in range(count)))
        assert 9 <= len(world.runs) <= 10
        gaps = [later - earlier for earlier, later in zip(world.runs, world.runs[1:], strict=False)]
        assert min(gaps) >= INTERVAL.total_seconds()
        assert max(gaps) <= 1.1 * INTERVAL.total_seconds() + 1

    run_virtual(story())


def test_engines_whose_clocks_are_off_by_hours_still_share_one_run_per_interval() -> None:
    async def story() -> None:
        world = Together()
        offs = (timedelta(hours=-5), timedelta(0), timedelta(hours=5))
        await _for(10 * INTERVAL.total_seconds(), *(world.engine(f"e{off}", off=off, drift=1e-4) for off in offs))
        assert 9 <= len(world.runs) <= 10

    run_virtual(story())


def test_the_run_of_an_engine_that_died_is_made_up_for_as_soon_as_its_lease_ends() -> None:
    async def story() -> None:
        world = Together(interval=timedelta(hours=24))
        lease_manager = LeaseManager(world.memory.records(ENGINE_LEASES), world.clock)
        await lease_manager.acquire("sweep/old_bottles", "dead", TTL)
        await _for(3_600, world.engine("alive"))
        assert len(world.runs) == 1
        assert world.runs[0] <= 10 + TTL.total_seconds() + 2

    run_virtual(story())


def test_a_run_longer_than_its_lease_is_renewed_and_finished_by_one_engine() -> None:
    async def story() -> None:
        world = Together()
        world.status.fill(60)

        class Slow(OldBottles):
            __slots__ = ()

            async def apply(self, actions):  # type: ignore[no-untyped-def]
                await asyncio.sleep(4)
                return await OldBottles.apply(self, actions)

        ttl = timedelta(seconds=9)
        await _for(60, *(world.engine(f"e{n}", sweep=Slow(world.status), ttl=ttl) for n in range(3)))
        assert [batch[0] for batch in world.status.batches] == [f"b{n:05}" for n in range(0, 60, 10)]

    run_virtual(story())
