"""saq."""

from __future__ import annotations

import asyncio
from typing import Any

from saq import Queue

from bench.peers.given import MODE, TUNED, URL, AsyncClient, long_job_async, mark

if MODE == "tuned":
    import uvloop

    uvloop.install()

queue = Queue.from_url(URL)


async def noop(ctx: object) -> None:
    """The no-op job."""
    mark()


async def long(ctx: Any) -> None:
    """The job whose worker is killed. It sends its own heartbeats: saq does not."""

    async def send_heartbeats() -> None:
        while True:
            await asyncio.sleep(1)
            await ctx["job"].update()

    if not TUNED:
        await long_job_async()
        return
    heartbeats = asyncio.create_task(send_heartbeats())
    try:
        await long_job_async()
    finally:
        heartbeats.cancel()


settings = {"queue": queue, "functions": [noop, long], "concurrency": 50 if MODE == "tuned" else 10}
if TUNED:
    settings["timers"] = {"sweep": 2}


class Client(AsyncClient):
    """Enqueues jobs."""

    async def open(self) -> None:
        await queue.connect()

    async def one(self) -> None:
        await queue.enqueue("noop", **({"ttl": -1} if MODE == "tuned" else {}))

    def enqueue_long(self) -> None:
        """The job whose worker is killed. By default a job may take 10 s, less than this one does."""
        told = {"timeout": 0, "heartbeat": 5, "retries": 4} if TUNED else {"timeout": 60}
        self.loop.run_until_complete(queue.enqueue("long", **told))

    def pending(self, server: Any) -> int:
        """How many are not finished."""
        return int(server.zcard("saq:default:incomplete"))
