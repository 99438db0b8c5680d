"""State objects: written once, read whole, and deleted when no record names them any more.

Before a key is cleaned, its lease is cleared. The cleanup lists the objects of that key, reads the record again, and
deletes only objects whose token is not above the cleared lease's and which the record does not name: an object that a
later holder is about to name is never deleted.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from wrasse.errors import StoreUnavailable
from wrasse.leases.lease import StateObject
from wrasse.leases.names import state_folder, state_name, token_of
from wrasse.ports.objects import DELETES_MAX, Data, ObjectDelete, ObjectInfo, Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, pages

PAGE = 100


class Measured(Protocol):
    """Bytes in chunks, with their count."""

    @property
    def size(self) -> int:
        """How many bytes have passed."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class StateObjects:
    """The state objects of one namespace."""

    __slots__ = ("_namespace", "_objects")

    def __init__(self, objects: Objects, namespace: str) -> None:
        self._objects, self._namespace = objects, namespace

    async def write(self, key: str, token: int, data: bytes) -> StateObject:
        """Creates a new object for this key; it is ignored until a record names it."""
        return await self._write(key, token, data, lambda: len(data))

    async def write_stream(self, key: str, token: int, data: Measured) -> StateObject:
        """Creates a new object for this key from chunks; memory use does not depend on its size."""
        return await self._write(key, token, data, lambda: data.size)

    async def _write(self, key: str, token: int, data: Data, size: Callable[[], int]) -> StateObject:
        id = secrets.token_hex(8)
        name = state_name(self._namespace, key, token, id)
        stored = await self._objects.create(name, data)
        if stored.outcome is not Outcome.DONE:
            raise StoreUnavailable(
                f"it is unknown whether an object of {key!r} was written", do="try again; nothing was staged"
            )
        assert stored.version is not None, "what is written has a version"
        return StateObject(name, stored.version, id, size())

    async def read(self, state: StateObject) -> bytes:
        """The bytes; raises Gone if the object was superseded and deleted."""
        return b"".join([chunk async for chunk in self.stream(state)])

    def stream(self, state: StateObject) -> AsyncIterator[bytes]:
        """The bytes in chunks, likewise."""
        return self._objects.read(state.name)

    async def drop(self, *states: StateObject) -> bool:
        """Deletes objects that no record names any more; whether all deletes are confirmed. If not, the next cleanup of
        the key finds them."""
        if not states:
            return True
        with suppress(StoreUnavailable):
            outcomes = await self._objects.delete([ObjectDelete(state.name, state.version) for state in states])
            return all(outcome in (Outcome.DONE, Outcome.CONFLICT) for outcome in outcomes)
        return False

    async def of(self, key: str) -> Sequence[ObjectInfo]:
        """Every object of this key, oldest token first. Usually one request."""
        folder, found = state_folder(self._namespace, key), list[ObjectInfo]()
        async for page in pages(lambda after: self._objects.page(folder, after, PAGE)):
            found += page
        return [info for info in found if token_of(info.key) is not None]

    async def there(self, name: str) -> bool:
        """Whether an object is there."""
        return await self._objects.head(name) is not None

    async def page(self, after: str | None, limit: int) -> Page[ObjectInfo]:
        """Every state object of the namespace; used only by `fsck`."""
        return await self._objects.page(f"{self._namespace}/state/", after, limit)

    async def delete(self, infos: Sequence[ObjectInfo]) -> int:
        """Deletes these objects at the versions listed; returns how many were deleted."""
        gone = 0
        for begin in range(0, len(infos), DELETES_MAX):
            deletes = [ObjectDelete(info.key, info.version) for info in infos[begin : begin + DELETES_MAX]]
            gone += sum(outcome is Outcome.DONE for outcome in await self._objects.delete(deletes))
        return gone
