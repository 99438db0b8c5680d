"""One worker process and no-op jobs on SQLite with durable settings: against huey, and against the raw loop.

The jobs are there before the clock starts. It starts when the first tenth is done, since a worker begins with small
takes, and stops when the last one is durably done: settled for us, gone from the queue for huey, which keeps no record
of a job that is done.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from datetime import timedelta
from pathlib import Path

from huey import SqliteHuey

from bench.measure import Benchmark, Rate, Ratio, Result, seconds, take_turns
from bench.raw_sqlite import RawLoop, insert, note_ready, open_raw, rows_of
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.context import Telemetry, WorkerSettings
from wrasse.jobs.worker.heartbeat import ChildHeartbeat
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.jobs.worker.worker import Worker
from wrasse.ports.jobs import BATCH_MAX, Complete, Job
from wrasse.runtime.signals import set_switch_interval

PAYLOAD = b'{"path": "a.png", "size": 12345}'
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
ABOUT = __doc__.splitlines()[0]


def run(quick: bool) -> Result:
    """Compares the rates of the loops."""
    count = 10_000 if quick else 20_000
    warm = count // 10
    ids = [f"01JD{n:022d}" for n in range(warm + count)]
    taken = take_turns(
        {
            "wrasse worker": lambda place: asyncio.run(_worker(place, ids, warm)),
            "wrasse port": lambda place: asyncio.run(_port(place, ids, warm)),
            "raw loop": lambda place: _raw(place, ids, warm),
            "huey durable": lambda place: _huey(place, ids, warm, fsync=True),
            "huey default": lambda place: _huey(place, ids, warm, fsync=None),
        },
        rounds=2 if quick else 5,
    )
    rates = {name: 1 / time for name, time in taken.items()}
    ours = rates["wrasse worker"]
    return Result(
        "jobs_sqlite",
        ABOUT,
        tuple(Rate(name, rate) for name, rate in rates.items()),
        (
            Ratio("worker to huey durable", ours / rates["huey durable"], 3.0),
            Ratio("worker to huey default", ours / rates["huey default"], 3.0),
            Ratio("worker to the raw loop", ours / rates["raw loop"], 0.5),
            Ratio("port to the raw loop", rates["wrasse port"] / rates["raw loop"], 0.5),
        ),
    )


async def _filled(place: Path, ids: list[str]) -> Sqlite:
    store = await Sqlite.open(place / "wrasse.db")
    for start in range(0, len(ids), BATCH_MAX):
        jobs = [Job(id, payload=PAYLOAD) for id in ids[start : start + BATCH_MAX]]
        await store.jobs.enqueue(jobs, request=f"enqueue-{start}")
    gc.collect()
    return store


async def _worker(place: Path, ids: list[str], warm: int) -> float:
    """The public worker as `wrasse run` runs it, sends heartbeats from its child process included. Gives seconds per
    job, as all of these do."""
    store = await _filled(place, ids)
    usual = sys.getswitchinterval()
    set_switch_interval()
    clock, handlers, tally = SystemClock(), Handlers(), Tally()

    async def handle(job: RunningJob) -> None:
        return None

    async def until(done: int) -> tuple[int, float]:
        while tally.completed.total() < done:  # noqa: ASYNC110  # the tally rings no bell
            await asyncio.sleep(0.001)
        return tally.completed.total(), clock.monotonic()

    handlers.add("", handle)
    heartbeats = ChildHeartbeat(f"sqlite:///{place / 'wrasse.db'}", tally)
    worker = Worker(store.jobs, handlers, clock, heartbeats, WorkerSettings(queues=("low",)), Telemetry(tally))
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        before, start = await until(warm)
        after, end = await until(len(ids))
        worker.stop(timedelta(seconds=1))
    await store.close()
    sys.setswitchinterval(usual)
    return (end - start) / (after - before)


async def _port(place: Path, ids: list[str], warm: int) -> float:
    """Claims and settles on the port itself, one batch after the other."""
    store = await _filled(place, ids)
    clock = SystemClock()
    done = 0

    async def until(enough: int) -> tuple[int, float]:
        nonlocal done
        while done < enough:
            claimed = await store.jobs.claim(
                ["low"], BATCH_MAX, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=str(done)
            )
            await store.jobs.settle([Complete(job.claim) for job in claimed.jobs], request=str(done))
            done += len(claimed.jobs)
        return done, clock.monotonic()

    before, start = await until(warm)
    after, end = await until(len(ids))
    await store.close()
    return (end - start) / (after - before)


def _raw(place: Path, ids: list[str], warm: int) -> float:
    db = open_raw(place)
    insert(db, rows_of(ids, PAYLOAD))
    note_ready(db, len(ids))
    loop = RawLoop(db)
    loop.run(warm)
    before = loop.ran
    time = seconds(lambda: loop.run(len(ids)))
    assert loop.ran == len(ids), "every job ran"
    db.close()
    return time / (len(ids) - before)


def _huey(place: Path, ids: list[str], warm: int, *, fsync: bool | None) -> float:
    """Huey's own storage and execution in one loop, without the cost of its consumer's threads."""
    huey = SqliteHuey("bench", filename=str(place / "huey.db"), fsync=fsync)

    @huey.task()
    def handle(payload: bytes) -> None:
        return None

    for _ in ids:
        handle(PAYLOAD)

    def consume(count: int) -> None:
        for _ in range(count):
            huey.execute(huey.dequeue())

    consume(warm)
    time = seconds(lambda: consume(len(ids) - warm))
    assert huey.pending_count() == 0, "every job ran"
    huey.storage.close()
    return time / (len(ids) - warm)


BENCHMARK = Benchmark("jobs_sqlite", ABOUT, run)
