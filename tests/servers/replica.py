"""A server and its replica, behind a way that leads to whichever of them is the first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import redis

from servers.process import START_MAX_S
from servers.proxy import Proxy, proxy
from servers.valkey import Valkey, valkey


@dataclass(frozen=True)
class Pair:
    """Clients connect by `way`, the replica by `line`."""

    first: Valkey
    second: Valkey
    way: Proxy
    line: Proxy

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.way.port}/0"

    async def in_step(self) -> None:
        """Waits until the replica has all that was written."""
        with redis.Redis(port=self.first.port) as first, redis.Redis(port=self.second.port) as second:
            async with asyncio.timeout(START_MAX_S):
                wanted = (await asyncio.to_thread(first.info, "replication"))["master_repl_offset"]
                while True:
                    here = await asyncio.to_thread(second.info, "replication")
                    if here["master_link_status"] == "up" and here["slave_repl_offset"] >= wanted:
                        return
                    await asyncio.sleep(0.02)

    def part(self) -> None:
        """From now on the replica gets nothing."""
        self.line.refuse = True
        self.line.cut()

    async def fail_over(self) -> None:
        """The first server dies, and the replica takes its place."""
        self.first.kill()
        with redis.Redis(port=self.second.port) as second:
            await asyncio.to_thread(second.replicaof, "NO", "ONE")
        self.way.target = self.second.port
        self.way.cut()


@contextlib.asynccontextmanager
async def replicated() -> AsyncIterator[Pair]:
    """A pair that is in step."""
    with valkey("--repl-diskless-sync-delay", 0) as first:
        async with proxy(first.port) as way, proxy(first.port) as line:
            starting = contextlib.ExitStack()
            with starting:
                options = ("--replicaof", f"127.0.0.1 {line.port}")
                second = await asyncio.to_thread(starting.enter_context, valkey(*options))
                pair = Pair(first, second, way, line)
                await pair.in_step()
                yield pair
