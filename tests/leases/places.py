"""Where leases are kept under test: one place, any number of processes on it. All knowledge of a backend is here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from conformance.object_stores import S3Place
from servers.seaweed import S3 as S3Server
from wrasse.backends.directory.connect import Directory
from wrasse.backends.memory.connect import Memory
from wrasse.backends.s3.connect import S3
from wrasse.clock import Clock, ManualClock, SystemClock
from wrasse.engine.sweep import Action
from wrasse.leases.core import EXACT, leases_in
from wrasse.leases.lease import Terms
from wrasse.leases.leases import LeasePolicy, Leases
from wrasse.ports.objects import ObjectInfo, Objects
from wrasse.ports.records import Collection, Namespaces, Records
from wrasse.sweeps.expired_leases import ExpiredLeases

PLACES = ("memory", "directory", "strict s3", "s3")
MOVABLE = PLACES[:-1]  # where time passes when we say so
TTL = timedelta(seconds=30)
HOUR = timedelta(hours=1)
HOURS = timedelta(hours=2)
NS = "default"
HOURS_PASS = pytest.mark.parametrize("place", MOVABLE, indirect=True)


class Backend(Protocol):
    """What leases need of a backend."""

    @property
    def objects(self) -> Objects: ...

    @property
    def namespaces(self) -> Namespaces: ...

    def records(self, collection: Collection) -> Records: ...

    async def close(self) -> None: ...


Between = Callable[[Backend], Backend]


class Place:
    """One store. `process` is another process on it, which knows nothing yet."""

    def __init__(self, name: str, folder: Path, server: S3Server | None = None) -> None:
        self.name = name
        self.clock: Clock = SystemClock() if name == "s3" else ManualClock()
        self.ttl = timedelta(seconds=1.5) if name == "s3" else TTL  # where it has to pass for real
        self._folder = folder
        self._memory = Memory(self.clock)
        self.s3 = S3Place(self.clock, server)
        self.opened: list[Backend] = []
        self._leases: list[Leases] = []

    async def backend(self) -> Backend:
        """One more connection."""
        opened: Backend
        if self.name == "memory":
            opened = self._memory
        elif self.name == "directory":
            opened = await Directory.open(self._folder / "data", self.clock)
        else:
            opened = await S3.open(await self.s3.address(), self.clock)
        self.opened.append(opened)
        return opened

    async def process(self, terms: Terms = EXACT, between: Between = lambda backend: backend) -> Leases:
        """Leases as another process has them; `between` stands before its store."""
        backend = between(await self.backend())
        leases = Leases(backend.records, backend.objects, self.clock, LeasePolicy(terms))
        self._leases.append(leases)
        return leases

    async def pass_time(self, by: timedelta) -> None:
        """Lets the store's clock move on."""
        if isinstance(self.clock, ManualClock):
            self.clock.advance(by)
        else:
            await asyncio.sleep(by.total_seconds())

    async def expire(self) -> None:
        """Until a lease of `ttl` that was just granted is over; a store that tells whole seconds needs one more."""
        await self.pass_time(self.ttl + timedelta(seconds=0 if self.name != "s3" else 0.2))

    async def sweep(self, leases: Leases, namespaces: Namespaces | None = None) -> int:
        """One run of expired_leases to its end; gives how many actions it took."""
        sweep, after, done = ExpiredLeases(leases, namespaces or self.opened[0].namespaces), None, 0
        while True:
            page = await sweep.find(after, 10)
            for suspect in page:
                verdict = sweep.decide(suspect, page.at)
                if isinstance(verdict, Action):
                    await sweep.apply([verdict])
                    done += 1
            if page.cursor is None:
                await leases.close()
                return done
            after = page.cursor

    async def objects(self, prefix: str = "") -> list[ObjectInfo]:
        """What is stored as objects."""
        shown: list[ObjectInfo] = []
        after: str | None = None
        while True:
            page = await self.opened[0].objects.page(prefix, after, 100)
            shown += page
            after = page.cursor
            if after is None:
                return shown

    async def due(self, namespace: str = NS) -> list[str]:
        """Keys that the index leads to by now, by themselves or by an entry they left."""
        return [record.key for record in await self.opened[0].records(leases_in(namespace)).due(None, None, 1_000)]

    async def states(self, key: str, namespace: str = NS) -> list[str]:
        """The state objects of one key, by name."""
        return [info.key for info in await self.objects(f"{namespace}/state/{key}/.v/")]

    async def close(self) -> None:
        """Ends every process."""
        for leases in self._leases:
            await leases.close()
        for backend in self.opened:
            await backend.close()
        await self.s3.close()
