"""The loop that simulations run on: time jumps, order is kept, and a standstill is an error."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from virtual_time import START, Stuck, VirtualClock, run_virtual


def test_an_hour_of_waiting_takes_no_time() -> None:
    begun = time.perf_counter()

    async def story() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run_virtual(story()) == pytest.approx(3600)
    assert time.perf_counter() - begun < 60


def test_whoever_waits_less_wakes_first() -> None:
    async def story() -> list[int]:
        woken: list[int] = []

        async def wait(seconds: int) -> None:
            await asyncio.sleep(seconds)
            woken.append(seconds)

        await asyncio.gather(*(wait(seconds) for seconds in (30, 10, 20)))
        return woken

    assert run_virtual(story()) == [10, 20, 30]


def test_a_timeout_ends_a_wait_that_would_never_end() -> None:
    async def story() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(story()) == pytest.approx(5)


def test_a_standstill_is_an_error() -> None:
    async def story() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run_virtual(story())


def test_a_clock_may_be_off_drift_and_be_set() -> None:
    async def story() -> tuple[timedelta, float]:
        clock = VirtualClock(off=timedelta(seconds=2), drift=0.1)
        await asyncio.sleep(10)
        clock.step(timedelta(seconds=-5))
        return clock.now() - START, clock.monotonic()

    passed, monotonic = run_virtual(story())
    assert (round(passed.total_seconds(), 6), round(monotonic, 6)) == (8, 10)
