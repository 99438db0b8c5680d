"""Counts of jobs by state, for views that read all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from wrasse.clock import Clock, from_micros
from wrasse.ports.jobs import QueueCount

_KEPT_FOR = 10  # times the duration of a count: counts are cached that long, unless something changed here
Numbers = tuple[tuple[QueueCount, ...], datetime]


@dataclass(slots=True)
class QueueTally:
    """How many jobs of a queue are in each state, as counted so far. `oldest`: since when the oldest ready job is
    ready, in microseconds."""

    numbers: Counter[str] = field(default_factory=Counter)
    oldest: int | None = None

    def add(self, where: str, since: int = 0) -> None:
        """One more: `ready`, `scheduled`, `running`, `done` or `dead`."""
        self.numbers[where] += 1
        if where == "ready":
            self.oldest = since if self.oldest is None else min(self.oldest, since)

    def count(self, queue: str) -> QueueCount:
        """The counts as the port returns them."""
        since = None if self.oldest is None else from_micros(self.oldest)
        return QueueCount(queue, **self.numbers, oldest_ready_at=since)


class CachedCounts:
    """Cached counts. If a count takes longer than `long` seconds, the cache is used even if something changed here."""

    def __init__(self, clock: Clock, long: float = float("inf")) -> None:
        self._clock, self._long = clock, long
        self._cached: Numbers | None = None
        self._fresh_until = self._took = 0.0
        self._changes = -1

    async def get(self, changes: int, count: Callable[[], Awaitable[Numbers]]) -> Numbers:
        """The numbers. `changes`: how many writes this process has made so far."""
        begun = self._clock.monotonic()
        same = self._changes == changes or self._took > self._long
        if self._cached is None or not same or begun >= self._fresh_until:
            self._cached, self._changes = await count(), changes
            self._took = self._clock.monotonic() - begun
            self._fresh_until = begun + self._took * (1 + _KEPT_FOR)
        return self._cached
