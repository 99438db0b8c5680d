"""arq."""

from __future__ import annotations

from typing import Any

from arq import create_pool
from arq.connections import RedisSettings

from bench.peers.given import MODE, PORT, TUNED, AsyncClient, long_job_async, mark

if MODE == "tuned":
    import uvloop

    uvloop.install()

SETTINGS = RedisSettings(host="127.0.0.1", port=PORT)
QUIET = {"version": 1, "disable_existing_loggers": False, "loggers": {"arq": {"level": "WARNING"}}}


async def noop(ctx: object) -> None:
    """The no-op job."""
    mark()


async def long(ctx: object) -> None:
    """The job whose worker is killed."""
    await long_job_async()


class WorkerSettings:
    """What arq's worker reads."""

    functions = (noop, long)
    redis_settings = SETTINGS
    if MODE == "tuned":
        max_jobs = 500
        poll_delay = 0.01
        keep_result = 0
    if TUNED:
        job_timeout = 35


class Client(AsyncClient):
    """Enqueues jobs."""

    async def open(self) -> None:
        self.pool = await create_pool(SETTINGS)

    async def one(self) -> None:
        await self.pool.enqueue_job("noop")

    def enqueue_long(self) -> None:
        """The job whose worker is killed."""
        self.loop.run_until_complete(self.pool.enqueue_job("long"))

    def pending(self, server: Any) -> int:
        """How many are not finished."""
        return int(server.zcard("arq:queue"))
