"""celery."""

from __future__ import annotations

from typing import Any

from celery import Celery

from bench.peers.given import MODE, TUNED, URL, long_job, mark

LATE = MODE.endswith("late")

app = Celery("bench", broker=URL)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=LATE,
    task_reject_on_worker_lost=LATE,
    worker_prefetch_multiplier=4 if MODE == "prefork" else 64,
    worker_disable_rate_limits=True,
    broker_connection_retry_on_startup=True,
)
if TUNED:
    app.conf.broker_transport_options = {
        "visibility_timeout": 10,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }


@app.task(name="noop")
def noop() -> None:
    """The no-op job."""
    mark()


@app.task(name="long")
def long() -> None:
    """The job whose worker is killed."""
    long_job()


class Client:
    """Enqueues jobs."""

    def enqueue(self, count: int) -> None:
        """One after the other."""
        for _ in range(count):
            noop.delay()

    def enqueue_long(self) -> None:
        """The job whose worker is killed."""
        long.delay()

    def purge(self, server: Any) -> None:
        """Leaves the keys that bind queues."""
        server.delete("celery", "unacked", "unacked_index")

    def pending(self, server: Any) -> int:
        """How many are not finished."""
        return int(server.llen("celery") + server.hlen("unacked"))
