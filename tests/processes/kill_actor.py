"""A worker, a producer or an engine as a process of its own, made to be killed at any moment.

Everything an actor does is written to a side log first, one line per fact in one write, so that what is in the log
happened even if the process died in the next instant.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TypeVar

from wrasse.clock import SystemClock
from wrasse.engine.guard import MassDeath, backend_guards
from wrasse.engine.loop import ENGINE_LEASES, Engine, Scheduled
from wrasse.engine.run import RunContext
from wrasse.engine.turn import ENGINE_STATE, SweepBackend
from wrasse.errors import StoreUnavailable
from wrasse.ids import Ids
from wrasse.jobs.command_handler import Command
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.producer import Producer
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.context import Telemetry, WorkerSettings
from wrasse.jobs.worker.heartbeat import ChildHeartbeat
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.jobs.worker.worker import Worker
from wrasse.leases.manager import LeaseManager
from wrasse.ports.backend import Backend
from wrasse.ports.jobs import JobQueue
from wrasse.ports.journal import Journal
from wrasse.runtime.backends import journal_of, open_store
from wrasse.sweeps.stuck_jobs import StuckJobs

CLOCK = SystemClock()
KEEP_ALL = 1_000_000
HERE = Path.cwd()


@cache
def _opened() -> int:
    # With the first line and not before: whoever only imports this file leaves none behind.
    return os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def log(what: str, *facts: object) -> None:
    os.write(_opened(), (json.dumps([what, os.getpid(), *facts]) + "\n").encode())


async def work(job: RunningJob) -> dict[str, int]:
    log("start", job.id, job.token)
    await asyncio.sleep(random.choice((0, 0.01, 0.05, 0.1)))
    log("end", job.id, job.token)
    return {"token": job.token}


def work_in_thread(job: RunningJob) -> dict[str, int]:
    log("start", job.id, job.token)
    log("end", job.id, job.token)
    return {"token": job.token}


async def poison(job: RunningJob) -> None:
    log("start", job.id, job.token)
    os.kill(os.getpid(), signal.SIGKILL)


async def freeze(job: RunningJob) -> None:
    """Sleeps without ever letting go of the interpreter: no other thread of this process runs meanwhile."""
    log("start", job.id, job.token)
    ctypes.PyDLL(None).usleep(int(float(job.payload) * 1e6))


async def wait(job: RunningJob) -> None:
    """Waits for a file of the job's name, and says so if it is told to stop."""
    log("start", job.id, job.token)
    try:
        while True:
            await asyncio.sleep(0.02)
            if (HERE / job.id).exists():
                return
    except asyncio.CancelledError:
        log("told", job.id, job.gone, await job.still_mine())
        raise


async def block(job: RunningJob) -> None:
    """Waits for a file of the job's name with the event loop blocked, then asks whether the job is still its own. The
    answer may come after the word that the job is gone, which ends the handler."""
    log("start", job.id, job.token)
    while not (HERE / job.id).exists():
        ctypes.PyDLL(None).usleep(10_000)
    asking = asyncio.ensure_future(job.still_mine())
    try:
        await asyncio.shield(asking)
    finally:
        log("asked", job.id, await asking)


S = TypeVar("S")


async def waited_for(opening: Callable[[], Awaitable[S]]) -> S:
    """Opens something, as `wrasse run` does: waits if nobody answers yet."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await opening()
            except StoreUnavailable:
                await asyncio.sleep(0.1)


async def opened(url: str) -> Backend:
    """The store."""
    return await waited_for(lambda: open_store(url, done_max=KEEP_ALL))


async def run_worker(url: str, heartbeat_timeout: timedelta, concurrency: int) -> None:
    store = await opened(url)
    await work_off(store.jobs, url, heartbeat_timeout, concurrency)
    await store.close()


async def work_off(jobs: JobQueue, url: str, heartbeat_timeout: timedelta, concurrency: int) -> None:
    """A worker on a queue that its child opens by the URL, until it is told to stop."""
    handlers = Handlers()
    for handler in (work, work_in_thread, poison, freeze, wait, block):
        handlers.add(handler.__name__, handler)
    handlers.add("command", Command("sh -c 'echo $$ >> pids; sleep 600 & echo $! >> pids; wait'"))
    settings = WorkerSettings(
        queues=("low",),
        concurrency=concurrency,
        heartbeat_timeout=heartbeat_timeout,
        retry=RetryPolicy(base=timedelta(milliseconds=50), max=timedelta(milliseconds=200)),
    )
    tally = Tally()
    worker = Worker(jobs, handlers, CLOCK, ChildHeartbeat(url, tally), settings, Telemetry(tally))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop, timedelta(seconds=20))
    log("worker", worker.info.id)
    await worker.run()
    log("stopped", tally.lost.total(), tally.completed.total())


async def run_producer(url: str, prefix: str) -> None:
    store = await opened(url)
    producer = Producer(store.jobs, CLOCK)
    for number in range(10_000):
        kind = "work_in_thread" if number % 10 == 0 else "work"
        ids = [f"{prefix}-{number}-{part}" for part in range(random.choice((1, 1, 3, 12)))]
        jobs = [producer.job(kind, os.urandom(20), id=id) for id in ids]
        log("will", *ids)
        await producer.enqueue_many(jobs)
        log("put", *ids)
        await asyncio.sleep(0.05)


def engine_on(store: Backend, heartbeat_timeout: timedelta, journal: Journal) -> Engine:
    guards = (*backend_guards(store, CLOCK, heartbeat_timeout), MassDeath(store.jobs, heartbeat_timeout))
    sweep = Scheduled(
        StuckJobs(store.jobs, heartbeat_timeout=heartbeat_timeout),
        interval=timedelta(milliseconds=300),
        jitter=0.1,
        guards=guards,
    )
    return Engine(
        [sweep],
        home=SweepBackend(LeaseManager(store.records(ENGINE_LEASES), CLOCK), store.records(ENGINE_STATE)),
        context=RunContext(journal, CLOCK, Ids(CLOCK)),
        owner=f"engine-{os.getpid()}",
        lease_ttl=timedelta(seconds=1),
    )


async def run_engine(url: str, heartbeat_timeout: timedelta) -> None:
    store = await opened(url)
    log("engine")
    await engine_on(store, heartbeat_timeout, journal_of(store, CLOCK)).run()


def main() -> None:
    random.seed(os.environ.get("PYTEST_SEED_OF_WRASSE"))
    role, url, *rest = sys.argv[1:]
    match role:
        case "worker":
            asyncio.run(run_worker(url, timedelta(seconds=float(rest[0])), int(rest[1])))
        case "producer":
            asyncio.run(run_producer(url, rest[0]))
        case "engine":
            asyncio.run(run_engine(url, timedelta(seconds=float(rest[0]))))


if __name__ == "__main__":
    main()
