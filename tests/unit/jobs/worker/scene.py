"""A worker at work on the memory backend, for tests: handlers in, jobs in, wait until it is so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from wrasse.backends.memory.connect import Memory
from wrasse.clock import SystemClock
from wrasse.jobs.handlers import Function, Handlers
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.worker.context import WorkerSettings
from wrasse.jobs.worker.heartbeat import LoopHeartbeat
from wrasse.jobs.worker.worker import Worker
from wrasse.ports.jobs import Job, JobQueue, JobRecord, JobState

CLOCK = SystemClock()
SOON = RetryPolicy(failures_max=3, base=timedelta(milliseconds=1), max=timedelta(milliseconds=5))
QUICK = WorkerSettings(
    queues=("high", "low"),
    concurrency=4,
    heartbeat_timeout=timedelta(seconds=3),
    retry=SOON,
    wait=timedelta(milliseconds=200),
)


def handlers(**by_kind: Function) -> Handlers:
    made = Handlers()
    for kind, function in by_kind.items():
        made.add(kind, function)
    return made


@asynccontextmanager
async def working(jobs: JobQueue, by_kind: Handlers, settings: WorkerSettings = QUICK) -> AsyncIterator[Worker]:
    """A worker that runs for as long as the block does."""
    worker = Worker(jobs, by_kind, CLOCK, LoopHeartbeat(jobs, CLOCK), settings)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop(timedelta(0))


async def eventually(so: Callable[[], bool | Awaitable[bool]], within: float = 30.0) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(within):
        while True:
            answer = so()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)


async def enqueue(jobs: JobQueue, *new: Job) -> None:
    for start in range(0, len(new), 1_000):
        await jobs.enqueue(new[start : start + 1_000], request=f"put {new[start].id}")


async def record(jobs: JobQueue, id: str) -> JobRecord:
    found = await jobs.get(id)
    assert found is not None
    return found


async def until(jobs: JobQueue, id: str, *states: JobState) -> JobRecord:
    """Waits until a job is in one of the places."""

    async def there() -> bool:
        return (await record(jobs, id)).info.state in states

    await eventually(there)
    return await record(jobs, id)


def memory() -> Memory:
    return Memory(CLOCK)


def numbered(count: int, kind: str = "") -> Sequence[Job]:
    return [Job(f"job {number}", kind=kind) for number in range(count)]
