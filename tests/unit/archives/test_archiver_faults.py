"""Whatever goes wrong at whichever call: every message is in the archives exactly once. Planted bugs are noticed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine

import pytest

from faults import CRASH, LOST_REPLY, LOST_REQUEST, Crashed, Fault, Network, Script, Seeded
from seeds import stories
from virtual_time import VirtualClock, run_virtual
from wrasse.errors import StoreUnavailable

from .scene import CHANGE, LOGIN, TTL, FaultyObjects, Overwrites, RandomNames, World

A_LEASE = TTL.total_seconds() + 1
FAULTS = {
    "crash": CRASH,
    "lost request": LOST_REQUEST,
    "lost reply": LOST_REPLY,
    "late, before the next": Fault(late=A_LEASE / 2),
    "late, after the next": Fault(late=3 * A_LEASE),
}


async def one_fault(plan: Script, store: type[FaultyObjects] = FaultyObjects) -> str:
    """One archiver meets the fault; more is published; another archiver comes, and after it a third."""
    world = World(VirtualClock(), store=store)
    await world.publish(CHANGE, 7)
    await world.publish(LOGIN, 2)
    network = Network(plan)
    try:
        await world.archiver(network, "first").drain()
    except (Crashed, StoreUnavailable):
        network.dead = True
    await world.publish(CHANGE, 4)
    await asyncio.sleep(A_LEASE)
    await world.archiver(owner="second").drain()
    await world.trim()
    await network.close()
    await world.publish(CHANGE, 1)
    await asyncio.sleep(A_LEASE)
    await world.archiver(owner="third").drain()
    return await world.broken()


def calls_of_one_story() -> int:
    script = Script({})
    assert run_virtual(one_fault(script)) == ""
    return len(script.calls)


CALLS = calls_of_one_story()


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_at_any_call_loses_nothing_and_doubles_nothing(what: str) -> None:
    for number in range(CALLS):
        assert run_virtual(one_fault(Script({number: FAULTS[what]}))) == "", f"{what} at call {number} of {CALLS}"


@pytest.mark.parametrize(
    ("store", "what"), [(RandomNames, "crash"), (RandomNames, "lost reply"), (Overwrites, "late, after the next")]
)
def test_a_random_name_or_an_overwriting_put_is_noticed(store: type[FaultyObjects], what: str) -> None:
    noticed = [run_virtual(one_fault(Script({number: FAULTS[what]}), store)) for number in range(CALLS)]
    assert any("lost" in broken or "twice" in broken for broken in noticed)


async def several(seed: int, store: type[FaultyObjects] = FaultyObjects) -> str:
    """Three archivers at once behind bad networks, one of them dies; a producer and trimming all the while."""
    draw = random.Random(seed)
    world = World(VirtualClock(), store=store, size=draw.choice([1, 3, 10]))
    plans = [Seeded(random.Random(draw.random()), late_max=60) for _ in range(3)]
    networks = [Network(plan) for plan in plans]
    archivers = [world.archiver(network, f"archiver-{n}") for n, network in enumerate(networks)]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(archiver.run()) for archiver in archivers[1:]]
        doomed = group.create_task(_until_dead(archivers[0].run()))
        for _ in range(30):
            await world.publish(draw.choice([CHANGE, LOGIN]), draw.randrange(1, 6))
            await world.trim()
            await asyncio.sleep(draw.uniform(0, 20))
        networks[0].dead = True
        archivers[0].stop()
        await doomed
        for plan in plans:
            plan.calm = True
        await asyncio.sleep(120 + A_LEASE + 60)
        for archiver in archivers[1:]:
            archiver.stop()
        await asyncio.wait(running)
    for network in networks:
        await network.close()
    return await world.broken()


async def _until_dead(running: Coroutine[object, object, None]) -> None:
    try:
        await running
    except Crashed:
        return


@pytest.mark.parametrize("seed", range(8))
def test_several_archivers_behind_bad_networks_write_every_message_once(seed: int) -> None:
    assert run_virtual(several(seed)) == ""


@pytest.mark.full
@pytest.mark.parametrize("seed", stories(100, 400))
def test_many_more_stories_of_several_archivers_end_well(seed: int) -> None:
    assert run_virtual(several(seed)) == ""


def test_among_several_archivers_a_random_name_is_noticed() -> None:
    assert any(run_virtual(several(seed, RandomNames)) for seed in range(8))
