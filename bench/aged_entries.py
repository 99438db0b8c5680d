"""A run of aged_entries over 1,000 streams on Redis with nothing due: how many round trips, and how long to trim them.

A run is what the engine does with a sweep's three methods. The search for streams of other programs is part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from bench.measure import Benchmark, Rate, Ratio, Result
from bench.redis_server import serving
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.connect import Redis
from wrasse.clock import SystemClock
from wrasse.engine.sweep import Action
from wrasse.ports.streams import Draft
from wrasse.streams.alerts import ALERTS, Alerts
from wrasse.streams.retention import Retention, RetentionRule, RetentionTally, Trimmer
from wrasse.sweeps.aged_entries import AgedEntries

ABOUT = __doc__.splitlines()[0]
STREAMS, TRIPS_MAX = 1_000, 10
ENTRIES = 1_000  # of each stream that is trimmed


class CountingLink(OwnRedisClient):
    """A client that counts what it sends and waits for."""

    trips = 0

    async def run(self, script: Any, keys: Sequence[str | bytes], args: Sequence[Any] = ()) -> Any:
        CountingLink.trips += 1
        return await super().run(script, keys, args)

    async def ask_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        CountingLink.trips += 1
        return await super().ask_many(commands)


def run(quick: bool) -> Result:
    """One run with nothing due, and one run that trims some of the streams."""
    with serving() as server:
        trips, checked, trimmed = asyncio.run(_measure(server.url, trims=20 if quick else 200))
    return Result(
        "aged_entries",
        ABOUT,
        (Rate("checked, nothing due", checked, "streams/s"), Rate("trimmed", trimmed, "entries/s")),
        (Ratio(f"round trips over {STREAMS:,} streams", trips, TRIPS_MAX, least=False),),
    )


async def _measure(url: str, trims: int) -> tuple[int, float, float]:
    clock, opened = SystemClock(), await Redis.open(url)
    store = Redis(await CountingLink.open(opened.client.options), clock, done_max=1)
    for n in range(STREAMS):
        entries = ENTRIES if n < trims else 1
        await store.streams.append([Draft(f"gbe.events.s{n:04}", b"x" * 200)] * entries)
    CountingLink.trips = 0
    start = clock.monotonic()
    assert await _run(store, timedelta(days=1)) == 0, "nothing was due"
    looked, trips = clock.monotonic() - start, CountingLink.trips
    await asyncio.sleep(0.01)
    start = clock.monotonic()
    trimmed = await _run(store, timedelta(milliseconds=1))
    took = clock.monotonic() - start
    await store.close()
    await opened.close()
    return trips, STREAMS / looked, trimmed / took


async def _run(store: Redis, age: timedelta) -> int:
    """One run; how many entries it trimmed."""
    clock, tally = SystemClock(), RetentionTally()
    alerts = Alerts(store.records(ALERTS), store.streams, clock, AgedEntries.name)
    trimmer = Trimmer(store.streams, alerts, clock, tally)
    rules = Retention((RetentionRule("gbe.>", age, exact=True),))
    sweep = AgedEntries(store.surveys, rules, trimmer, alerts)
    after: str | None = None
    while True:
        page = await sweep.find(after, 100)
        actions = [each for suspect in page if isinstance(each := sweep.decide(suspect, page.at), Action)]
        await sweep.apply(actions)
        after = page.cursor
        if after is None:
            return tally.trimmed


BENCHMARK = Benchmark("aged_entries", ABOUT, run)
