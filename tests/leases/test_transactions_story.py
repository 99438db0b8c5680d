"""Random histories of transactions: clients that share three keys, bad networks, deaths at every write, then the laws.

In virtual time on memory, where delays and late requests are real; on the directory and on a bucket with the calls of
several clients at once and time that passes between their turns.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta

import pytest

from faults import Crashed, FaultyRecords, Network, Seeded
from leases.clients import WRITES, Mortal, calm
from leases.places import Backend, Place
from leases.test_transactions_crashes import deaths_are_no_news
from leases.transaction_scene import KEYS, Told, check, name_of, nothing_is_left, release, settle, stage, sweep_all
from object_faults import FaultyObjects
from seeds import stories
from virtual_time import VirtualClock, run_virtual
from wrasse.backends.memory.connect import Memory
from wrasse.clock import Clock, ManualClock
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.leases.lease import KeyRecord, KeyRefused
from wrasse.leases.leases import LeasePolicy, Leases
from wrasse.leases.transactions import log as book_module
from wrasse.leases.transactions.states import Decision
from wrasse.ports.records import Collection, Records

CLIENTS = 4
SEEDS = 10


class World:
    """A store, everybody on it, and what they were told."""

    def __init__(self, backend: Backend, draw: random.Random) -> None:
        self.backend, self.draw, self.told = backend, draw, Told()
        self.plans: list[Seeded] = []
        self.networks: list[Network] = []
        self.deaths = self.made = 0

    def process(self, clock: Clock, delay: float) -> Leases:
        late = dict.fromkeys(WRITES, 0.01 if delay else 0.0)
        plan = Seeded(
            random.Random(self.draw.random()), 0.005, 0.02, late=0.0, late_of=late, late_max=10.0, delay_max=delay
        )
        network = Network(Mortal(plan, death=0.01))
        self.plans.append(plan)
        self.networks.append(network)

        def records(collection: Collection) -> Records:
            return FaultyRecords(self.backend.records(collection), network)

        objects, replay = FaultyObjects(self.backend.objects, network), timedelta(seconds=2)
        return Leases(records, objects, clock, LeasePolicy(replay=replay), namespaces=self.backend.namespaces)


class Teller:
    """Makes transactions over two or three keys, ends them somehow, and asks again where it heard nothing."""

    def __init__(self, world: World, clock: Clock, delay: float) -> None:
        self._world, self._clock, self._delay = world, clock, delay
        self._draw = random.Random(world.draw.random())
        self.leases = world.process(clock, delay)

    async def live(self, turns: int) -> None:
        for _ in range(turns):
            try:
                with suppress(StoreUnavailable, KeyRefused, UsageError):
                    await self._turn()
            except Crashed:
                self._world.deaths += 1
                self.leases = self._world.process(self._clock, self._delay)

    async def _turn(self) -> None:
        self._world.made += 1
        mark = name_of(self._world.made)
        keys = self._draw.sample(KEYS, self._draw.choice((2, 3)))
        self._world.told.keys[mark] = keys
        held: list[KeyRecord] = []
        try:
            await self._change(mark, sorted(keys), held)
        except (KeyRefused, StoreUnavailable, UsageError):
            if self._draw.random() < 0.7:
                for leased in held:
                    await release(self.leases, leased, self._world.told, mark, commit=False)
            raise

    async def _change(self, mark: str, keys: list[str], held: list[KeyRecord]) -> None:
        ttl = timedelta(seconds=self._draw.uniform(4, 15))
        wait = timedelta(seconds=self._draw.choice((0.0, 10.0, 20.0)) * bool(self._delay))
        explicit = mark if self._draw.random() < 0.7 else ""
        for key in keys:
            leased = await self.leases.acquire(key, "me", ttl=ttl, wait=wait, transaction=explicit)
            explicit = leased.granted.transaction  # a server made it, and the others join
            held.append(leased)
        for leased in held:
            await stage(self.leases, leased, mark)
            if self._draw.random() < 0.3:
                await self.leases.renew(leased.granted, ttl)
            if self._delay and self._draw.random() < 0.1:
                await asyncio.sleep(self._draw.choice((1.0, 6.0)))
        await self._end(held, mark, explicit)

    async def _end(self, held: list[KeyRecord], mark: str, id: str) -> None:
        way = self._draw.random()
        for _ in range(3):
            with suppress(StoreUnavailable):
                if way < 0.5:
                    for leased in self._draw.sample(held, len(held)):
                        await release(self.leases, leased, self._world.told, mark)
                elif way < 0.7:
                    state = await self.leases.decide(id, commit=True)
                    told = self._world.told
                    (told.committed if state is Decision.COMMIT else told.undone).add(mark)
                elif way < 0.85:
                    await release(self.leases, self._draw.choice(held), self._world.told, mark, commit=False)
                return


async def virtual_story(seed: int) -> World:
    asyncio.get_running_loop().set_exception_handler(deaths_are_no_news)
    random.seed(seed)  # pauses of the product are drawn from it
    draw, true = random.Random(seed), VirtualClock()
    world = World(Memory(true), draw)
    offs = [timedelta(seconds=draw.uniform(-3_000, 3_000)) for _ in range(CLIENTS)]
    tellers = [Teller(world, VirtualClock(off=off), 0.05) for off in offs]
    await asyncio.gather(*(teller.live(25) for teller in tellers))
    calm(world.plans)
    for network in world.networks:
        await network.close()  # whatever was under way has arrived
    leases = Leases(world.backend.records, world.backend.objects, true)
    for hours in (2, 2, 2, 26, 2):
        await asyncio.sleep(hours * 3_600)
        await sweep_all(leases, world.backend)
    await check(leases, world.told)
    await nothing_is_left(world.backend)
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_whatever_goes_wrong_every_transaction_is_all_or_nothing(first: int) -> None:
    worlds = [run_virtual(virtual_story(seed)) for seed in range(first, first + 5)]
    deaths, commits = sum(world.deaths for world in worlds), sum(len(world.told.committed) for world in worlds)
    undone = sum(len(world.told.undone) for world in worlds)
    assert (deaths > 10, commits > 20, undone > 5) == (True, True, True), (deaths, commits, undone)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", stories(1_000, 2_000, 50))
def test_a_thousand_histories_of_transactions(first: int) -> None:
    worlds = [run_virtual(virtual_story(seed)) for seed in range(first, first + 50)]
    assert sum(len(world.told.committed) for world in worlds) > 200


def test_a_process_that_clears_a_lease_without_settling_its_transaction_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def careless(self: book_module.TransactionLog, id: str) -> Decision | None:
        return None

    monkeypatch.setattr(book_module.TransactionLog, "settle", careless)

    def torn(seed: int) -> bool:
        try:
            run_virtual(virtual_story(seed))
        except AssertionError:
            return True
        return False

    assert any(torn(seed) for seed in range(40))


@pytest.mark.parametrize("place", ["directory", "strict s3"], indirect=True)
@pytest.mark.parametrize("seed", range(2))
async def test_on_real_stores_every_transaction_is_all_or_nothing(place: Place, seed: int) -> None:
    asyncio.get_running_loop().set_exception_handler(deaths_are_no_news)
    assert isinstance(place.clock, ManualClock)
    world = World(await place.backend(), random.Random(seed))
    tellers = [Teller(world, place.clock, 0.0) for _ in range(CLIENTS)]
    for _ in range(15):
        await asyncio.gather(*(teller.live(1) for teller in tellers))
        place.clock.advance(timedelta(seconds=world.draw.choice((0.1, 1.0, 5.0))))
    calm(world.plans)
    for teller in tellers:
        await teller.leases.close()
    leases = Leases(world.backend.records, world.backend.objects, place.clock)
    await settle(leases, world.backend, place.clock)
    await check(leases, world.told)
    await nothing_is_left(world.backend)
