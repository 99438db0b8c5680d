"""rq."""

from __future__ import annotations

from typing import Any

import redis
import rq

from bench.peers.given import MODE, TUNED, URL, long_job, mark

NOTHING_KEPT = {"result_ttl": 0} if MODE == "lean" else {}


def noop() -> None:
    """The no-op job."""
    mark()


def long() -> None:
    """The job whose worker is killed."""
    long_job()


class Client:
    """Enqueues jobs."""

    def __init__(self) -> None:
        self.queue = rq.Queue("default", connection=redis.Redis.from_url(URL))

    def enqueue(self, count: int) -> None:
        """One after the other."""
        for _ in range(count):
            self.queue.enqueue(noop, **NOTHING_KEPT)

    def enqueue_many(self, count: int, size: int = 100) -> None:
        """By its call for many."""
        for start in range(0, count, size):
            wanted = range(min(size, count - start))
            self.queue.enqueue_many([rq.Queue.prepare_data(noop, **NOTHING_KEPT) for _ in wanted])

    def enqueue_long(self) -> None:
        """The job whose worker is killed."""
        self.queue.enqueue(long, **({"retry": rq.Retry(max=3)} if TUNED else {}))

    def pending(self, server: Any) -> int:
        """How many are not finished."""
        between = "rq:queue:default:intermediate"
        return int(server.llen("rq:queue:default") + server.zcard("rq:wip:default") + server.llen(between))
