"""The search for strays before each run of `stuck_jobs`: a few looks, with pauses of uneven length between them, until
the round or the time it may take is over. The next search goes on where this one stopped, whoever makes it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.ports.strays import Strays


@dataclass(frozen=True, slots=True)
class StraySearch:
    """How much one search may do. `chance` gives numbers from 0 to 1."""

    strays: Strays
    clock: Clock
    limit: int = 100
    runtime_max: timedelta = timedelta(milliseconds=200)
    pause: timedelta = timedelta(milliseconds=10)
    pause_jitter: float = 0.5
    chance: Callable[[], float] = random.random

    async def search(self, heartbeat_timeout: timedelta, *, dry: bool) -> int:
        """Looks until the round or the time is over; how many strays it saw."""
        begun, seen, cursor = self.clock.monotonic(), 0, None
        while True:
            looked = await self.strays.look(cursor, self.limit, heartbeat_timeout=heartbeat_timeout, dry=dry)
            seen += looked.seen
            cursor = looked.cursor
            if looked.ended or self.clock.monotonic() - begun >= self.runtime_max.total_seconds():
                return seen
            await asyncio.sleep(self.next_pause().total_seconds())

    def next_pause(self) -> timedelta:
        """Between two looks: `pause`, longer or shorter by up to its jitter, so that a fleet does not beat time."""
        return self.pause * (1 + self.pause_jitter * (2 * self.chance() - 1))
