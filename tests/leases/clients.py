"""Clients of leases with a will of their own: they wait, stall, overstay, ask again, and die at any write."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from faults import Crashed, Fault, FaultyRecords, Network, Seeded
from leases.history import History, Witness
from leases.places import NS, Backend
from object_faults import FaultyObjects
from wrasse.clock import Clock
from wrasse.errors import Gone, StoreUnavailable
from wrasse.leases.lease import KeyRecord, KeyRefused, Refusal
from wrasse.leases.leases import Leases
from wrasse.ports.objects import NO_METADATA, Data, WriteResult
from wrasse.ports.records import Collection, Records

KEYS = ("a", "b/c")
WRITES = ("create", "put", "delete", "leave")


@dataclass(slots=True)
class Mortal:
    """A bad network, and a chance to die before any write."""

    bad: Seeded
    death: float = 0.04

    def next(self, call: str) -> Fault:
        fault = self.bad.next(call)
        if not self.bad.calm and call in WRITES and self.bad.random.random() < self.death:
            return Fault(crash=True)
        return fault


@dataclass
class Scene:
    """The store, what happens to it, and what chance decides."""

    backend: Backend
    clock: Clock  # the store's
    random: random.Random
    history: History = field(default_factory=History)
    careless: bool = False
    deaths: int = 0
    made: int = 0
    plans: list[Seeded] = field(default_factory=list)
    networks: list[Network] = field(default_factory=list)

    def process(self, clock: Clock, *, delay: float) -> tuple[Leases, Network]:
        """A new process with its own clock behind a network of its own."""
        late = dict.fromkeys(WRITES, 0.01 if delay else 0.0)  # nobody is there for the answer of a late read
        plan = Seeded(random.Random(self.random.random()), delay_max=delay, late=0.0, late_of=late)
        self.plans.append(plan)
        network = Network(Mortal(plan))
        self.networks.append(network)
        objects = _Noted(self.backend, network, self.history)

        def records(collection: Collection) -> Records:
            inner = Witness(self.backend.records(collection), self.history, self.clock, careless=self.careless)
            return FaultyRecords(inner, network)

        return Leases(records, objects, clock), network


class _Noted(FaultyObjects):
    """Objects behind a network; what is written under which name is written down before it is sent."""

    def __init__(self, backend: Backend, network: Network, history: History) -> None:
        super().__init__(backend.objects, network)
        self._history = history

    async def create(self, key: str, data: Data, *, metadata: object = NO_METADATA) -> WriteResult:
        assert isinstance(data, bytes)
        self._history.bytes_of[key] = data
        return await super().create(key, data)


class Client:
    """One client and its process; a new one comes when it dies."""

    def __init__(self, scene: Scene, clock: Clock, *, delay: float) -> None:
        self._scene, self._clock, self._delay = scene, clock, delay
        self._random = random.Random(scene.random.random())
        self.leases, self.network = scene.process(clock, delay=delay)

    async def live(self, turns: int) -> None:
        """So many turns, over any number of deaths."""
        for _ in range(turns):
            try:
                await self._turn()
            except Crashed:
                self._scene.deaths += 1
                self.leases, self.network = self._scene.process(self._clock, delay=self._delay)

    async def _turn(self) -> None:
        key = self._random.choice(KEYS)
        with suppress(StoreUnavailable, KeyRefused):
            if self._random.random() < 0.3:
                await self._look(key)
                return
            ttl, wait = self._random.uniform(1, 8), self._random.choice((0.0, 0.5, 3.0)) * bool(self._delay)
            leased = await self.leases.acquire(
                key, "me", ttl=timedelta(seconds=ttl), wait=timedelta(seconds=wait), if_not_exists=False
            )
            self._scene.history.granted[key].append(leased.granted.token)
            await self._hold(leased)

    async def _look(self, key: str) -> None:
        with suppress(Gone):
            seen = await self.leases.read_public(NS, key)
            if seen is not None:
                self._scene.history.read.append((key, seen.version, seen.data))

    async def _hold(self, leased: KeyRecord) -> None:
        staged: bytes | None = None
        for _ in range(self._random.randrange(4)):
            step = self._random.random()
            if step < 0.5:
                self._scene.made += 1
                data = b'{"n":%d}' % self._scene.made
                await self.leases.update(leased.granted, data)
                staged = data
            elif step < 0.7:
                await self.leases.renew(leased.granted, timedelta(seconds=self._random.uniform(1, 8)))
            elif self._delay:
                await asyncio.sleep(self._random.choice((0.1, 1.0, 6.0)))
        if self._random.random() < 0.15:
            return  # walks away
        await self._give_back(leased, staged, commit=self._random.random() < 0.8)

    async def _give_back(self, leased: KeyRecord, staged: bytes | None, *, commit: bool) -> None:
        history, key = self._scene.history, leased.granted.key
        for _ in range(3):
            try:
                meta = await self.leases.release(leased.granted, commit=commit)
            except StoreUnavailable:
                continue  # asks again, as clients do
            except KeyRefused as refused:
                if commit and staged is not None and refused.code is Refusal.LEASE_EXPIRED:
                    history.refused.append((key, staged))
                return
            if commit and staged is not None:
                if meta is None:
                    history.kept.append((key, staged))
                else:
                    history.committed.append((key, meta.version, staged))
            return


def calm(plans: list[Seeded]) -> None:
    """From now on the network only takes its time."""
    for plan in plans:
        plan.calm = True
