"""streaq."""

from __future__ import annotations

from typing import Any

from streaq import Worker

from bench.peers.given import MODE, TUNED, URL, AsyncClient, long_job_async, mark

OPTIONS: dict[str, Any] = {"redis_url": URL}
if MODE == "tuned":
    OPTIONS |= {"concurrency": 32, "prefetch": 32, "anyio_kwargs": {"use_uvloop": True}}
if TUNED:
    OPTIONS |= {"idle_timeout": 5}
worker = Worker(**OPTIONS)


@worker.task(silent=True, ttl=0 if MODE == "tuned" else 300)
async def noop() -> None:
    """The no-op job."""
    mark()


@worker.task(silent=True)
async def long() -> None:
    """The job whose worker is killed."""
    await long_job_async()


class Client(AsyncClient):
    """Enqueues jobs."""

    async def open(self) -> None:
        await worker.__aenter__()

    async def one(self) -> None:
        await noop.enqueue()

    def enqueue_many(self, count: int, size: int = 100) -> None:
        """By its call for many."""

        async def go() -> None:
            for start in range(0, count, size):
                await worker.enqueue_many([noop.enqueue() for _ in range(min(size, count - start))])

        self.loop.run_until_complete(go())

    def enqueue_long(self) -> None:
        """The job whose worker is killed."""

        async def go() -> None:
            await long.enqueue()

        self.loop.run_until_complete(go())

    def pending(self, server: Any) -> int:
        """How many are not finished."""
        return sum(server.xlen(key) for key in server.scan_iter("streaq:*:queues:*", _type="stream"))
