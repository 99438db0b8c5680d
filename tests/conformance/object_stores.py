"""The stores of objects under test, each behind the same small face. All knowledge of a backend is in this file."""

from __future__ import annotations

from pathlib import Path

from wrasse.backends.directory.connect import Directory
from wrasse.backends.directory.files import Files
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.ports.objects import ObjectInfo, Objects

OBJECT_BACKENDS = ("memory", "directory", "directory that cannot exchange names")


class NoExchange(Files):
    """A file system like NFS, which cannot exchange two names."""

    def exchange(self, one: bytes, other: bytes) -> bool:
        return False


class ObjectStore:
    """One backend under test."""

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        self.clock = ManualClock()
        self._place = place
        self._memory = Memory(self.clock)
        self._backends: list[Memory | Directory] = []

    async def open(self) -> None:
        """Connects."""
        await self.another()

    async def another(self) -> Objects:
        """A second connection to the same data, as another process would have."""
        backend: Memory | Directory
        if self.name == "memory":
            backend = self._memory
        else:
            backend = await Directory.open(
                self._place, self.clock, files=Files if self.name == "directory" else NoExchange
            )
        self._backends.append(backend)
        return backend.objects

    async def reopen(self) -> None:
        """What a restart of our process does."""
        await self.close()
        await self.open()

    async def close(self) -> None:
        """Disconnects."""
        while self._backends:
            await self._backends.pop().close()

    @property
    def objects(self) -> Objects:
        """The port."""
        return self._backends[0].objects


async def listed(objects: Objects, prefix: str = "", limit: int = 2) -> list[ObjectInfo]:
    """Everything with this prefix, by small pages, so that every listing also tests its cursors."""
    shown: list[ObjectInfo] = []
    after: str | None = None
    while True:
        page = await objects.page(prefix, after, limit)
        shown += page
        after = page.cursor
        if after is None:
            return shown


async def whole(objects: Objects, key: str, *, at: str | None = None) -> bytes:
    """All bytes of one object."""
    return b"".join([chunk async for chunk in objects.read(key, at=at)])
