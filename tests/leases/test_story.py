"""Random histories: clients with clocks that are off, bad networks and deaths at every write, then the laws.

In virtual time on memory, where delays and late requests are real; on the directory and on a bucket with the calls of
several clients at once and time that passes between their turns.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import pytest

from faults import Crashed
from leases.clients import Client, Scene, calm
from leases.history import nothing_is_left
from leases.places import NS, Place
from seeds import stories
from virtual_time import VirtualClock, run_virtual
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.sweep import Action
from wrasse.errors import StoreBroken
from wrasse.leases.core import leases_in
from wrasse.leases.leases import Leases
from wrasse.sweeps.expired_leases import ExpiredLeases

CLIENTS = 4
SEEDS = 25


def deaths_are_no_news(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """What a dead process left to do after its answers dies with it, unheard."""
    if not isinstance(context.get("exception"), Crashed):
        loop.default_exception_handler(context)


async def sweep(leases: Leases, scene: Scene) -> None:
    sweeping, after = ExpiredLeases(leases, scene.backend.namespaces), None
    while True:
        page = await sweeping.find(after, 10)
        for suspect in page:
            verdict = sweeping.decide(suspect, page.at)
            if isinstance(verdict, Action):
                await sweeping.apply([verdict])
        after = page.cursor
        if after is None:
            await leases.close()
            return


async def virtual_story(seed: int, *, careless: bool = False) -> Scene:
    """A life in virtual time: everybody at once, then calm, then the sweeps."""
    asyncio.get_running_loop().set_exception_handler(deaths_are_no_news)
    random.seed(seed)  # pauses of the product are drawn from it
    draw, true = random.Random(seed), VirtualClock()
    scene = Scene(Memory(true), true, draw, careless=careless)
    offs = [timedelta(seconds=draw.uniform(-3_000, 3_000)) for _ in range(CLIENTS)]
    clients = [Client(scene, VirtualClock(off=off), delay=0.2) for off in offs]
    await asyncio.gather(*(client.live(25) for client in clients))
    calm(scene.plans)
    for network in scene.networks:
        await network.close()  # whatever was under way has arrived
    leases = Leases(scene.backend.records, scene.backend.objects, true)
    for _ in range(3):
        await asyncio.sleep(2 * 3_600)
        await sweep(leases, scene)
    return scene


@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_whatever_goes_wrong_every_history_obeys_the_laws(first: int) -> None:
    deaths = commits = 0
    for seed in range(first, first + 5):
        scene = run_virtual(story_and_rest(seed))
        scene.history.check()
        deaths += scene.deaths
        commits += len(scene.history.committed)
    assert (deaths > 5, commits > 5) == (True, True), (deaths, commits)


@pytest.mark.full
@pytest.mark.parametrize("first", stories(1_000, 2_000, 50))
def test_a_thousand_histories_obey_the_laws(first: int) -> None:
    commits = 0
    for seed in range(first, first + 50):
        scene = run_virtual(story_and_rest(seed))
        scene.history.check()
        commits += len(scene.history.committed)
    assert commits > 100


async def story_and_rest(seed: int) -> Scene:
    scene = await virtual_story(seed)
    await nothing_is_left(scene.backend.records(leases_in(NS)), scene.backend.objects, NS, scene.history)
    return scene


def test_a_store_that_ignores_conditions_is_found_out() -> None:
    def broken(seed: int) -> bool:
        try:
            run_virtual(virtual_story(seed, careless=True)).history.check()
        except (AssertionError, StoreBroken):
            return True
        return False

    assert any(broken(seed) for seed in range(5))


@pytest.mark.parametrize("place", ["directory", "strict s3"], indirect=True)
@pytest.mark.parametrize("seed", range(3))
async def test_on_real_stores_deaths_and_lost_replies_leave_nothing(place: Place, seed: int, tmp_path: Path) -> None:
    asyncio.get_running_loop().set_exception_handler(deaths_are_no_news)
    assert isinstance(place.clock, ManualClock)
    scene = Scene(await place.backend(), place.clock, random.Random(seed))
    clients = [Client(scene, place.clock, delay=0.0) for _ in range(CLIENTS)]
    for _ in range(25):
        await asyncio.gather(*(client.live(1) for client in clients))
        place.clock.advance(timedelta(seconds=scene.random.choice((0.1, 1.0, 5.0))))
    calm(scene.plans)
    for client in clients:
        await client.leases.close()
    for _ in range(3):
        await place.pass_time(timedelta(hours=2))
        await sweep(Leases(scene.backend.records, scene.backend.objects, place.clock), scene)
    scene.history.check()
    await nothing_is_left(scene.backend.records(leases_in(NS)), scene.backend.objects, NS, scene.history)
