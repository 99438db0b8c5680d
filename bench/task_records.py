"""What stuck_jobs asks of task records on Redis: 100 due among 1,000,000, put back with an event, against 10,000.

The records are hashes as other programs have them. A round reads the due index, and puts each of the hundred back as
pending together with the event that says so, under the version that was read.
"""

from __future__ import annotations

import asyncio
import statistics
from datetime import UTC, datetime, timedelta

import msgspec

from bench.measure import Benchmark, Rate, Ratio, Result
from bench.redis_server import serving
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.flat_records import RedisFlatRecords
from wrasse.backends.redis.options import RedisOptions
from wrasse.clock import SystemClock
from wrasse.ports.records import Collection, Record
from wrasse.ports.streams import Draft

ABOUT = __doc__.splitlines()[0]
DUE, AT_ONCE = 100, 500
FAR = datetime(2099, 1, 1, tzinfo=UTC)
FIELDS = {"state": "running", "task_type": "mail", "worker": "host-1", "retry_count": "0"}
TASKS = Collection("gbe:state:tasks", "gbe:state:tasks:due", "gbe:state:tasks:buckets", timedelta(minutes=1), flat=True)
EVENT = Draft("gbe.tasks.mail.queue", b"x" * 200)


def run(quick: bool) -> Result:
    """Compares the two collections; their rounds take turns."""
    small, large = (2_000, 20_000) if quick else (10_000, 1_000_000)
    with serving() as server:
        few, many = asyncio.run(_compare(server.port, small, large, rounds=10 if quick else 30))
    return Result(
        "task_records",
        ABOUT,
        (Rate(f"among {small:,}", DUE / few, "tasks/s"), Rate(f"among {large:,}", DUE / many, "tasks/s")),
        (Ratio("time among many to time among few", many / few, 1.5, least=False),),
    )


async def _compare(port: int, small: int, large: int, rounds: int) -> tuple[float, float]:
    stores = []
    for name, size in (("small", small), ("large", large)):
        options = RedisOptions(nodes=(("127.0.0.1", port),), root=name, streams_prefix=f"{name}:o:")
        store = await Redis.open(options)
        stores.append(store)
        await _fill(_tasks(store), size)
    times: list[list[float]] = [[], []]
    for number in range(rounds + 2):
        for store, taken in zip(stores, times, strict=True):
            taken.append(await _round(_tasks(store), number))
    for store in stores:
        await store.close()
    few, many = (statistics.median(taken[2:]) for taken in times)
    return few, many


def _tasks(store: Redis) -> RedisFlatRecords:
    records = store.records(TASKS)
    assert isinstance(records, RedisFlatRecords), "the collection is flat"
    return records


async def _fill(records: RedisFlatRecords, size: int) -> None:
    for begin in range(0, size, AT_ONCE):
        ids = range(begin, min(begin + AT_ONCE, size))
        await asyncio.gather(*(records.create(f"mail:{n}", _value(n), due_at=FAR) for n in ids))


async def _round(records: RedisFlatRecords, number: int) -> float:
    """A hundred fell due; how long it takes to find them and to put them back."""
    clock, ago = SystemClock(), SystemClock().now() - timedelta(minutes=1)
    for n in range(DUE):
        key = f"mail:{number * DUE + n}"
        found = await records.get(key)
        assert found is not None, "it was filled"
        await records.put(key, found.value, at=found.version, due_at=ago)
    start = clock.monotonic()
    page = await records.due(None, None, DUE)
    outcomes = await asyncio.gather(*(_reset(records, record) for record in page))
    taken = clock.monotonic() - start
    assert outcomes == [True] * DUE, "all were due"
    return taken


async def _reset(records: RedisFlatRecords, record: Record) -> bool:
    fields = msgspec.json.decode(record.value, type=dict[str, str])
    reset = msgspec.json.encode({**fields, "state": "pending", "retry_count": "1"})
    return bool(await records.put(record.key, reset, at=record.version, due_at=FAR, emit=[EVENT]))


def _value(number: int) -> bytes:
    return msgspec.json.encode({**FIELDS, "task_id": f"task_{number}"})


BENCHMARK = Benchmark("task_records", ABOUT, run)
