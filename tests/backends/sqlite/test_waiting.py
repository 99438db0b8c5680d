"""Waiting for a job: woken at once by this process, in time by a due job, and for next to nothing meanwhile."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import pytest

from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock
from wrasse.ports.jobs import Budget, Claimed, Job, Reason, Requeue

HEARTBEAT_TIMEOUT = timedelta(seconds=30)
HOUR = timedelta(hours=1)


async def taker(store: Sqlite, queue: str = "low", wait: timedelta = HOUR) -> Claimed:
    async with asyncio.timeout(60):
        return await store.jobs.claim(
            [queue], 1, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=f"t-{queue}", wait=wait
        )


async def waiting(store: Sqlite, count: int = 1) -> None:
    while len(store._wakeups._wakeups) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of other processes are not polled: what wakes a worker is this process itself."""
    monkeypatch.setattr("wrasse.backends.sqlite.wakeups.TICK", 3600)


@pytest.mark.usefixtures("no_ticks")
async def test_an_enqueue_wakes_the_workers_that_wait_for_its_queue(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    async with asyncio.TaskGroup() as group:
        low, high = group.create_task(taker(store)), group.create_task(taker(store, "high"))
        await waiting(store, 2)
        await store.jobs.enqueue([Job("a", queue="high")], request="1")
        await high
        assert not low.done()
        await store.jobs.enqueue([Job("b")], request="2")
    await store.close()
    assert [claimed.result().jobs[0].job.id for claimed in (high, low)] == ["a", "b"]


@pytest.mark.usefixtures("no_ticks")
async def test_a_requeue_wakes_waiting_workers(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.jobs.enqueue([Job("a")], request="p")
    claimed = await store.jobs.claim(["low"], 1, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="first")
    async with asyncio.TaskGroup() as group:
        take = group.create_task(taker(store))
        await waiting(store)
        back = Requeue(claimed.jobs[0].claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED)
        await store.jobs.settle([back], request="s")
    await store.close()
    assert take.result().jobs[0].attempt == 2


async def test_a_scheduled_job_wakes_waiting_workers_when_it_is_due(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Sqlite.open(tmp_path / "wrasse.db", clock)
    await store.jobs.enqueue([Job("later", delay=timedelta(minutes=5))], request="p")
    async with asyncio.TaskGroup() as group:
        take = group.create_task(taker(store))
        await waiting(store)
        clock.advance(timedelta(minutes=5))
    await store.close()
    assert take.result().jobs[0].job.id == "later"


async def test_a_wait_ends_in_time_when_nothing_comes(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    claimed = await taker(store, wait=timedelta(milliseconds=50))
    await store.close()
    assert claimed.jobs == ()


async def test_waiting_costs_next_to_nothing(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.jobs.enqueue([Job("later", delay=HOUR)], request="p")
    before = time.process_time(), time.monotonic()
    await taker(store, wait=timedelta(seconds=2))
    cost = (time.process_time() - before[0]) / (time.monotonic() - before[1])
    await store.close()
    # About 0.3 % on a quiet machine; other load makes the same instructions take longer.
    assert cost < 0.03


async def test_nothing_is_watched_while_no_worker_waits(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await taker(store, wait=timedelta(milliseconds=30))
    assert not store._wakeups._wanted.is_set()
    await store.close()
