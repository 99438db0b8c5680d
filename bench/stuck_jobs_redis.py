"""A run of stuck_jobs on Redis with 100 jobs due among 1,000,000 ready and running: against the same 100 among 10,000.

A run is what the engine does with a sweep's methods: find a page, decide about each, apply the batch. Half of the rest
is running with a fresh heartbeat, half is ready. The large server also has as many keys of other programs; the
search for strays passes over those, in a time of its own that is bounded whatever there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Sequence
from datetime import timedelta

from bench.measure import Benchmark, Rate, Ratio, Result
from bench.peers.quiet import conditions, hurried, hurry
from bench.redis_server import serving
from wrasse.backends.redis.connect import Redis
from wrasse.clock import SystemClock
from wrasse.engine.sweep import Action
from wrasse.ids import Ids
from wrasse.ports.jobs import BATCH_MAX, Complete, Job
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.stuck_jobs import StraySearch, StuckJobs

DUE = 100
ABOUT = __doc__.splitlines()[0]
_LONG, _SHORT = timedelta(hours=1), timedelta(milliseconds=1)
_CLOCK = SystemClock()
_IDS = Ids(_CLOCK)


def run(quick: bool) -> Result:
    """Compares two servers; their runs take turns."""
    small, large = (5_000, 50_000) if quick else (10_000, 1_000_000)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving()) for _ in range(2)]
        for server in servers:
            hurry(server.pid, 2)
        stack.enter_context(conditions())
        stack.enter_context(hurried())
        urls = [server.url for server in servers]
        few, many, search = asyncio.run(_compare(urls, (small, large), rounds=5 if quick else 20))
    return Result(
        BENCHMARK.name,
        ABOUT,
        (Rate(f"among {small:,}", 1 / few, "runs/s"), Rate(f"among {large:,}", 1 / many, "runs/s")),
        (
            Ratio("time among many to time among few", many / few, 1.5, least=False),
            Ratio("ms of a search among many keys", search * 1_000, 300, least=False),
        ),
    )


async def _compare(urls: Sequence[str], sizes: Sequence[int], rounds: int) -> tuple[float, float, float]:
    stores = [await Redis.open(url) for url in urls]
    for store, size in zip(stores, sizes, strict=True):
        await _fill(store, size)
    await _crowd(stores[1], sizes[1])
    times: list[list[float]] = [[], []]
    for number in range(rounds + 2):
        for store, taken in zip(stores, times, strict=True):
            await _make_due(store, number)
            taken.append(await _sweep(store))
            await _complete(store)
    search = await _search(stores[1])
    for store in stores:
        await store.close()
    few, many = (statistics.median(taken[2:]) for taken in times)
    return few, many, search


async def _fill(store: Redis, jobs: int) -> None:
    for _ in range(0, jobs, BATCH_MAX):
        await store.jobs.enqueue([Job(_IDS.new(), minted=True) for _ in range(BATCH_MAX)], request=_IDS.new())
    for number in range(0, jobs // 2, BATCH_MAX):
        await store.jobs.claim(
            ["low"], BATCH_MAX, worker=f"alive-{number}", heartbeat_timeout=_LONG, request=_IDS.new()
        )


async def _crowd(store: Redis, keys: int) -> None:
    """Keys of other programs in the same database."""
    for start in range(0, keys, 1_000):
        words = [word for n in range(start, start + 1_000) for word in (f"session:{n}", "x")]
        await store.client.ask("MSET", *words)


async def _make_due(store: Redis, number: int) -> None:
    """A hundred workers claim a job each and stop its heartbeat."""
    for each in range(DUE):
        worker = f"dead-{number}-{each}"
        await store.jobs.claim(["low"], 1, worker=worker, heartbeat_timeout=_SHORT, request=_IDS.new())
    await asyncio.sleep(0.01)  # longer than their heartbeat timeout


async def _sweep(store: Redis) -> float:
    sweep = StuckJobs(store.jobs, heartbeat_timeout=_SHORT)
    start = _CLOCK.monotonic()
    page = await sweep.find(None, DUE)
    verdicts = [sweep.decide(suspect, page.at) for suspect in page]
    actions = [verdict for verdict in verdicts if isinstance(verdict, Action)]
    outcomes = await sweep.apply(actions)
    taken = _CLOCK.monotonic() - start
    assert [outcome for outcome in outcomes if outcome is Outcome.DONE] == [Outcome.DONE] * DUE, "all were due"
    return taken


async def _complete(store: Redis) -> None:
    """What was rescued is served next; it is done now, so that the next round is about fresh jobs."""
    claimed = await store.jobs.claim(["low"], DUE, worker="alive", heartbeat_timeout=_LONG, request=_IDS.new())
    await store.jobs.settle([Complete(job.claim) for job in claimed.jobs], request=_IDS.new())


async def _search(store: Redis) -> float:
    assert store.strays is not None, "Redis searches for strays"
    search = StraySearch(store.strays, _CLOCK)
    times = []
    for _ in range(5):
        start = _CLOCK.monotonic()
        await search.search(_LONG, dry=False)
        times.append(_CLOCK.monotonic() - start)
    return statistics.median(times)


BENCHMARK = Benchmark("stuck_jobs_redis", ABOUT, run)
