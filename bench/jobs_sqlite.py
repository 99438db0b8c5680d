"""One worker process and no-op jobs on SQLite with durable settings: against huey, and against the raw loop.

The jobs are there before the clock starts. It stops when the last one is durably done: settled for us, gone from the
queue for huey, which keeps no record of a job that is done.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from huey import SqliteHuey  # type: ignore[import-untyped]

from bench.measure import Benchmark, Rate, Ratio, Result, seconds, take_turns
from bench.raw_sqlite import RawLoop, insert, note_ready, open_raw, rows_of
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.jobs.beats import ChildBeats
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.running import RunningJob
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker import Worker, WorkerSettings
from wrasse.ports.jobs import BATCH_MAX, Finish, Job

PAYLOAD = b'{"path": "a.png", "size": 12345}'
ABOUT = __doc__.splitlines()[0]


def run(quick: bool) -> Result:
    """Compares the rates of four loops."""
    count = 5_000 if quick else 20_000
    ids = [f"01JD{n:022d}" for n in range(count)]
    taken = take_turns(
        {
            "wrasse worker": lambda place: asyncio.run(_worker(place, ids)),
            "wrasse port": lambda place: asyncio.run(_port(place, ids)),
            "raw loop": lambda place: _raw(place, ids),
            "huey durable": lambda place: _huey(place, count, fsync=True),
            "huey default": lambda place: _huey(place, count, fsync=None),
        },
        rounds=2 if quick else 5,
    )
    rates = {name: count / time for name, time in taken.items()}
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
        await store.jobs.put(jobs, request=f"put-{start}")
    return store


async def _worker(place: Path, ids: list[str]) -> float:
    """The public worker, beats from its child process included."""
    store = await _filled(place, ids)
    clock, handlers, tally = SystemClock(), Handlers(), Tally()
    first: list[float] = []

    async def handle(job: RunningJob) -> None:
        if not first:
            first.append(clock.monotonic())

    handlers.add("", handle)
    beats = ChildBeats(f"sqlite:///{place / 'wrasse.db'}", tally)
    settings = WorkerSettings(queues=("low",), concurrency=16)
    worker = Worker(store.jobs, handlers, clock, beats, settings, tally)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        while tally.completed.total() < len(ids):  # noqa: ASYNC110  # the tally rings no bell
            await asyncio.sleep(0.002)
        taken = clock.monotonic() - first[0]
        worker.stop(timedelta(seconds=1))
    await store.close()
    return taken


async def _port(place: Path, ids: list[str]) -> float:
    """Take and settle on the port itself, one batch after the other."""
    store = await _filled(place, ids)
    clock = SystemClock()
    start = clock.monotonic()
    silence = timedelta(seconds=30)
    done = 0
    while done < len(ids):
        request = str(done)
        taken = await store.jobs.take(["low"], BATCH_MAX, worker="w", silence=silence, request=request)
        await store.jobs.settle([Finish(job.hold) for job in taken.jobs], request=request)
        done += len(taken.jobs)
    time = clock.monotonic() - start
    await store.close()
    return time


def _raw(place: Path, ids: list[str]) -> float:
    db = open_raw(place)
    insert(db, rows_of(ids, PAYLOAD))
    note_ready(db, len(ids))
    loop = RawLoop(db)
    time = seconds(loop.run)
    assert loop.ran == len(ids), "every job ran"
    db.close()
    return time


def _huey(place: Path, count: int, *, fsync: bool | None) -> float:
    """Huey's own storage and execution in one loop, without the cost of its consumer's threads."""
    huey = SqliteHuey("bench", filename=str(place / "huey.db"), fsync=fsync)

    @huey.task()  # type: ignore[untyped-decorator]
    def handle(payload: bytes) -> None:
        return None

    for _ in range(count):
        handle(PAYLOAD)

    def consume() -> None:
        while (task := huey.dequeue()) is not None:
            huey.execute(task)

    time = seconds(consume)
    huey.storage.close()
    return time


BENCHMARK = Benchmark("jobs_sqlite", ABOUT, run)
