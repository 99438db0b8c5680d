"""Twenty thousand of everything: the thousandth page costs what the first one costs.

Work is counted, not timed: lines of Python executed in memory, steps of SQLite's machine, commands that Redis runs.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import apsw
import pytest

from conformance.queue_client import QueueClient
from conformance.stores import REDIS_SERVERS, Store
from wrasse.ports.jobs import BATCH_MAX, Job, JobFilter, JobState
from wrasse.ports.records import Records

MANY = 20_000
PAGE = 10
MARGIN = 8  # a scan of twenty thousand costs hundreds of times as much as a page

Call = Callable[[], Awaitable[object]]


class Machine:
    """Counts the steps of SQLite's machine, over all connections that are opened from now on."""

    def __init__(self) -> None:
        self.steps = 0

    def watch(self, db: apsw.Connection) -> None:
        db.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)

    def _note(self, event: dict[str, Any]) -> None:
        self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    watching = Machine()
    apsw.connection_hooks.append(watching.watch)
    yield watching
    apsw.connection_hooks.remove(watching.watch)


async def cost(store: Store, machine: Machine, call: Call) -> int:
    """What one call costs."""
    if store.name == "memory":
        return await _lines(call)
    if store.name in REDIS_SERVERS:
        return await _commands(store, call)
    before = machine.steps
    await call()
    assert machine.steps > before, "SQLite was asked"
    return machine.steps - before


async def _commands(store: Store, call: Call) -> int:
    async def run() -> int:
        told: bytes = await getattr(store.backend, "inner", store.backend).client.ask("INFO", "commandstats")
        return sum(int(calls) for calls in re.findall(rb"calls=(\d+)", told))

    before = await run()
    await call()
    return await run() - before


async def _lines(call: Call) -> int:
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        await call()
    finally:
        sys.settrace(before)
    return lines


async def cursor_at(page: Callable[[str | None, int], Awaitable[Any]], items: int) -> str:
    """The cursor after so many items, read in large steps."""
    after: str | None = None
    for _ in range(items // 1_000):
        after = (await page(after, 1_000)).cursor
    assert after is not None
    return after


async def test_the_thousandth_page_of_jobs_costs_as_much_as_the_first(store: Store, machine: Machine) -> None:
    client = QueueClient(store.jobs)
    for start in range(0, MANY, BATCH_MAX):
        await client.enqueue(*(Job(f"job-{n}") for n in range(start, start + BATCH_MAX)))
    everything = JobFilter()
    far = await cursor_at(lambda after, limit: client.jobs.page(JobState.READY, everything, after, limit), PAGE * 1000)
    first = await cost(store, machine, lambda: client.jobs.page(JobState.READY, everything, None, PAGE))
    thousandth = await cost(store, machine, lambda: client.jobs.page(JobState.READY, everything, far, PAGE))
    assert thousandth <= MARGIN * first


async def test_taking_and_finding_what_is_stuck_costs_the_same_among_many(store: Store, machine: Machine) -> None:
    client = QueueClient(store.jobs)

    async def costs() -> list[int]:
        """Of a take, of finding what is overdue, and of counting."""
        taking = await cost(store, machine, lambda: client.claim(limit=10, heartbeat_timeout=timedelta(milliseconds=1)))
        await store.pass_time(timedelta(milliseconds=2))
        finding = await cost(store, machine, lambda: client.jobs.overdue(None, 10))
        return [taking, finding, await cost(store, machine, client.jobs.counts)]

    await client.enqueue(*(Job(f"few-{n}") for n in range(BATCH_MAX)))
    few = await costs()
    for start in range(0, MANY, BATCH_MAX):
        await client.enqueue(*(Job(f"job-{n}") for n in range(start, start + BATCH_MAX)))
    for _ in range(0, MANY // 4, BATCH_MAX):
        await client.claim(limit=BATCH_MAX, heartbeat_timeout=timedelta(hours=1))
    later = await costs()
    assert [more <= MARGIN * less for more, less in zip(later, few, strict=True)] == [True] * 3, (few, later)


async def fill(records: Records, store: Store) -> None:
    """Twenty thousand records, half of them due."""
    now = store.clock.now()
    for start in range(0, MANY, 2000):
        await asyncio.gather(
            *(
                records.create(f"{n:06}", b"value", due_at=now + timedelta(seconds=1 if n % 2 else -1))
                for n in range(start, start + 2000)
            )
        )


async def test_the_thousandth_page_of_records_costs_as_much_as_the_first(store: Store, machine: Machine) -> None:
    records = store.records()
    await fill(records, store)
    far = await cursor_at(lambda after, limit: records.page("", after, limit), PAGE * 1000)
    late = await cursor_at(lambda after, limit: records.due(None, after, limit), PAGE * 900)
    first = await cost(store, machine, lambda: records.page("", None, PAGE))
    listing = await cost(store, machine, lambda: records.page("", far, PAGE))
    finding = await cost(store, machine, lambda: records.due(None, late, PAGE))
    prefixed = await cost(store, machine, lambda: records.page("0199", None, PAGE))
    assert max(listing, finding, prefixed) <= MARGIN * first
