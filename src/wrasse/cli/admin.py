"""wrasse run --role=admin: the admin commands of the design document, with its flags and its names in the answers.

`peek` returns the next job first, and says so; a purge needs --yes and reports what it deletes by key, and purge-all is
refused while workers are alive.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from wrasse.cli.context import DURATION, CommandContext, write_json
from wrasse.cli.jobs.change import PAGE
from wrasse.cli.jobs.inspect import opened
from wrasse.cli.output import progress
from wrasse.clock import SystemClock
from wrasse.config.load import Config
from wrasse.duration import format_duration
from wrasse.errors import Refused, UnknownName, UsageError, WrasseError
from wrasse.ids import Ids
from wrasse.jobs.handlers import Registry
from wrasse.jobs.tally import Tally
from wrasse.ports.backend import JobStore
from wrasse.ports.job_lists import JobLists
from wrasse.ports.jobs import BATCH_MAX, Delete, Job, JobFilter, JobInfo, JobQueue, JobState
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, pages
from wrasse.runtime.backends import Stores
from wrasse.runtime.open_ports import JOBS, open_homes
from wrasse.runtime.worker import WorkerRuntime, build_handlers, build_worker, configured

T = TypeVar("T")
ADMIN = "admin"
COMMANDS = ("stats", "peek", "purge-dlq", "purge-all", "bench", "stats-keys")
QUEUE = "wrasse-bench"
_STEP = 0.02  # seconds between two batches, and between two polls of done jobs
_UP_MAX = 30.0  # seconds that the worker may take to start
_BENCH_PAGE = 1_000
# The worker serves only this queue, whatever the settings say.
_OVERRIDES = {
    "worker.queues": f"{{bench: '{QUEUE}'}}",
    "worker.priorities": "[bench]",
    "worker.weights": "{}",
    "worker.rates": "{}",
    "producer.default_priority": "bench",
}
_ALIASES = {"dlq": "dead_letter"}


@dataclass(frozen=True, slots=True)
class Bench:
    """The number of jobs, their rate, size, and the timeout. A rate of 0 is unlimited."""

    count: int = 1000
    rate: int = 500
    priority: str = "low"
    timeout: timedelta = timedelta(seconds=60)
    payload_size: int = 1024


@dataclass(frozen=True, slots=True)
class AdminOrders:
    """The command line's options."""

    command: str = ""
    queue: str = ""
    count: int = 10
    yes: bool = False
    dry_run: bool = False
    force: bool = False
    bench: Bench = Bench()
    handler: str = ""
    exec: str = ""


def admin_options(function: Callable[..., T]) -> Callable[..., T]:
    """Adds the flags; the function gets them as `admin`."""

    @click.option("--admin-cmd", default="", metavar="COMMAND", help=f"With --role=admin: {', '.join(COMMANDS)}.")
    @click.option("--queue", default="", help="peek: a priority, completed, dead_letter (or dlq), or a key.")
    @click.option("--n", "count", default=10, show_default=True, type=click.IntRange(1, 1000), help="peek: how many.")
    @click.option("--yes", is_flag=True, help="purge-dlq, purge-all: confirm; there is no undo.")
    @click.option("--dry-run", is_flag=True, help="purge-dlq, purge-all: show what would be deleted.")
    @click.option("--force", is_flag=True, help="purge-all: even with live workers.")
    @click.option("--bench-count", default=1000, show_default=True, type=click.IntRange(1), help="bench: jobs.")
    @click.option(
        "--bench-rate", default=500, show_default=True, type=click.IntRange(0), help="bench: jobs per second."
    )
    @click.option("--bench-priority", default="low", show_default=True, help="bench: their priority.")
    @click.option("--bench-timeout", default="60s", show_default=True, type=DURATION, help="bench: timeout.")
    @click.option(
        "--bench-payload-size",
        default=1024,
        show_default=True,
        type=click.IntRange(0),
        help="bench: bytes of each payload.",
    )
    @functools.wraps(function)
    def wrapper(
        *args: Any,
        admin_cmd: str,
        queue: str,
        count: int,
        yes: bool,
        dry_run: bool,
        force: bool,
        bench_count: int,
        bench_rate: int,
        bench_priority: str,
        bench_timeout: timedelta,
        bench_payload_size: int,
        **options: Any,
    ) -> T:
        bench = Bench(bench_count, bench_rate, bench_priority, bench_timeout, bench_payload_size)
        orders = AdminOrders(admin_cmd, queue, count, yes, dry_run, force, bench)
        return function(*args, admin=orders, **options)

    return wrapper


@dataclass(frozen=True, slots=True)
class Benched:
    """The result of a benchmark. Times are in seconds."""

    count: int
    completed: int
    duration: float
    latencies: tuple[float, ...]

    def answer(self) -> dict[str, object]:
        """The answer with the design document's names; durations in nanoseconds."""
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


async def _measure(ctx: CommandContext, orders: AdminOrders) -> Benched:
    """Enqueues, runs a worker, measures, and cleans up."""
    config, clock, wanted = ctx.config(_OVERRIDES), SystemClock(), orders.bench
    async with Stores(clock, done_max=max(config.settings.worker.done_max, wanted.count)) as stores:
        opened = await open_homes(config, stores, JOBS)
        handlers = build_handlers(_registry(config, orders))
        working = build_worker(config, opened, clock, handlers, Tally())
        run = _BenchmarkRun(opened.jobs.jobs, f"bench-{Ids(clock).new()}-", wanted)
        try:
            return await run.measured(working)
        finally:
            await run.clean_up()


def _registry(config: Config, orders: AdminOrders) -> Registry:
    if orders.handler or orders.exec:
        return configured(config.settings, handler=orders.handler, command=orders.exec)
    registry = Registry()
    registry.add("", _nothing)
    return registry


async def _nothing(job: object) -> None:
    """Does nothing: without a handler the benchmark measures the queue."""


class _BenchmarkRun:
    def __init__(self, jobs: JobQueue, prefix: str, wanted: Bench) -> None:
        self._jobs, self._prefix, self._wanted = jobs, prefix, wanted
        self._clock = SystemClock()
        self._enqueued_at: dict[str, datetime] = {}  # of jobs that are not done yet
        self._latencies: list[float] = []

    async def measured(self, working: WorkerRuntime) -> Benched:
        async with asyncio.TaskGroup() as group:
            worker, enqueueing = group.create_task(working.run()), None
            began = await self._up(working)
            try:
                async with asyncio.timeout(self._wanted.timeout.total_seconds()):
                    enqueueing = group.create_task(self._enqueue())
                    await self._done()
                    await enqueueing
            except TimeoutError:
                if enqueueing is not None:
                    enqueueing.cancel()
            finally:
                working.worker.stop(timedelta(0))
                took = self._clock.monotonic() - began
                await asyncio.wait([worker])
        return Benched(self._wanted.count, len(self._latencies), took, tuple(self._latencies))

    async def _up(self, working: WorkerRuntime) -> float:
        """Waits until the worker claims jobs, which is not measured; returns the time."""
        async with asyncio.timeout(_UP_MAX):
            while working.wrong() is not None:  # noqa: ASYNC110  # the heartbeat is of another process, which sets no event
                await asyncio.sleep(_STEP)
        return self._clock.monotonic()

    async def _enqueue(self) -> None:
        began, sent, wanted = self._clock.monotonic(), 0, self._wanted
        payload = b"x" * wanted.payload_size
        while sent < wanted.count:
            passed = self._clock.monotonic() - began
            due = wanted.count if wanted.rate == 0 else min(wanted.count, 1 + int(passed * wanted.rate))
            some = range(sent, min(due, sent + BATCH_MAX))
            ids = [f"{self._prefix}{n}" for n in some]
            self._enqueued_at.update(dict.fromkeys(ids, self._clock.now()))
            jobs = [Job(id, queue=QUEUE, priority=wanted.priority, payload=payload, minted=True) for id in ids]
            await self._jobs.enqueue(jobs, request=f"{self._prefix}{sent}")
            sent += len(jobs)
            if sent < wanted.count:
                await asyncio.sleep(_STEP)

    async def _done(self) -> None:
        """Polls until all are done; each time from one second earlier, since jobs of one instant may become visible
        later."""
        since: datetime | None = None
        while len(self._latencies) < self._wanted.count:
            async for id, at in self._finished(since):
                enqueued_at = self._enqueued_at.pop(id, None)
                if enqueued_at is not None:
                    self._latencies.append(max(0.0, (at - enqueued_at).total_seconds()))
                since = at if since is None else max(since, at - timedelta(seconds=1))
            await asyncio.sleep(_STEP)

    async def _finished(self, since: datetime | None) -> AsyncIterator[tuple[str, datetime]]:
        async for page in self._pages(JobState.DONE, since):
            for info in page:
                if info.id.startswith(self._prefix) and info.finished_at is not None:
                    yield info.id, info.finished_at

    async def clean_up(self) -> None:
        """Deletes the jobs of this run, in whatever state."""
        for state in (JobState.READY, JobState.DONE, JobState.DEAD):
            async for page in self._pages(state):
                mine = [Delete(info.claim, state) for info in page if info.id.startswith(self._prefix)]
                if mine:
                    await self._jobs.delete(mine)

    def _pages(self, state: JobState, since: datetime | None = None) -> AsyncIterator[Page[JobInfo]]:
        where = JobFilter(queue=QUEUE, finished_after=since)
        return pages(lambda after: self._jobs.page(state, where, after, _BENCH_PAGE))


async def admin(ctx: CommandContext, orders: AdminOrders) -> None:
    """Runs one admin command and writes its one JSON document."""
    if orders.command == "bench":
        await _bench(ctx, orders)
        return
    if orders.command.startswith("purge") and not (orders.yes or orders.dry_run):
        raise Refused(f"{orders.command} deletes jobs permanently", do="check with --dry-run, then add --yes")
    config = ctx.config()
    async with opened(config) as store:
        if orders.command == "purge-dlq":
            key = "dead" if store.lists is None else store.lists.names["dead_letter"]
            write_json(await _purge_dead(store.jobs, key, dry=orders.dry_run))
            return
        lists, limiter = _lists(store), config.settings.producer.rate_limit_key
        match orders.command:
            case "stats":
                write_json(await _stats(lists, limiter))
            case "stats-keys":
                write_json(await _stats_keys(lists, limiter))
            case "peek":
                write_json(await _peek(lists, orders, config))
            case _:
                write_json(await _purge_all(lists, limiter, orders))


def _lists(store: JobStore) -> JobLists:
    if store.lists is None:
        raise UsageError(
            "--role=admin needs jobs in Redis lists, and this backend has none",
            do="use `wrasse jobs stats`, `wrasse jobs peek` or `wrasse jobs purge`",
        )
    return store.lists


async def _stats(lists: JobLists, limiter: str) -> dict[str, object]:
    found = await lists.lengths(limiter)
    return {"queues": found.named, "processing_lists": found.processing, "heartbeats": found.heartbeats}


async def _stats_keys(lists: JobLists, limiter: str) -> dict[str, object]:
    found = await lists.lengths(limiter)
    ends = {} if found.limiter_ends is None else {"rate_limit_ttl": format_duration(found.limiter_ends)}
    return {
        "queue_lengths": found.named,
        "processing_lists": len(found.processing),
        "processing_items": sum(found.processing.values()),
        "heartbeats": found.heartbeats,
        "rate_limit_key": limiter,
        **ends,
    }


async def _peek(lists: JobLists, orders: AdminOrders, config: Config) -> dict[str, object]:
    if not orders.queue:
        raise UsageError("peek needs --queue", do=f"use one of: {', '.join(_known(lists))}")
    alias = _ALIASES.get(orders.queue, orders.queue)
    key = lists.names.get(alias, "")
    if not key and alias.startswith(f"{config.settings.redis.root}:"):
        key = alias
    if not key:
        raise UnknownName(orders.queue, _known(lists), what="queue")
    served = alias not in ("completed", "dead_letter")
    items = [raw.decode(errors="replace") for raw in await lists.peek(key, orders.count)]
    return {"queue": key, "items": items, "order": "next first" if served else "oldest first"}


def _known(lists: JobLists) -> tuple[str, ...]:
    return (*lists.names, *_ALIASES)


async def _purge_dead(jobs: JobQueue, key: str, *, dry: bool) -> dict[str, object]:
    """Page by page, each delete under its precondition: jobs that die meanwhile are deleted too, requeued ones not."""
    count = 0
    with progress("dead jobs") as seen:
        async for page in pages(lambda after: jobs.page(JobState.DEAD, JobFilter(), after, PAGE)):
            if dry:
                count += len(page)
            elif page.items:
                gone = await jobs.delete([Delete(info.claim, JobState.DEAD) for info in page])
                count += sum(outcome is Outcome.DONE for outcome in gone)
            seen(len(page))
    return {"purged": count, "keys": {key: count}, "dry_run": dry}


async def _purge_all(lists: JobLists, limiter: str, orders: AdminOrders) -> dict[str, object]:
    purged = await lists.purge(limiter, force=orders.force, dry=orders.dry_run)
    if purged.alive and not (orders.force or orders.dry_run):
        raise Refused(
            f"{len(purged.alive)} workers with running jobs are alive, such as {purged.alive[0]}",
            do="stop them first, or add --force: their jobs are then lost",
        )
    answer: dict[str, object] = {"purged": len(purged.keys), "keys": purged.keys, "dry_run": orders.dry_run}
    return {**answer, "heartbeats": purged.alive} if purged.alive else answer


async def _bench(ctx: CommandContext, orders: AdminOrders) -> None:
    done = await _measure(ctx, orders)
    write_json(done.answer())
    if done.completed < done.count:
        raise WrasseError(
            f"only {done.completed} of {done.count} jobs were done within {format_duration(orders.bench.timeout)}",
            do="see the rate in the answer; use fewer jobs, or a longer --bench-timeout",
        )
