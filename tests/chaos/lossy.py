"""A line that carries a command to the server and swallows its answer; and a caller who then asks again.

The command is known by its request id, so that exactly what was meant is carried out and not told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from conformance.stores import Backend, Store
from servers.proxy import Proxy
from servers.valkey import SHARED, newest
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.jobs.queue import RedisJobs
from wrasse.backends.redis.options import RedisOptions
from wrasse.clock import ManualClock
from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import Claimed, Enqueued, Job, JobGroup, Settlement
from wrasse.ports.outcome import Outcome

T = TypeVar("T")


class Swallowing(Proxy):
    """Cuts a connection instead of passing on the answer to a command that holds one of some words."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.words: set[bytes] = set()
        self._doomed: set[object] = set()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        # A connection's two streams to the server share its transport: that is how question and answer find together.
        line = reader._transport if replies else writer.transport  # type: ignore[attr-defined]
        while data := await _read(reader):
            found = [word for word in self.words if word in data] if not replies else []
            if found:
                self.words.difference_update(found)
                self._doomed.add(line)
            if replies and line in self._doomed and not data.startswith(b"-NOSCRIPT"):
                self.replies_dropped += 1
                break
            writer.write(data)
        self._doomed.discard(line)
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(1 << 16)
    except ConnectionError:
        return b""


class AskedAgain(RedisJobs):
    """A job queue of which every answer to a put, a take and a settle is lost at first."""

    line: Swallowing

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        ask = super().enqueue
        return await self._lost_once(request, lambda: ask(jobs, request=request, groups=groups))

    async def claim(self, queues: Sequence[str], limit: int, *, request: str, **more: Any) -> Claimed:
        ask = super().claim
        return await self._lost_once(request, lambda: ask(queues, limit, request=request, **more))

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        ask = super().settle
        return await self._lost_once(request, lambda: ask(settlements, request=request))

    async def _lost_once(self, request: str, ask: Callable[[], Awaitable[T]]) -> T:
        self.line.words.add(request.encode())
        try:
            while True:
                try:
                    return await ask()
                except StoreUnavailable:
                    continue
        finally:
            self.line.words.discard(request.encode())


class LossyStore(Store):
    """A Redis behind such lines, one for each connection."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__("redis", *args, **more)
        self.lines: list[Swallowing] = []

    async def _redis(self) -> Backend:
        line = Swallowing(SHARED.at(newest()).port)
        await line.start()
        self.lines.append(line)
        options = RedisOptions(nodes=(("127.0.0.1", line.port),), root=self._root)
        time = self.clock if isinstance(self.clock, ManualClock) else None
        redis = await Redis.open(options, self.clock, done_max=self._done_max, time=time)
        redis.jobs = AskedAgain(redis.client, self.clock, done_max=self._done_max)
        redis.jobs.line = line
        return redis

    async def close(self, *, keeps: bool = False) -> None:
        await super().close(keeps=keeps)
        for line in self.lines:
            await line.close()
        self.lines.clear()
