"""dramatiq."""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.given import TUNED, URL, long_job, mark

broker = RedisBroker(url=URL, **({"heartbeat_timeout": 5000, "maintenance_chance": 1_000_000} if TUNED else {}))
dramatiq.set_broker(broker)


@dramatiq.actor
def noop() -> None:
    """The no-op job."""
    mark()


@dramatiq.actor
def long() -> None:
    """The job whose worker is killed."""
    long_job()


class Client:
    """Enqueues jobs."""

    def enqueue(self, count: int) -> None:
        """One after the other."""
        for _ in range(count):
            noop.send()

    def enqueue_long(self) -> None:
        """The job whose worker is killed."""
        long.send()

    def pending(self, server: Any) -> int:
        """How many are not finished."""
        return int(server.hlen("dramatiq:default.msgs"))
