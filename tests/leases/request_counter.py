"""Requests under the eye of a test: how many, which, and how many of them had to wait for one another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from faults import Network, Script
from leases.places import Place
from wrasse.backends.s3.connect import S3
from wrasse.backends.s3.transport import Body, Reply, S3Request, S3Transport
from wrasse.leases.leases import Leases

T = TypeVar("T")


@dataclass
class Seen:
    """One request: what was asked, and the ticks at which it began and ended."""

    ask: S3Request
    began: int
    ended: int = 0


class WatchedWire(S3Transport):
    """Notes every request."""

    seen: list[Seen]
    tick = 0

    async def ask(self, ask: S3Request) -> Reply:
        seen = self._begin(ask)
        try:
            return await super().ask(ask)
        finally:
            self._end(seen)

    @asynccontextmanager
    async def stream(self, ask: S3Request) -> AsyncIterator[tuple[Reply, Body]]:
        seen = self._begin(ask)
        async with super().stream(ask) as answer:
            yield answer
        self._end(seen)

    def listings(self) -> list[str]:
        """The prefixes of all listings."""
        prefixes = [dict(each.ask.query).get("prefix", b"") for each in self.seen if _lists(each.ask)]
        return [prefix if isinstance(prefix, str) else prefix.decode() for prefix in prefixes]

    def in_sequence(self) -> int:
        """The longest chain of requests each of which began after the one before it had ended."""
        longest = 0
        depths: list[tuple[Seen, int]] = []
        for each in sorted(self.seen, key=lambda one: one.began):
            depth = 1 + max((deep for before, deep in depths if before.ended and before.ended < each.began), default=0)
            depths.append((each, depth))
            longest = max(longest, depth)
        return longest

    def _begin(self, ask: S3Request) -> Seen:
        self.tick += 1
        seen = Seen(ask, self.tick)
        self.seen.append(seen)
        return seen

    def _end(self, seen: Seen) -> None:
        self.tick += 1
        seen.ended = self.tick


def _lists(ask: S3Request) -> bool:
    return ask.key is None and any(name == "list-type" for name, _ in ask.query)


@dataclass
class Watched:
    """A process whose requests are watched."""

    backend: S3
    wire: WatchedWire
    leases: Leases

    async def cost(self, act: Awaitable[T]) -> tuple[int, T]:
        """How many requests this took, what it left for afterwards included, and its answer."""
        before = self.backend.requests
        answer = await act
        await self.leases.close()
        return self.backend.requests - before, answer


async def watched(place: Place) -> Watched:
    """Another process on a bucket."""
    address = await place.s3.address()
    wire = WatchedWire(address, place.clock)
    wire.seen = []
    backend = await S3.open(address, place.clock, wire=wire)
    place.opened.append(backend)
    wire.seen.clear()
    return Watched(backend, wire, Leases(backend.records, backend.objects, place.clock))


class Counting(Network):
    """Notes the name of every call of a port."""

    def __init__(self) -> None:
        super().__init__(Script({}))
        self.calls: list[str] = []

    async def call(self, name: str, act: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(name)
        return await act()
