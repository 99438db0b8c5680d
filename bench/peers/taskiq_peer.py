"""taskiq, with taskiq-redis."""

from __future__ import annotations

from typing import Any

from taskiq_redis import ListQueueBroker, RedisStreamBroker

from bench.peers.given import MODE, TUNED, URL, AsyncClient, long_job_async, mark

STREAM = MODE.startswith("stream")
FASTER = {"idle_timeout": 5000, "xread_block": 500, "unacknowledged_lock_timeout": 5.0} if TUNED else {}
broker = RedisStreamBroker(URL, **FASTER) if STREAM else ListQueueBroker(URL)


@broker.task
async def noop() -> None:
    """The no-op job."""
    mark()


@broker.task
async def long() -> None:
    """The job whose worker is killed."""
    await long_job_async()


class Client(AsyncClient):
    """Enqueues jobs."""

    async def open(self) -> None:
        await broker.startup()

    async def one(self) -> None:
        await noop.kiq()

    def enqueue_long(self) -> None:
        """The job whose worker is killed."""
        self.loop.run_until_complete(long.kiq())

    def purge(self, server: Any) -> None:
        """The group is made by the broker's startup, and must be there."""
        server.execute_command("FLUSHALL", "SYNC")
        if STREAM:
            server.xgroup_create("taskiq", "taskiq", "$", mkstream=True)

    def pending(self, server: Any) -> int:
        """How many are not finished."""
        if not STREAM:
            return int(server.llen("taskiq"))
        group = server.xinfo_groups("taskiq")[0]
        return int(group["pending"] + (group.get("lag") or 0))
