"""wrasse run --role=admin: the admin commands of the design document, with its flags and its names in the answers.

`peek` shows what is served next first, and says so; a purge needs --yes, tells what it deletes by key, and one of
everything is refused while workers live.
"""

from __future__ import annotations

from wrasse.app.bench_run import bench
from wrasse.app.cli_admin import AdminOrders
from wrasse.app.cli_asked import Asked, write_json
from wrasse.app.cli_jobs import opened
from wrasse.app.cli_jobs_change import PAGE
from wrasse.app.config import Config
from wrasse.app.progress import progress
from wrasse.duration import format_duration
from wrasse.errors import Refused, UnknownName, UsageError, WrasseError
from wrasse.ports.backend import JobStore
from wrasse.ports.job_lists import JobLists
from wrasse.ports.jobs import Delete, JobFilter, JobQueue, Place
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import pages

_ALIASES = {"dlq": "dead_letter"}


async def admin(asked: Asked, orders: AdminOrders) -> None:
    """Runs one admin command and writes its one JSON document."""
    if orders.command == "bench":
        await _bench(asked, orders)
        return
    if orders.command.startswith("purge") and not (orders.yes or orders.dry_run):
        raise Refused(f"{orders.command} deletes jobs for good", do="look with --dry-run, then say --yes")
    config = asked.config()
    async with opened(config) as store:
        if orders.command == "purge-dlq":
            write_json(await _purge_dead(store.jobs, _dead_key(store), dry=orders.dry_run))
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
            "jobs do not lie in Redis lists here, of which --role=admin tells",
            do="use `wrasse jobs stats`, `wrasse jobs peek` or `wrasse jobs purge`",
        )
    return store.lists


def _dead_key(store: JobStore) -> str:
    return "dead" if store.lists is None else store.lists.names["dead_letter"]


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
    """Page by page and each under its precondition: what dies meanwhile is deleted too, what is requeued is not."""
    count = 0
    with progress("dead jobs") as seen:
        async for page in pages(lambda after: jobs.page(Place.DEAD, JobFilter(), after, PAGE)):
            if dry:
                count += len(page)
            elif page.items:
                gone = await jobs.delete([Delete(state.hold, Place.DEAD) for state in page])
                count += sum(outcome is Outcome.DONE for outcome in gone)
            seen(len(page))
    return {"purged": count, "keys": {key: count}, "dry_run": dry}


async def _purge_all(lists: JobLists, limiter: str, orders: AdminOrders) -> dict[str, object]:
    purged = await lists.purge(limiter, force=orders.force, dry=orders.dry_run)
    if purged.alive and not (orders.force or orders.dry_run):
        raise Refused(
            f"{len(purged.alive)} workers hold jobs and beat, such as {purged.alive[0]}",
            do="stop them first, or say --force: their jobs are then lost",
        )
    answer: dict[str, object] = {"purged": len(purged.keys), "keys": purged.keys, "dry_run": orders.dry_run}
    return {**answer, "heartbeats": purged.alive} if purged.alive else answer


async def _bench(asked: Asked, orders: AdminOrders) -> None:
    done = await bench(asked, orders)
    write_json(done.answer())
    if done.completed < done.count:
        raise WrasseError(
            f"only {done.completed} of {done.count} jobs were done within {format_duration(orders.bench.timeout)}",
            do="see the rate in the answer; ask for fewer, or give it longer with --bench-timeout",
        )
