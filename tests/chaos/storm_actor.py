"""A worker, a producer or an engine in a storm, as a process of its own; with one fault planted if it is told to.

A planted fault is what the laws of the storm are tried on: each takes one precaution away from this process.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from uuid import uuid4

from processes.kill_actor import CLOCK, log, opened, run_engine, run_worker
from wrasse.backends.redis import scripts
from wrasse.backends.redis.jobs.queue import RedisJobs
from wrasse.jobs.producer import Producer, ProducerOptions
from wrasse.ports.jobs import Enqueued, Job, JobGroup, JobQueue

PATIENCE = timedelta(seconds=50)


async def run_producer(url: str, prefix: str, pause: float, most: int) -> None:
    """Puts jobs until it is killed. Every other batch has ids of its own making, which nobody looks up."""
    await put_on((await opened(url)).jobs, prefix, pause, most)


async def put_on(jobs: JobQueue, prefix: str, pause: float, most: int) -> None:
    """Puts jobs into a queue."""
    producer = Producer(jobs, CLOCK, ProducerOptions(patience=PATIENCE))
    for number in range(1_000_000):
        kind = "work_in_thread" if number % 10 == 0 else "work"
        count = random.choice((1, 1, 3, most))
        names: list[str | None] = [f"{prefix}-{number}-{part}" if number % 2 else None for part in range(count)]
        batch = [producer.job(kind, os.urandom(20), id=name) for name in names]
        log("will", *(job.id for job in batch))
        await producer.enqueue_many(batch)
        log("put", *(job.id for job in batch))
        await asyncio.sleep(pause)


def _script_without(name: str, precaution: str, instead: str) -> None:
    parts = scripts._parts

    def careless(file: str) -> list[str]:
        found = parts(file)
        if file != name:
            return found
        assert "".join(found).count(precaution) == 1, "the precaution is not where it was"
        return [part.replace(precaution, instead) for part in found]

    scripts._parts = careless  # type: ignore[assignment]


def finish_without_hold() -> None:
    """A finish is recorded whether or not the worker still has the job."""
    _script_without("settle", "free(take, scores[i], texts[i], run)", "free(take, scores[i], texts[i], run) or ''")


def rescue_without_removal() -> None:
    """A rescue makes the job ready and leaves the entry of the dead worker where it is."""
    _script_without("move", "not alive and redis.call('LREM', KEYS[worker], -1, bytes) == 1", "not alive")


def put_without_request() -> None:
    """A put that is asked again is another put."""
    put = RedisJobs.enqueue

    async def forgetful(
        jobs: RedisJobs, batch: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        return await put(jobs, batch, request=uuid4().hex, groups=groups)

    RedisJobs.enqueue = forgetful  # type: ignore[method-assign]


FAULTS: Mapping[str, Callable[[], None]] = {
    each.__name__: each for each in (finish_without_hold, rescue_without_removal, put_without_request)
}


def main() -> None:
    random.seed(os.environ.get("PYTEST_SEED_OF_WRASSE"))
    role, url, planted, *rest = sys.argv[1:]
    if planted:
        FAULTS[planted]()
    match role:
        case "worker":
            asyncio.run(run_worker(url, timedelta(seconds=float(rest[0])), concurrency=4))
        case "producer":
            asyncio.run(run_producer(url, rest[0], float(rest[1]), int(rest[2])))
        case "engine":
            asyncio.run(run_engine(url, timedelta(seconds=float(rest[0]))))


if __name__ == "__main__":
    main()
