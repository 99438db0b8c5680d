"""wrasse jobs list, show, peek, stats, dead: read-only commands; and how commands open the queue."""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import click

from wrasse.cli.context import DURATION, CommandContext, finish, with_context
from wrasse.cli.output import show_pairs, show_table
from wrasse.config.load import Config
from wrasse.errors import UnknownName
from wrasse.jobs.composite_queue import CompositeQueue
from wrasse.jobs.worker.breakers import SHUT_QUEUES, shut_queues
from wrasse.observability.json_format import (
    ago,
    glimpse,
    queue_json,
    record_json,
    shut_json,
    state_json,
    text_of,
    when,
    worker_json,
)
from wrasse.ports.backend import JobStore
from wrasse.ports.jobs import JobFilter, JobInfo, JobQueue, JobRecord, JobState, JobStatus, QueueCount, Reason
from wrasse.ports.page import Page
from wrasse.runtime.backends import Stores, with_jobs
from wrasse.runtime.stream_tasks import open_tasks, task_home


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """Jobs and stream tasks as one queue, and the backend of the jobs."""

    jobs: JobQueue
    store: JobStore


@asynccontextmanager
async def opened_queue(config: Config, *, create: bool = False) -> AsyncIterator[OpenQueue]:
    """Jobs, and the stream tasks of the types in the settings, for the length of a command; a command that only reads
    creates nothing."""
    async with Stores.of(config.settings.worker, create=create) as stores:
        store, home = with_jobs(await stores.open(config.homes.jobs)), task_home(config)
        tasks = None if home is None else partial(open_tasks, home, stores)
        types = list(config.settings.task_types)
        yield OpenQueue(store.jobs if tasks is None else CompositeQueue(store.jobs, tasks, types), store)


@asynccontextmanager
async def opened(config: Config) -> AsyncIterator[JobStore]:
    """The backend of the jobs, for the length of a command."""
    async with Stores.of(config.settings.worker, create=False) as stores:
        yield with_jobs(await stores.open(config.homes.jobs))


T = TypeVar("T")
STATES = [status.value for status in JobStatus]
REASONS = tuple(reason.value for reason in Reason)
Span = tuple[timedelta | None, timedelta | None]  # how long ago at most and at least


def job_filters(
    *, only: str = "Only", error: bool = False, span: bool = False
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Adds the filter options, which the function gets as `where`; `error` and `span` are for commands about dead jobs:
    `span` is the time range in which they died."""
    reason = "jobs that died for this reason" if error else "dead jobs with this reason"
    options = [
        click.option("--queue", help=f"{only} jobs of this queue."),
        click.option("--kind", help=f"{only} jobs of this kind."),
        click.option("--reason", type=click.Choice(REASONS), help=f"{only} {reason}."),
    ]
    if error:
        about = f"{only} jobs whose error contains this."
        options.append(click.option("--error", "error_contains", metavar="TEXT", help=about))
    if span:
        options.append(click.option("--since", type=DURATION, help="Only jobs that died within this time."))
        options.append(click.option("--until", type=DURATION, help="Only jobs that died longer ago than this."))

    def add(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def wrapper(*args: Any, queue: str | None, kind: str | None, reason: str | None, **given: Any) -> T:
            died = None if reason is None else Reason(reason)
            given["where"] = JobFilter(queue, kind, died, given.pop("error_contains", None))
            if span:
                given["span"] = given.pop("since"), given.pop("until")
            return function(*args, **given)

        wrapped: Callable[..., T] = wrapper
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return add


async def known_job(queue: JobQueue, id: str) -> JobRecord:
    """The job with this id; for an unknown id the error suggests similar ones."""
    record = await queue.get(id)
    if record is None:
        seen = [info.id for state in JobState for info in await queue.page(state, JobFilter(), None, 100, newest=True)]
        known = seen if len(seen) <= 20 else _near(id, seen)
        raise UnknownName(id, known, what="job", do="see `wrasse jobs list`")
    return record


def _near(id: str, seen: list[str]) -> list[str]:
    # Only ids with the same beginning are suggested, since a list of all would not help.
    return [each for each in seen if each[:4] == id[:4]][:20]


@click.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only jobs of this state.  [default: all]")
@job_filters()
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000), help="Jobs per page.")
@click.option("--after", help="Continue after this cursor, from the last page.")
@click.option("--newest", is_flag=True, help="Newest first.")
@with_context
def list_jobs(
    ctx: CommandContext, state: str | None, where: JobFilter, limit: int, after: str | None, newest: bool
) -> None:
    """List jobs: ready ones in the order in which they are claimed, scheduled ones by when they are due.

    \b
    Examples:
      wrasse jobs list
      wrasse jobs list --state=dead --reason=timeout --json
      wrasse jobs list --state=ready --queue=high --limit=100
    """
    if after is not None and state is None:
        raise click.UsageError("--after needs --state\ndo: write e.g. wrasse jobs list --state=ready --after=CURSOR")
    finish(_list(ctx, [JobStatus(state)] if state else [*JobStatus], where, limit, after, newest))


async def _list(
    ctx: CommandContext, states: Sequence[JobStatus], where: JobFilter, limit: int, after: str | None, newest: bool
) -> None:
    infos: list[JobInfo] = []
    page: Page[JobInfo] | None = None
    async with opened_queue(ctx.config()) as store:
        for each in states:
            if len(infos) < limit:
                narrowed = replace(where, scheduled=each.scheduled)
                page = await store.jobs.page(each.state, narrowed, after, limit - len(infos), newest=newest)
                infos += page.items
    assert page is not None, "there is at least one state"
    cursor = page.cursor if len(states) == 1 else None
    ctx.answer(
        {"jobs": [state_json(info) for info in infos], "next": cursor},
        lambda: _show_states(infos, page.at, cursor),
    )


def _show_states(infos: list[JobInfo], now: datetime, cursor: str | None) -> None:
    columns = ("id", "kind", "queue", "state", "attempts", "when", "by / why")
    show_table(columns, [_row(info, now) for info in infos], empty="no jobs", after=cursor)


def _row(info: JobInfo, now: datetime) -> tuple[object, ...]:
    what, at = when(info)
    why = info.worker if info.state is JobState.RUNNING else f"{info.reason or ''} {info.error}".strip()
    return info.id, info.kind, info.queue, info.status, info.attempts, f"{what} {ago(at, now)}", why[:80]


@click.command()
@click.argument("id")
@click.option("--payload", is_flag=True, help="Write the payload's bytes to stdout and nothing else.")
@click.option("--result", is_flag=True, help="Write the result's bytes to stdout and nothing else.")
@with_context
def show(ctx: CommandContext, id: str, payload: bool, result: bool) -> None:
    """Show one job: its state, its attempts, the beginning of its payload.

    \b
    Examples:
      wrasse jobs show resize-a
      wrasse jobs show resize-a --payload > a.json
    """
    finish(_show(ctx, id, payload, result))


async def _show(ctx: CommandContext, id: str, payload: bool, result: bool) -> None:
    async with opened_queue(ctx.config()) as store:
        record = await known_job(store.jobs, id)
        now = (await store.store.health_sample()).at
    if payload or result:
        sys.stdout.buffer.write(record.job.payload if payload else record.result or b"")
        sys.stdout.buffer.flush()
        return
    ctx.answer(record_json(record), lambda: show_record(record, now))


def show_record(record: JobRecord, now: datetime) -> None:
    """Writes a job for a person."""
    info, job = record.info, record.job
    what, at = when(info)
    counts = f"{info.attempts} ({info.failures} failed, {info.rescues} rescued, {info.interruptions} interrupted)"
    show_pairs(
        [
            ("id", info.id),
            ("kind", info.kind),
            ("queue", info.queue),
            ("state", f"{info.status}, {what} {ago(at, now)}"),
            ("enqueued", info.created_at.isoformat(timespec="seconds")),
            ("attempts", counts if info.attempts else ""),
            ("worker", info.worker if info.state is JobState.RUNNING else ""),
            ("last heartbeat", ago(info.heartbeat_at, now) if info.state is JobState.RUNNING else ""),
            ("progress", _progress(record)),
            ("kept until", info.kept_until.isoformat(timespec="seconds") if info.kept_until else ""),
            ("reason", info.reason),
            ("error", info.error),
            ("timeout", job.timeout),
            ("headers", ", ".join(f"{key}={value}" for key, value in job.headers.items())),
            ("payload", f"{info.size} bytes: {glimpse(job.payload)}" if info.size else "empty"),
            ("result", None if record.result is None else glimpse(record.result)),
        ]
    )
    if record.history:
        rows = [(a.number, a.worker, ago(a.ended_at, now), a.reason.value, a.error[:100]) for a in record.history]
        show_table(("attempt", "worker", "ended", "reason", "error"), rows)


def _progress(record: JobRecord) -> str:
    progress = record.progress
    return "" if progress is None else f"{progress.fraction:.0%} {progress.note}".strip()


@click.command()
@click.argument("queue", required=False)
@click.option("-n", "count", default=10, show_default=True, type=click.IntRange(1, 100), help="How many.")
@with_context
def peek(ctx: CommandContext, queue: str | None, count: int) -> None:
    """Show the next jobs in order, with the beginning of their payloads.

    \b
    Examples:
      wrasse jobs peek
      wrasse jobs peek high -n 3
    """
    finish(_peek(ctx, queue, count))


async def _peek(ctx: CommandContext, queue: str | None, count: int) -> None:
    config = ctx.config()
    worker = config.settings.worker
    queues = [queue] if queue else [worker.queues[name] for name in worker.priorities]
    records: list[JobRecord] = []
    async with opened_queue(config) as store:
        for name in dict.fromkeys(queues):
            page = await store.jobs.page(
                JobState.READY, JobFilter(queue=name, scheduled=False), None, count - len(records)
            )
            records += [record for info in page if (record := await store.jobs.get(info.id)) is not None]
            if len(records) >= count:
                break
    rows = [(each.job.id, each.job.kind, each.job.queue, each.info.size, glimpse(each.job.payload)) for each in records]
    ctx.answer(
        {"jobs": [{**state_json(each.info), "payload": text_of(each.job.payload)} for each in records]},
        lambda: show_table(("id", "kind", "queue", "bytes", "payload"), rows, empty="nothing is ready"),
    )


@click.command()
@with_context
def stats(ctx: CommandContext) -> None:
    """Show the number of jobs by state, the workers, and the queues with an open circuit breaker.

    \b
    Examples:
      wrasse jobs stats
      wrasse jobs stats --json | jq .queues
    """
    finish(_stats(ctx))


async def _stats(ctx: CommandContext) -> None:
    config = ctx.config()
    async with opened_queue(config) as queue:
        counts = await queue.jobs.counts()
        alive = {worker.info.id for worker in counts.workers if worker.deadline > counts.at}
        shut = await shut_queues(queue.store.records(SHUT_QUEUES), alive)

    def text() -> None:
        rows = [_counted(each, counts.at) for each in counts.queues]
        show_table(("queue", "ready", "scheduled", "running", "done", "dead", "oldest ready"), rows, empty="no jobs")
        if counts.workers:
            rows = [
                (w.info.id, w.info.slots, ago(w.heartbeat_at, counts.at), _alive(w.deadline, counts.at))
                for w in counts.workers
            ]
            show_table(("worker", "slots", "last heartbeat", "state"), rows)
        if shut:
            left = [(each.queue, each.state, each.worker, ago(each.since, counts.at)) for each in shut]
            show_table(("paused queue", "breaker", "by worker", "since"), left)
        for each in counts.unreadable:
            click.echo(f"not counted: {each}; see `wrasse jobs fsck`", err=True)

    workers = [worker_json(each, counts.at) for each in counts.workers]
    queues, breakers = [queue_json(each) for each in counts.queues], [shut_json(each) for each in shut]
    answer = {
        "at": counts.at,
        "queues": queues,
        "workers": workers,
        "breakers": breakers,
        "unreadable": counts.unreadable,
    }
    ctx.answer(answer, text)


def _alive(deadline: datetime, now: datetime) -> str:
    return "alive" if deadline > now else "dead"


def _counted(count: QueueCount, now: datetime) -> tuple[object, ...]:
    oldest = ago(count.oldest_ready_at, now)
    return count.queue, count.ready, count.scheduled, count.running, count.done, count.dead, oldest


@click.command()
@job_filters(error=True, span=True)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000), help="Jobs per page.")
@click.option("--after", help="Continue after this cursor, from the last page.")
@with_context
def dead(ctx: CommandContext, where: JobFilter, span: Span, limit: int, after: str | None) -> None:
    """List dead jobs, the newest first, and why they died.

    \b
    Examples:
      wrasse jobs dead
      wrasse jobs dead --since=1h --reason=failed --error=Timeout
    """
    finish(_dead(ctx, where, span, limit, after))


def died_within(where: JobFilter, now: datetime, since: timedelta | None, until: timedelta | None) -> JobFilter:
    """The filter, narrowed to jobs that died in a time range."""
    return replace(
        where,
        finished_after=None if since is None else now - since,
        finished_before=None if until is None else now - until,
    )


async def _dead(ctx: CommandContext, where: JobFilter, span: Span, limit: int, after: str | None) -> None:
    async with opened_queue(ctx.config()) as store:
        where = died_within(where, (await store.store.health_sample()).at, *span)
        page = await store.jobs.page(JobState.DEAD, where, after, limit, newest=True)
    ctx.answer(
        {"jobs": [state_json(info) for info in page], "next": page.cursor},
        lambda: _show_states([*page], page.at, page.cursor),
    )
