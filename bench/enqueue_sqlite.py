"""Bulk enqueue on SQLite with durable settings: against a raw insert of the same rows, a batch to a commit.

Two producers enqueue batches in turn, so that one batch is checked while another is written; the raw insert has its
rows ready before the clock starts.
"""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

from bench.measure import Benchmark, Rate, Ratio, Result, seconds, take_turns
from bench.raw_sqlite import insert, open_raw, rows_of
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.ports.jobs import BATCH_MAX, Job

PAYLOAD = b'{"path": "a.png", "size": 12345}'
PRODUCERS = 2
ABOUT = __doc__.splitlines()[0]


def run(quick: bool) -> Result:
    """Compares the two."""
    count = 10_000 if quick else 50_000
    ids = [f"01JD{n:022d}" for n in range(count)]
    contestants = {
        "wrasse enqueue": lambda place: asyncio.run(_enqueue(place, ids)),
        "raw insert": lambda place: _raw(place, ids),
    }
    taken = take_turns(contestants, rounds=3 if quick else 7)
    rates = {name: count / time for name, time in taken.items()}
    ratio = rates["wrasse enqueue"] / rates["raw insert"]
    return Result(
        "enqueue_sqlite",
        ABOUT,
        tuple(Rate(name, rate) for name, rate in rates.items()),
        (Ratio("enqueue to the raw insert", ratio, 0.7),),
    )


async def _enqueue(place: Path, ids: list[str]) -> float:
    store = await Sqlite.open(place / "wrasse.db")
    jobs = [Job(id, payload=PAYLOAD) for id in ids]
    firsts = iter(range(0, len(jobs), BATCH_MAX))

    async def produce() -> None:
        for first in firsts:
            await store.jobs.enqueue(jobs[first : first + BATCH_MAX], request=f"enqueue-{first}")

    clock = SystemClock()
    gc.collect()
    start = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(PRODUCERS):
            group.create_task(produce())
    time = clock.monotonic() - start
    await store.close()
    return time


def _raw(place: Path, ids: list[str]) -> float:
    db = open_raw(place)
    rows = rows_of(ids, PAYLOAD)
    time = seconds(lambda: insert(db, rows))
    db.close()
    return time


BENCHMARK = Benchmark("enqueue_sqlite", ABOUT, run)
