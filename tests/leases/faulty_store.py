"""What stands between a process and its store in these tests: a gate that holds one call, or a network with faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from faults import Fault, FaultyRecords, Network, Plan
from leases.places import Backend, Between
from object_faults import FaultyObjects
from wrasse.ports.objects import Objects
from wrasse.ports.records import Collection, Namespaces, Records

T = TypeVar("T")


class Gate(Network):
    """Holds the next call of this name, once it is shut, until it is opened; whatever time passes meanwhile."""

    def __init__(self, at: str) -> None:
        super().__init__(_Fine())
        self._at = at
        self._shut = False
        self.reached = asyncio.Event()
        self._open = asyncio.Event()

    def shut(self) -> None:
        self._shut = True

    def open(self) -> None:
        self._open.set()

    async def call(self, name: str, act: Callable[[], Awaitable[T]]) -> T:
        if self._shut and name == self._at:
            self._shut = False
            self.reached.set()
            await self._open.wait()
        return await act()


class _Fine(Plan):
    def next(self, call: str) -> Fault:
        raise AssertionError("a gate has no plan")


class Behind:
    """A backend behind one network for its records and one for its objects."""

    def __init__(self, backend: Backend, records: Network | None, objects: Network | None) -> None:
        self._backend = backend
        self._network = records
        self.objects: Objects = backend.objects if objects is None else FaultyObjects(backend.objects, objects)

    @property
    def namespaces(self) -> Namespaces:
        return self._backend.namespaces

    def records(self, collection: Collection) -> Records:
        records = self._backend.records(collection)
        return records if self._network is None else FaultyRecords(records, self._network)

    async def close(self) -> None:
        await self._backend.close()


def behind(*, records: Network | None = None, objects: Network | None = None) -> Between:
    """A process behind these networks."""
    return lambda backend: Behind(backend, records, objects)


def faulty(plan: Plan) -> Between:
    """A process whose records are behind a network that does what the plan says."""
    return behind(records=Network(plan))
