"""The line before a key: first come, first served; who goes away is not waited for."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from faults import Fault, FaultyRecords, Network, Script
from virtual_time import VirtualClock, run_virtual
from wrasse.backends.memory.connect import Memory
from wrasse.leases.lease import KeyRefused, Refusal
from wrasse.leases.leases import Leases
from wrasse.leases.wait_queue import POLL_MAX, WaitQueues

NS = "default"
TTL = timedelta(seconds=30)


class World:
    """A store in virtual time and a process before it."""

    def __init__(self, plan: Script | None = None) -> None:
        self.clock = VirtualClock()
        self.memory = Memory(self.clock)
        self.network = Network(plan or Script({}))
        self.leases = self.process()

    def process(self) -> Leases:
        return Leases(
            lambda collection: FaultyRecords(self.memory.records(collection), self.network),
            self.memory.objects,
            self.clock,
        )


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_line_serves_in_order_and_forgets_who_left() -> None:
    lines, served = WaitQueues(), []

    async def wait(n: int) -> None:
        async with lines.place("k") as place:
            while not place.first:
                await place.turn(None, 0.5)
            served.append(n)

    tasks = [asyncio.create_task(wait(n)) for n in range(5)]
    await asyncio.gather(*tasks)
    assert (served, lines.waiting(), lines.busy("k")) == ([0, 1, 2, 3, 4], 0, False)


@pytest.mark.parametrize("leaving", [0, 1, 3])
def test_who_goes_away_is_not_waited_for(leaving: int) -> None:
    async def story() -> tuple[list[str], int]:
        world, order = World(), []
        first = await world.leases.acquire("k", "first", ttl=TTL)

        async def waiter(name: str) -> None:
            leased = await world.leases.acquire("k", name, ttl=TTL, wait=None)
            order.append(name)
            await world.leases.release(leased.granted)

        tasks = [asyncio.create_task(waiter(str(n))) for n in range(4)]
        await asyncio.sleep(1)
        tasks[leaving].cancel()
        await asyncio.sleep(1)
        await world.leases.release(first.granted)
        await asyncio.gather(*tasks, return_exceptions=True)
        return order, world.leases.waiting

    expected = [str(n) for n in range(4) if n != leaving]
    assert run_virtual(story()) == (expected, 0)


def test_a_release_in_this_process_wakes_the_next_at_once() -> None:
    async def story() -> float:
        world = World()
        first = await world.leases.acquire("k", "first", ttl=TTL)
        waiting = asyncio.create_task(world.leases.acquire("k", "next", ttl=TTL, wait=None))
        await asyncio.sleep(20)
        began = now()
        await world.leases.release(first.granted)
        await waiting
        return now() - began

    assert run_virtual(story()) == 0.0


def test_a_release_in_another_process_is_seen_soon() -> None:
    async def story() -> float:
        world = World()
        other = world.process()
        first = await other.acquire("k", "first", ttl=TTL)
        waiting = asyncio.create_task(world.leases.acquire("k", "next", ttl=TTL, wait=None))
        await asyncio.sleep(20)
        began = now()
        await other.release(first.granted)
        await waiting
        return now() - began

    assert run_virtual(story()) <= POLL_MAX


def test_a_lease_that_ends_by_itself_is_taken_when_it_ends() -> None:
    async def story() -> float:
        world = World()
        await world.leases.acquire("k", "gone", ttl=TTL)
        await world.leases.acquire("k", "next", ttl=TTL, wait=None)
        return now()

    assert 30.0 <= run_virtual(story()) <= 30.1


@pytest.mark.parametrize("seconds", [0, 5])
def test_who_waits_too_long_is_told_when_and_for_how_long_to_come_back(seconds: int) -> None:
    async def story() -> tuple[Refusal, float, float]:
        world = World()
        await world.leases.acquire("k", "holder", ttl=TTL)
        with pytest.raises(KeyRefused) as refused:
            await world.leases.acquire("k", "me", ttl=TTL, wait=timedelta(seconds=seconds))
        return refused.value.code, round(refused.value.wait), now()

    assert run_virtual(story()) == (Refusal.WAITING, 30 - seconds, seconds)


def test_only_the_first_in_line_asks_the_store() -> None:
    async def story(waiters: int) -> int:
        random.seed(1)
        plan = Script({})
        world = World(plan)
        await world.leases.acquire("k", "holder", ttl=TTL)
        tasks = [asyncio.create_task(world.leases.acquire("k", str(n), ttl=TTL, wait=None)) for n in range(waiters)]
        await asyncio.sleep(10)
        asked = len(plan.calls)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return asked

    alone, many = run_virtual(story(1)), run_virtual(story(20))
    assert many - alone <= 25  # each polled once when it came; pauses differ


# Nobody gets a key without knowing


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("arrived", [False, True])
def test_a_caller_that_goes_away_in_the_middle_of_its_acquire_leaves_no_lease_unless_it_named_it(
    named: bool, arrived: bool
) -> None:
    async def story() -> bool:
        world = World(Script({0: Fault(slow_request=1.0, slow_reply=1.0)}, "create"))
        id = "000000000000000000a0" if named else ""
        asking = asyncio.create_task(world.leases.acquire("k", "me", ttl=TTL, wait=None, id=id))
        await asyncio.sleep(1.5 if arrived else 0.5)  # its write is on its way, or its answer is
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await world.leases.close()
        meta = await world.leases.describe(NS, "k")
        return meta is not None and meta.lease is not None

    assert run_virtual(story()) is (named and arrived)


def test_a_write_that_arrives_after_its_caller_went_away_changes_nothing() -> None:
    async def story() -> bool:
        world = World(Script({0: Fault(late=5.0)}, "create"))  # told that it failed, and made all the same
        asking = asyncio.create_task(world.leases.acquire("k", "me", ttl=TTL))
        await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await world.leases.close()
        await world.network.close()
        meta = await world.leases.describe(NS, "k")
        return meta is not None and meta.lease is not None

    assert run_virtual(story()) is False


def test_a_wait_that_ends_in_the_middle_of_a_try_gives_the_lease_that_the_try_got() -> None:
    async def story() -> str:
        world = World(Script({1: Fault(slow_request=1.0)}, "put"))
        first = await world.leases.acquire("k", "first", ttl=TTL)
        waiting = asyncio.create_task(world.leases.acquire("k", "me", ttl=TTL, wait=timedelta(seconds=5)))
        await asyncio.sleep(4.5)
        await world.leases.release(first.granted)
        return (await waiting).granted.owner

    assert run_virtual(story()) == "me"
