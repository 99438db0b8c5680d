"""The backends under test, each behind the same small face. All knowledge of a backend is in this file.

A store can be opened, reopened as after a restart of our process, and let time pass: at once where the clock is ours,
by waiting where it is the server's.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from wrasse.backends.memory.connect import Memory
from wrasse.clock import Clock, ManualClock
from wrasse.ports.jobs import JobQueue
from wrasse.ports.journal import Journal
from wrasse.ports.pulse import Pulse
from wrasse.ports.records import Collection, Records

BACKENDS = ("memory", "sqlite")
RECORDS_BACKENDS = (*BACKENDS, "directory")


class Backend(Protocol):
    """What every backend's connect.py offers."""

    @property
    def jobs(self) -> JobQueue: ...

    @property
    def journal(self) -> Journal: ...

    def records(self, collection: Collection) -> Records: ...

    async def pulse(self) -> Pulse: ...

    async def close(self) -> None: ...


class Store:
    """One backend under test."""

    def __init__(self, name: str, place: Path, *, clock: Clock | None = None, done_max: int = 10_000) -> None:
        self.name = name
        self.clock = clock if clock is not None else ManualClock()
        self._place = place
        self._done_max = done_max
        self._memory = Memory(self.clock, done_max=done_max)
        self._backend: Backend | None = None

    async def open(self) -> None:
        """Connects."""
        self._backend = await self.another()

    async def another(self) -> Backend:
        """A second connection to the same data, as another process would have. The caller closes it."""
        if self.name == "memory":
            return self._memory
        if self.name == "directory":
            from wrasse.backends.directory.connect import Directory

            return await Directory.open(self._place / "data", self.clock)
        from wrasse.backends.sqlite.connect import Sqlite  # here: the memory suite runs without it

        return await Sqlite.open(self._place / "wrasse.db", self.clock, done_max=self._done_max)

    async def reopen(self) -> None:
        """What a restart of our process does."""
        await self.close()
        await self.open()

    async def close(self) -> None:
        """Disconnects."""
        if self._backend is not None:
            await self._backend.close()
            self._backend = None

    async def pass_time(self, duration: timedelta) -> None:
        """Lets the backend's clock move on by this much."""
        if isinstance(self.clock, ManualClock):
            self.clock.advance(duration)
        else:
            await asyncio.sleep(duration.total_seconds())

    @property
    def backend(self) -> Backend:
        """The connection."""
        assert self._backend is not None, "the store is not open"
        return self._backend

    @property
    def jobs(self) -> JobQueue:
        return self.backend.jobs

    @property
    def journal(self) -> Journal:
        return self.backend.journal

    def collection(self, name: str = "things") -> Collection:
        """Where the records of this name live, on any connection."""
        return Collection.named(name, width=timedelta(seconds=1))

    def records(self, name: str = "things") -> Records:
        """The records of one collection."""
        return self.backend.records(self.collection(name))


