"""The limiters under test, each behind the same small face. Time passes at once where the clock is ours, by waiting
where it is the server's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

from servers.valkey import Valkey
from wrasse.backends.memory.connect import Memory
from wrasse.backends.memory.limiter import MemoryLimiter
from wrasse.clock import ManualClock, SystemClock
from wrasse.jobs.rate_limiter import BUDGETS, RecordLimiter
from wrasse.ports.limiter import Limiter

LIMITERS = ("memory", "sqlite", "redis", "records")


class Limits:
    """A limiter as two processes have it."""

    def __init__(self, limiter: Limiter, other: Limiter, clock: ManualClock | SystemClock) -> None:
        self.limiter = limiter
        self.other = other
        self.clock = clock
        self.key = f"limit-{uuid4().hex}"

    async def pass_time(self, duration: timedelta) -> None:
        """Lets the backend's clock move on by this much."""
        if isinstance(self.clock, ManualClock):
            self.clock.advance(duration)
        else:
            await asyncio.sleep(duration.total_seconds())

    def now(self) -> datetime:
        return self.clock.now()


@asynccontextmanager
async def opened(name: str, place: Path, server: Valkey | None) -> AsyncIterator[Limits]:
    """The limiter of this backend, on two connections."""
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        if name == "memory":
            limiter = MemoryLimiter(clock)
            yield Limits(limiter, limiter, clock)
        elif name == "records":
            records = Memory(clock).records(BUDGETS)
            yield Limits(RecordLimiter(records), RecordLimiter(records), clock)
        elif name == "sqlite":
            from wrasse.backends.sqlite.connect import Sqlite

            stores = [await Sqlite.open(place / "wrasse.db", clock) for _ in range(2)]
            for store in stores:
                stack.push_async_callback(store.close)
            yield Limits(stores[0].limiter, stores[1].limiter, clock)
        else:
            from wrasse.backends.redis.connect import Redis
            from wrasse.backends.redis.options import RedisOptions

            assert server is not None
            options = replace(RedisOptions.of(server.url), client="redis-py" if name == "redis-py" else "own")
            servers = [await Redis.open(options) for _ in range(2)]
            for each in servers:
                stack.push_async_callback(each.close)
            yield Limits(servers[0].limiter, servers[1].limiter, SystemClock())
