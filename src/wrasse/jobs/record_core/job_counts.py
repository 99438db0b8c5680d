"""Numbers of jobs, for whoever has read what is where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from wrasse.clock import Clock, from_micros
from wrasse.ports.jobs import QueueCount

_KEPT_FOR = 10  # times what counting took: numbers are not counted again before that, unless something changed here
Numbers = tuple[tuple[QueueCount, ...], datetime]


@dataclass(slots=True)
class QueueTally:
    """How many jobs of a queue are where, as far as they were counted. `oldest` is since when the one that is ready
    longest is, in microseconds."""

    numbers: Counter[str] = field(default_factory=Counter)
    oldest: int | None = None

    def add(self, where: str, since: int = 0) -> None:
        """One more: `ready`, `scheduled`, `running`, `done` or `dead`."""
        self.numbers[where] += 1
        if where == "ready":
            self.oldest = since if self.oldest is None else min(self.oldest, since)

    def count(self, queue: str) -> QueueCount:
        """As the port shows it."""
        since = None if self.oldest is None else from_micros(self.oldest)
        return QueueCount(queue, **self.numbers, oldest_ready_at=since)


class CachedCounts:
    """Numbers that took long to count, remembered for a while. Where counting takes longer than `long` seconds they are
    told again even if something changed here."""

    def __init__(self, clock: Clock, long: float = float("inf")) -> None:
        self._clock, self._long = clock, long
        self._told: Numbers | None = None
        self._fresh_until = self._took = 0.0
        self._changes = -1

    async def get(self, changes: int, count: Callable[[], Awaitable[Numbers]]) -> Numbers:
        """The numbers. `changes`: how many writes this process has made so far."""
        begun = self._clock.monotonic()
        same = self._changes == changes or self._took > self._long
        if self._told is None or not same or begun >= self._fresh_until:
            self._told, self._changes = await count(), changes
            self._took = self._clock.monotonic() - begun
            self._fresh_until = begun + self._took * (1 + _KEPT_FOR)
        return self._told
