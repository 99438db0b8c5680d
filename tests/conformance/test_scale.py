"""Two hundred thousand of everything: the thousandth page costs what the first one costs.

Work is counted, not timed, where the backend runs in our own interpreter: lines of Python executed. Elsewhere the
shortest of many calls are compared, which other load on the machine hardly touches, with a margin that only a scan can
exceed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest

from conformance.desk import Desk
from conformance.stores import Store
from wrasse.ports.jobs import BATCH_MAX, Job, JobFilter, Place
from wrasse.ports.records import Records

MANY = 200_000
PAGE = 100
MARGIN = 8  # a scan of two hundred thousand costs hundreds of times as much as a page
SHORTEST = 0.0005  # seconds; below that it is the machine that is measured

Call = Callable[[], Awaitable[object]]


async def cost(store: Store, call: Call) -> float:
    """What one call costs: lines executed in memory, else seconds."""
    if store.name == "memory":
        return float(await _lines(call))
    return max(min([await _seconds(call) for _ in range(15)]), SHORTEST)


async def _seconds(call: Call) -> float:
    begun = time.perf_counter()
    await call()
    return time.perf_counter() - begun


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
    for _ in range(items // 10_000):
        after = (await page(after, 10_000)).cursor
    assert after is not None
    return after


async def test_the_thousandth_page_of_jobs_costs_as_much_as_the_first(store: Store) -> None:
    desk = Desk(store.jobs)
    for start in range(0, MANY, BATCH_MAX):
        await desk.put(*(Job(f"job-{n}") for n in range(start, start + BATCH_MAX)))
    everything = JobFilter()
    far = await cursor_at(lambda after, limit: desk.jobs.page(Place.READY, everything, after, limit), PAGE * 1000)
    first = await cost(store, lambda: desk.jobs.page(Place.READY, everything, None, PAGE))
    thousandth = await cost(store, lambda: desk.jobs.page(Place.READY, everything, far, PAGE))
    assert thousandth <= MARGIN * first


async def test_taking_and_finding_what_is_stuck_costs_the_same_among_many(store: Store) -> None:
    desk = Desk(store.jobs)

    async def costs() -> list[float]:
        """Of a take, of finding what is overdue, and of counting."""
        taking = await cost(store, lambda: desk.take(limit=10, silence=timedelta(milliseconds=1)))
        await store.pass_time(timedelta(milliseconds=2))
        finding = await cost(store, lambda: desk.jobs.overdue(None, 10))
        return [taking, finding, await cost(store, desk.jobs.counts)]

    await desk.put(*(Job(f"few-{n}") for n in range(BATCH_MAX)))
    few = await costs()
    for start in range(0, MANY, BATCH_MAX):
        await desk.put(*(Job(f"job-{n}") for n in range(start, start + BATCH_MAX)))
    for _ in range(0, MANY // 4, BATCH_MAX):
        await desk.take(limit=BATCH_MAX, silence=timedelta(hours=1))
    many = await costs()
    assert [more <= MARGIN * less for more, less in zip(many, few, strict=True)] == [True] * 3, (few, many)


async def fill(records: Records, store: Store) -> None:
    """Two hundred thousand records, half of them due."""
    now = store.clock.now()
    for start in range(0, MANY, 2000):
        await asyncio.gather(
            *(
                records.create(f"{n:06}", b"value", due_at=now + timedelta(seconds=1 if n % 2 else -1))
                for n in range(start, start + 2000)
            )
        )


@pytest.mark.timeout(300)
async def test_the_thousandth_page_of_records_costs_as_much_as_the_first(store: Store) -> None:
    records = store.records()
    await fill(records, store)
    far = await cursor_at(lambda after, limit: records.page("", after, limit), PAGE * 1000)
    late = await cursor_at(lambda after, limit: records.due(None, after, limit), PAGE * 900)
    first = await cost(store, lambda: records.page("", None, PAGE))
    listing = await cost(store, lambda: records.page("", far, PAGE))
    finding = await cost(store, lambda: records.due(None, late, PAGE))
    prefixed = await cost(store, lambda: records.page("1999", None, PAGE))
    assert max(listing, finding, prefixed) <= MARGIN * first
