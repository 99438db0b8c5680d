"""A run of stuck_jobs over tasks, their counts and a page of them: among 1,000,000 task records, against 10,000.

On Redis, where the records are hashes as other programs have them, and on SQLite. A run finds a hundred tasks whose
deadline has passed, decides about each, and requeues them with the events that say so, as the engine does with the
sweep's three methods.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec

from bench.measure import Benchmark, Rate, Ratio, Result
from bench.redis_server import serving
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.backends.sqlite.write_transaction import WriteTransaction
from wrasse.clock import SystemClock, to_micros
from wrasse.engine.sweep import Action
from wrasse.jobs.stream_tasks.fields import TASKS, index_entry_of
from wrasse.jobs.stream_tasks.queue import TaskPorts, TaskQueue, TaskType
from wrasse.jobs.stream_tasks.store import read_task
from wrasse.ports.jobs import JobFilter, JobState
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import IndexEntry, Record
from wrasse.runtime.stream_tasks import EnvelopeCodec
from wrasse.sweeps.stuck_jobs import StuckJobs

ABOUT = __doc__.splitlines()[0]
DUE, AT_ONCE, SHOWN = 100, 1_000, 100
FAR = datetime(2099, 1, 1, tzinfo=UTC)
FIELDS = {
    "state": "running", "task_type": "mail", "worker": "host-1", "retry_count": "0", "max_retries": "3",
    "claim_token": "1", "claim_nonce": "0" * 16, "attempts": "1", "updated_at": "1750000000000", "rank": "1",
}  # fmt: skip
CLOCK = SystemClock()
_ROW = """
    INSERT INTO records (collection, name, version, since, due, writes, value, shelf, turn)
    VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True, slots=True)
class Stock:
    """One backend with so many tasks in it."""

    backend: Redis | Sqlite
    jobs: TaskQueue


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a run of the sweep, and of counts with a page."""

    run: float
    page: float


def run(quick: bool) -> Result:
    """Compares two collections on each backend; their rounds take turns."""
    sizes = (2_000, 20_000) if quick else (10_000, 1_000_000)
    rounds = 10 if quick else 30
    rates: list[Rate] = []
    ratios: list[Ratio] = []
    for name, compare in (("Redis", _on_redis), ("SQLite", _on_sqlite)):
        few, many = compare(sizes, rounds)
        for size, times in zip(sizes, (few, many), strict=True):
            rates.append(Rate(f"{name}: among {size:,}", DUE / times.run, "tasks/s"))
            rates.append(Rate(f"{name}: counts and a page of {SHOWN}, of {size:,}", 1 / times.page, "reads/s"))
        ratios.append(Ratio(f"{name}: run among many to among few", many.run / few.run, 1.5, least=False))
        ratios.append(Ratio(f"{name}: counts and a page of many to few", many.page / few.page, 1.5, least=False))
    return Result("task_records", ABOUT, tuple(rates), tuple(ratios))


def _on_redis(sizes: Sequence[int], rounds: int) -> tuple[Times, Times]:
    with serving() as server:

        async def opened(size: int) -> Redis:
            node = ("127.0.0.1", server.port)
            return await Redis.open(RedisOptions(nodes=(node,), root=f"n{size}", streams_prefix=f"n{size}:o:"))

        return asyncio.run(_compare(opened, sizes, rounds))


def _on_sqlite(sizes: Sequence[int], rounds: int) -> tuple[Times, Times]:
    with tempfile.TemporaryDirectory(prefix="wrasse-bench-") as place:

        async def opened(size: int) -> Sqlite:
            return await Sqlite.open(Path(place) / f"{size}.db", CLOCK)

        return asyncio.run(_compare(opened, sizes, rounds))


async def _compare(
    opened: Callable[[int], Awaitable[Redis | Sqlite]], sizes: Sequence[int], rounds: int
) -> tuple[Times, Times]:
    places = [await _filled(await opened(size), size) for size in sizes]
    times: list[list[Times]] = [[], []]
    for number in range(rounds + 2):
        for place, taken in zip(places, times, strict=True):
            taken.append(await _round(place, number))
    for place in places:
        await place.backend.close()
    few, many = (
        Times(statistics.median(each.run for each in taken[2:]), statistics.median(each.page for each in taken[2:]))
        for taken in times
    )
    return few, many


async def _filled(backend: Redis | Sqlite, size: int) -> Stock:
    index_entry = index_entry_of(
        read_task(Record("mail:task_0", _value(0, FAR), "", FAR)).stored
    )  # all wait for the same moment
    if isinstance(backend, Sqlite):
        await _fill_sqlite(backend, size, index_entry)
    else:
        records = backend.records(TASKS)
        assert records.status_index is not None, "Redis keeps a status index of hashes"
        for begin in range(0, size, AT_ONCE):
            ids = range(begin, min(begin + AT_ONCE, size))
            await asyncio.gather(
                *(records.create(f"mail:task_{n}", _value(n, FAR), due_at=FAR, index_entry=index_entry) for n in ids)
            )
    ports = TaskPorts(backend.records, backend.streams, backend.groups, EnvelopeCodec(CLOCK), CLOCK)
    return Stock(backend, TaskQueue(ports, [TaskType("mail", 3)]))


async def _fill_sqlite(backend: Sqlite, size: int, index_entry: IndexEntry) -> None:
    """Rows as the port writes them, many in one commit."""

    def fill(step: WriteTransaction, ids: range) -> None:
        first = step.draw(len(ids))
        rows = (
            (TASKS.data, b"mail:task_%d" % n, version, to_micros(FAR), f"[[null,{version},false]]", _value(n, FAR),
             index_entry.status, index_entry.position)
            for version, n in enumerate(ids, first)
        )  # fmt: skip
        step.db.executemany(_ROW, rows)

    for begin in range(0, size, 50 * AT_ONCE):
        ids = range(begin, min(begin + 50 * AT_ONCE, size))
        await backend._writer.do(partial(fill, ids=ids))


async def _round(place: Stock, number: int) -> Times:
    """A hundred stopped its heartbeat, each time others; how long it takes to find them and to requeue them."""
    records, ago = place.backend.records(TASKS), CLOCK.now() - timedelta(minutes=1)
    for n in range(number * DUE, (number + 1) * DUE):
        found = await records.get(f"mail:task_{n}")
        assert found is not None, "it was filled"
        await records.put(found.key, _value(n, ago), at=found.version, due_at=ago)
    sweep = StuckJobs(place.jobs, heartbeat_timeout=timedelta(0), retries={"mail": 3})
    start = CLOCK.monotonic()
    page = await sweep.find(None, DUE)
    verdicts = [sweep.decide(suspect, page.at) for suspect in page]
    outcomes = await sweep.apply([verdict for verdict in verdicts if isinstance(verdict, Action)])
    swept = CLOCK.monotonic()
    assert list(outcomes) == [Outcome.DONE] * DUE, "all were due"
    counts = await place.jobs.counts()
    shown = await place.jobs.page(JobState.RUNNING, JobFilter(), None, SHOWN)
    read = CLOCK.monotonic()
    assert (counts.queues[0].ready, len(shown)) == ((number + 1) * DUE, SHOWN), "the counts are right"
    return Times(swept - start, read - swept)


def _value(number: int, until: datetime) -> bytes:
    return msgspec.json.encode({**FIELDS, "task_id": f"task_{number}", "timeout_at": str(to_micros(until) // 1_000)})


BENCHMARK = Benchmark("task_records", ABOUT, run)
