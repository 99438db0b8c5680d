"""What every limiter promises, on every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from conformance.limiters import LIMITERS, Limits, opened
from servers.valkey import Valkey

SECOND = timedelta(seconds=1)


@pytest.fixture(params=[*LIMITERS, pytest.param("redis-py", marks=pytest.mark.full)])
async def limits(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Limits]:
    server: Valkey | None = request.getfixturevalue("redis_server") if "redis" in request.param else None
    async with opened(request.param, tmp_path, server) as found:
        yield found


async def test_a_burst_goes_at_once_and_the_rest_is_told_to_wait(limits: Limits) -> None:
    first = await limits.limiter.allow(limits.key, 30, rate=20, burst=5)
    assert first.count == 5
    assert timedelta(0) < first.wait <= SECOND


async def test_what_fits_is_allowed_whole_and_waits_for_nothing(limits: Limits) -> None:
    allowed = await limits.limiter.allow(limits.key, 3, rate=20, burst=5)
    assert (allowed.count, allowed.wait) == (3, timedelta(0))


async def test_a_caller_that_waits_as_told_gets_something(limits: Limits) -> None:
    await limits.limiter.allow(limits.key, 5, rate=20, burst=5)
    refused = await limits.limiter.allow(limits.key, 5, rate=20, burst=5)
    await limits.pass_time(refused.wait + timedelta(milliseconds=5))
    assert (await limits.limiter.allow(limits.key, 5, rate=20, burst=5)).count > 0


async def test_two_processes_share_one_budget(limits: Limits) -> None:
    assert (await limits.limiter.allow(limits.key, 5, rate=5, burst=5)).count == 5
    assert (await limits.other.allow(limits.key, 1, rate=5, burst=5)).count == 0


async def test_another_key_is_another_budget(limits: Limits) -> None:
    await limits.limiter.allow(limits.key, 5, rate=5, burst=5)
    assert (await limits.limiter.allow(f"{limits.key}-other", 5, rate=5, burst=5)).count == 5


async def test_what_was_not_needed_may_be_used_by_another(limits: Limits) -> None:
    await limits.limiter.allow(limits.key, 5, rate=5, burst=5)
    await limits.limiter.give_back(limits.key, 2, rate=5)
    assert (await limits.other.allow(limits.key, 5, rate=5, burst=5)).count == 2


async def test_returning_more_than_was_used_makes_no_budget(limits: Limits) -> None:
    await limits.limiter.allow(limits.key, 1, rate=5, burst=5)
    await limits.limiter.give_back(limits.key, 100, rate=5)
    assert (await limits.limiter.allow(limits.key, 100, rate=5, burst=5)).count == 5


async def test_a_second_later_the_budget_is_whole_again(limits: Limits) -> None:
    await limits.limiter.allow(limits.key, 5, rate=5, burst=5)
    await limits.pass_time(SECOND + timedelta(milliseconds=50))
    assert (await limits.other.allow(limits.key, 5, rate=5, burst=5)).count == 5


async def test_a_steady_caller_gets_the_rate_and_none_more_than_twice_of_it_in_a_second(limits: Limits) -> None:
    rate, start, granted = 100, limits.now(), []
    while limits.now() - start < 2.5 * SECOND:
        allowed = await limits.limiter.allow(limits.key, 10, rate=rate, burst=10)
        granted.append((limits.now() - start, allowed.count))
        await limits.pass_time(allowed.wait)
    seconds = (limits.now() - start) / SECOND
    total = sum(count for _, count in granted)
    assert total <= rate * (seconds + 1)
    asked = [at / SECOND for at, _ in granted]
    # A busy machine asks late, and what is not asked for is not kept beyond the burst.
    assert total >= 0.5 * sum(min(10, rate * (then - at)) for at, then in pairwise(asked))
    for begin, _ in granted:
        assert sum(count for at, count in granted if begin <= at < begin + SECOND) <= 2 * rate


async def test_asking_for_nothing_takes_nothing(limits: Limits) -> None:
    nothing = await limits.limiter.allow(limits.key, 0, rate=5, burst=5)
    assert (nothing.count, nothing.wait) == (0, timedelta(0))
    assert (await limits.limiter.allow(limits.key, 5, rate=5, burst=5)).count == 5
