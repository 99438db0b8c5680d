"""wrasse, as a program uses it: `wrasse.connect(...).jobs.enqueue` and `wrasse run`."""

from __future__ import annotations

from typing import Any

import wrasse
from bench.peers.given import URL, AsyncClient, long_job_async, mark
from wrasse import NewJob, RunningJob


async def noop(job: RunningJob) -> None:
    """The no-op job, and the one whose worker is killed."""
    if job.kind == "long":
        await long_job_async()
    else:
        mark()


def noop_plain(job: RunningJob) -> None:
    """The no-op job as a plain function, which runs in a thread."""
    mark()


class Client(AsyncClient):
    """Enqueues jobs."""

    async def open(self) -> None:
        self.app = wrasse.connect(URL)

    async def one(self) -> None:
        await self.app.jobs.enqueue()

    def enqueue_many(self, count: int) -> None:
        """By its call for many, which sends a thousand at once."""
        self.loop.run_until_complete(self.app.jobs.enqueue_many([NewJob()] * count))

    def enqueue_long(self) -> None:
        """The job whose worker is killed."""
        self.loop.run_until_complete(self.app.jobs.enqueue("long"))

    def pending(self, server: Any) -> int:
        """How many are not finished."""
        return int(server.llen("jobqueue:low_priority") + server.zcard("jobqueue:held"))
