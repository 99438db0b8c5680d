"""The search for strays before each run of `stuck_jobs`: a few scans, with pauses of random length, until the round or
its time is over. The next search, by any process, continues where this one stopped."""

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
    """One search and its bounds. `chance` returns random numbers from 0 to 1."""

    strays: Strays
    clock: Clock
    limit: int = 100
    runtime_max: timedelta = timedelta(milliseconds=200)
    pause: timedelta = timedelta(milliseconds=10)
    pause_jitter: float = 0.5
    chance: Callable[[], float] = random.random

    async def search(self, heartbeat_timeout: timedelta, *, dry: bool) -> int:
        """Scans until the round or the time is over; returns how many strays it found."""
        begun, seen, cursor = self.clock.monotonic(), 0, None
        while True:
            found = await self.strays.look(cursor, self.limit, heartbeat_timeout=heartbeat_timeout, dry=dry)
            seen += found.seen
            cursor = found.cursor
            if found.ended or self.clock.monotonic() - begun >= self.runtime_max.total_seconds():
                return seen
            await asyncio.sleep(self.next_pause().total_seconds())

    def next_pause(self) -> timedelta:
        """The pause between two scans: `pause` plus or minus its jitter, so that processes do not scan in step."""
        return self.pause * (1 + self.pause_jitter * (2 * self.chance() - 1))
