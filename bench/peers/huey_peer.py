"""huey."""

from __future__ import annotations

from typing import Any

from huey import RedisHuey

from bench.peers.given import URL, long_job, mark

huey = RedisHuey("bench", url=URL, results=False)


@huey.task()
def noop() -> None:
    """The no-op job."""
    mark()


@huey.task(retries=3)
def long() -> None:
    """The job whose worker is killed."""
    long_job()


class Client:
    """Enqueues jobs."""

    def enqueue(self, count: int) -> None:
        """One after the other."""
        for _ in range(count):
            noop()

    def enqueue_long(self) -> None:
        """The job whose worker is killed."""
        long()

    def pending(self, server: Any) -> int:
        """How many are not finished."""
        return int(server.llen("huey.redis.bench"))
