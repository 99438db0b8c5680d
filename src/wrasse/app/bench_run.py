"""The admin command `bench`: jobs of one run through a queue of their own, and a worker in this process that does them.

Nobody else's job is run, counted or deleted: the queue is ours, the ids carry the run, and what is left at the end is
deleted by these ids. A latency is from when a job was put to when the backend had it as done, for each job; the rate
is that of the jobs that were done, also when time runs out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from wrasse.app.building import Working, build_handlers, build_worker, configured, open_homes
from wrasse.app.cli_admin import AdminOrders, Bench
from wrasse.app.cli_asked import Asked
from wrasse.app.config import Config
from wrasse.app.sweep_ports import JOBS
from wrasse.app.wiring import Stores
from wrasse.clock import SystemClock
from wrasse.ids import Ids
from wrasse.jobs.registry import Registry
from wrasse.jobs.tally import Tally
from wrasse.ports.jobs import BATCH_MAX, Delete, Job, JobFilter, JobQueue, Place

QUEUE = "wrasse-bench"
_STEP = 0.02  # seconds between two puts, and between two looks at what is done
_UP_MAX = 30.0  # seconds that the worker may take to come up
_PAGE = 1_000
# The worker serves this one queue, whatever else the settings say of queues.
_OVERRIDES = {
    "worker.queues": f"{{bench: '{QUEUE}'}}",
    "worker.priorities": "[bench]",
    "worker.weights": "{}",
    "worker.rates": "{}",
    "producer.default_priority": "bench",
}


@dataclass(frozen=True, slots=True)
class Benched:
    """What came of it. Times are in seconds."""

    count: int
    completed: int
    duration: float
    latencies: tuple[float, ...]

    def answer(self) -> dict[str, object]:
        """In the design document's words; durations in nanoseconds."""
        return {
            "count": self.count,
            "completed": self.completed,
            "duration": _ns(self.duration),
            "throughput_jobs_per_sec": self.completed / self.duration if self.duration > 0 else 0.0,
            "p50_latency": _ns(self._latency(0.50)),
            "p95_latency": _ns(self._latency(0.95)),
            "queue": QUEUE,
        }

    def _latency(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


async def bench(asked: Asked, orders: AdminOrders) -> Benched:
    """Puts, works, counts, cleans up."""
    config, clock, wanted = asked.config(_OVERRIDES), SystemClock(), orders.bench
    stores = Stores(clock, done_max=max(config.settings.worker.done_max, wanted.count))
    try:
        opened = await open_homes(config, stores, JOBS)
        handlers = build_handlers(_registry(config, orders))
        working = build_worker(config, opened, clock, handlers, Tally())
        run = _Run(opened.jobs.jobs, f"bench-{Ids(clock).new()}-", wanted)
        try:
            return await run.measured(working)
        finally:
            await run.clean_up()
    finally:
        await stores.close()


def _registry(config: Config, orders: AdminOrders) -> Registry:
    if orders.handler or orders.exec:
        return configured(config.settings, handler=orders.handler, command=orders.exec)
    registry = Registry()
    registry.add("", _nothing)
    return registry


async def _nothing(job: object) -> None:
    """What is measured is the queue, unless a handler is named."""


class _Run:
    def __init__(self, jobs: JobQueue, prefix: str, wanted: Bench) -> None:
        self._jobs, self._prefix, self._wanted = jobs, prefix, wanted
        self._clock = SystemClock()
        self._put_at: dict[str, datetime] = {}  # of jobs that are not known to be done
        self._latencies: list[float] = []

    async def measured(self, working: Working) -> Benched:
        async with asyncio.TaskGroup() as group:
            worker, putting = group.create_task(working.run()), None
            began = await self._up(working)
            try:
                async with asyncio.timeout(self._wanted.timeout.total_seconds()):
                    putting = group.create_task(self._put())
                    await self._done()
                    await putting
            except TimeoutError:
                if putting is not None:
                    putting.cancel()
            finally:
                working.worker.stop(timedelta(0))
                took = self._clock.monotonic() - began
                await asyncio.wait([worker])
        return Benched(self._wanted.count, len(self._latencies), took, tuple(self._latencies))

    async def _up(self, working: Working) -> float:
        """Waits until the worker takes jobs, which is not what is measured; gives when that was."""
        async with asyncio.timeout(_UP_MAX):
            while working.wrong() is not None:  # noqa: ASYNC110  # who beats is another process, and sets no event
                await asyncio.sleep(_STEP)
        return self._clock.monotonic()

    async def _put(self) -> None:
        began, sent, wanted = self._clock.monotonic(), 0, self._wanted
        payload = b"x" * wanted.payload_size
        while sent < wanted.count:
            passed = self._clock.monotonic() - began
            due = wanted.count if wanted.rate == 0 else min(wanted.count, 1 + int(passed * wanted.rate))
            some = range(sent, min(due, sent + BATCH_MAX))
            ids = [f"{self._prefix}{n}" for n in some]
            self._put_at.update(dict.fromkeys(ids, self._clock.now()))
            jobs = [Job(id, queue=QUEUE, priority=wanted.priority, payload=payload, minted=True) for id in ids]
            await self._jobs.put(jobs, request=f"{self._prefix}{sent}")
            sent += len(jobs)
            if sent < wanted.count:
                await asyncio.sleep(_STEP)

    async def _done(self) -> None:
        """Looks until all are done; a second back each time, since what finished in one moment may be seen in part."""
        since: datetime | None = None
        while len(self._latencies) < self._wanted.count:
            async for id, at in self._finished(since):
                put_at = self._put_at.pop(id, None)
                if put_at is not None:
                    self._latencies.append(max(0.0, (at - put_at).total_seconds()))
                since = at if since is None else max(since, at - timedelta(seconds=1))
            await asyncio.sleep(_STEP)

    async def _finished(self, since: datetime | None) -> AsyncIterator[tuple[str, datetime]]:
        after: str | None = None
        while True:
            page = await self._jobs.page(Place.DONE, JobFilter(queue=QUEUE, finished_after=since), after, _PAGE)
            for state in page:
                if state.id.startswith(self._prefix) and state.finished_at is not None:
                    yield state.id, state.finished_at
            after = page.cursor
            if after is None:
                return

    async def clean_up(self) -> None:
        """Deletes what this run put, wherever it came to be."""
        for place in (Place.READY, Place.DONE, Place.DEAD):
            after: str | None = None
            while True:
                page = await self._jobs.page(place, JobFilter(queue=QUEUE), after, _PAGE)
                mine = [Delete(state.hold, place) for state in page if state.id.startswith(self._prefix)]
                if mine:
                    await self._jobs.delete(mine)
                after = page.cursor
                if after is None:
                    break
