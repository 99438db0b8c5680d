"""Four producers in four processes keep to one rate together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from processes.daemons import running
from wrasse.backends.redis.connect import Redis
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.ports.jobs import JobFilter, JobQueue, JobState

SECOND = timedelta(seconds=1)
PRODUCERS = 4


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, place: Path) -> str:
    """A home for jobs."""
    if request.param == "sqlite":
        return f"sqlite:///{place}/wrasse.db"
    return str(request.getfixturevalue("redis_server").url) + f"?root={place.name}"


def produce(place: Path, url: str, rate: int, each: int) -> None:
    """Lets the producers put so many files each, all at once."""
    settings = ["--role=producer", f"--set=producer.rate_limit_per_sec={rate}", f"--set=backends.jobs={url}"]
    settings.append(f"--set=producer.rate_limit_key={place.name}:rate")
    with ExitStack() as stack:
        daemons = []
        for number in range(PRODUCERS):
            folder = place / f"in{number}"
            folder.mkdir()
            for file in range(each):
                (folder / f"f{file}").write_text("")
            daemons.append(stack.enter_context(running(place, *settings, f"--set=producer.scan_dir={folder}")))
        assert [daemon.end() for daemon in daemons] == [0] * PRODUCERS


async def moments(url: str) -> list[datetime]:
    """When each job was enqueued, by the backend's clock."""
    store: Sqlite | Redis = (
        await Redis.open(url) if url.startswith("redis") else await Sqlite.open(url.removeprefix("sqlite://"))
    )
    try:
        return sorted([at async for at in _each(store.jobs)])
    finally:
        await store.close()


async def _each(jobs: JobQueue) -> AsyncIterator[datetime]:
    after: str | None = None
    while True:
        page = await jobs.page(JobState.READY, JobFilter(), after, 1_000)
        for info in page:
            yield info.created_at
        after = page.cursor
        if after is None:
            return


def busiest(put: list[datetime]) -> int:
    """How many were put in the one second with the most of them."""
    return max(bisect_left(put, begin + SECOND) - number for number, begin in enumerate(put))


async def test_producers_together_never_exceed_twice_the_rate_in_a_second(place: Path, url: str) -> None:
    rate, each = 300, 150
    produce(place, url, rate, each)
    put = await moments(url)
    assert len(put) == PRODUCERS * each
    assert busiest(put) <= 2 * rate
    assert put[-1] - put[0] >= (len(put) / rate - 1) * SECOND


@pytest.mark.full
async def test_producers_together_reach_the_rate_within_a_tenth(place: Path, url: str) -> None:
    rate, each = 100, 260
    produce(place, url, rate, each)
    put = await moments(url)
    first = bisect_left(put, put[0] + 10 * SECOND)
    assert 0.9 * rate * 10 <= first <= 1.1 * rate * 10
    assert busiest(put) <= 2 * rate
