"""A worker with an engine, a producer of groups, or a repeater of slots, as a process made to be killed."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from datetime import timedelta

from processes.kill_actor import CLOCK, KEEP_ALL, engine_on, log
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.periodic import Every, Missed, Periodic
from wrasse.jobs.producer import Producer
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.scheduler import PERIODIC, PeriodicScheduler
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.context import Telemetry, WorkerSettings
from wrasse.jobs.worker.heartbeat import ChildHeartbeat
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.jobs.worker.worker import Worker
from wrasse.ports.backend import Backend
from wrasse.ports.jobs import Job, JobGroup, Rate
from wrasse.runtime.backends import journal_of, open_store

TICK = Periodic("tick", Every(timedelta(seconds=1)), "tick", missed=Missed.ALL)
RATE = Rate("limited", 5, timedelta(seconds=1))
MEMBERS = 6
HOUR = timedelta(hours=1)


def repeater_on(store: Backend) -> PeriodicScheduler:
    return PeriodicScheduler([TICK], Producer(store.jobs, CLOCK), store.records(PERIODIC), CLOCK)


async def member(job: RunningJob) -> dict[str, int]:
    await job.progress(0.5, "half")
    await asyncio.sleep(random.choice((0, 0.01, 0.05)))
    log("end", job.id, job.token)
    return {"token": job.token}


async def then(job: RunningJob) -> str:
    log("then", job.id)
    return job.headers["wrasse-group"]


async def note(job: RunningJob) -> None:
    log("start", job.id)


async def run_worker(url: str, heartbeat_timeout: timedelta) -> None:
    store = await open_store(url, done_max=KEEP_ALL)
    handlers = Handlers()
    for kind, handler in (("member", member), ("then", then), ("tick", note), ("limited", note), ("only", note)):
        handlers.add(kind, handler)
    settings = WorkerSettings(
        queues=("low", "limited"),
        concurrency=4,
        heartbeat_timeout=heartbeat_timeout,
        retry=RetryPolicy(base=timedelta(milliseconds=50), max=timedelta(milliseconds=200)),
        weights={"low": 3, "limited": 1},
        rates=(RATE,),
    )
    tally = Tally()
    worker = Worker(store.jobs, handlers, CLOCK, ChildHeartbeat(url, tally), settings, Telemetry(tally))
    async with asyncio.TaskGroup() as group:
        group.create_task(engine_on(store, heartbeat_timeout, journal_of(store, CLOCK)).run())
        group.create_task(worker.run())


async def run_producer(url: str, prefix: str) -> None:
    store = await open_store(url, done_max=KEEP_ALL)
    producer = Producer(store.jobs, CLOCK)
    for number in range(10_000):
        id = f"{prefix}-{number}"
        members = [Job(f"{id}/{part}", "member", keep=HOUR, group=id, lasting=True) for part in range(MEMBERS)]
        log("will", id)
        await producer.enqueue_group(JobGroup(id, MEMBERS, Job(f"{id}/then", "then", keep=HOUR)), members)
        log("opened", id)
        await producer.enqueue_many([Job(f"limited-{id}", "limited", "limited", "low")])
        await producer.enqueue_many([Job(f"only-{id}", "only", unique="only")])
        await asyncio.sleep(0.1)


async def run_repeater(url: str) -> None:
    await repeater_on(await open_store(url, done_max=KEEP_ALL)).run()


def main() -> None:
    random.seed(os.environ.get("PYTEST_SEED_OF_WRASSE"))
    role, url, *rest = sys.argv[1:]
    match role:
        case "worker":
            asyncio.run(run_worker(url, timedelta(seconds=float(rest[0]))))
        case "producer":
            asyncio.run(run_producer(url, rest[0]))
        case "repeater":
            asyncio.run(run_repeater(url))


if __name__ == "__main__":
    main()
