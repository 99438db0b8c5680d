"""Putting at a rate, as a program does it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

import wrasse
from unit.jobs.worker.scene import eventually
from wrasse.api.app import App
from wrasse.clock import ManualClock
from wrasse.config.load import load
from wrasse.errors import UsageError
from wrasse.jobs.new_job import NewJob


def app_on(url: str, clock: ManualClock) -> App:
    return App(load(overrides={"backends.jobs": url, "backends.records": url}), clock)


async def test_puts_with_a_rate_wait_for_their_turn(tmp_path: Path) -> None:
    clock = ManualClock()
    async with app_on(f"sqlite:///{tmp_path}/wrasse.db", clock) as app, asyncio.TaskGroup() as group:
        put = group.create_task(app.jobs.enqueue_many([NewJob("a") for _ in range(40)], rate=100))

        async def a_quarter() -> bool:
            return sum(queue.ready for queue in (await app.jobs.counts()).queues) == 25

        await eventually(a_quarter)
        assert not put.done()
        clock.advance(timedelta(seconds=1))
        assert len(await put) == 40


async def test_two_apps_share_the_rate(tmp_path: Path) -> None:
    clock, url = ManualClock(), f"sqlite:///{tmp_path}/wrasse.db"
    async with app_on(url, clock) as one, app_on(url, clock) as other:
        await one.jobs.enqueue("a", rate=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await other.jobs.enqueue("a", rate=1)
        clock.advance(timedelta(seconds=1))
        assert await other.jobs.enqueue("a", rate=1)


async def test_a_rate_below_zero_is_refused() -> None:
    async with app_on("memory:", ManualClock()) as app:
        with pytest.raises(UsageError, match="rate of -1"):
            await app.jobs.enqueue("a", rate=-1)


def test_the_blocking_form_takes_a_rate(tmp_path: Path) -> None:
    with wrasse.sync.connect(f"sqlite:///{tmp_path}/wrasse.db") as app:
        assert len(app.jobs.enqueue_many([NewJob("a")] * 3, rate=1_000)) == 3
