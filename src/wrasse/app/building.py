"""From settings and open backends to the things that run: the engine with sweeps and guards, the worker, the lessor.

A sweep's fields without a default are ports and are filled by their annotation; its other fields are its settings.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from wrasse.app.app_streams import AppStreams, Registered
from wrasse.app.config import Config
from wrasse.app.leasing import open_leasing
from wrasse.app.new_job import as_periodic
from wrasse.app.orphaning import ORPHANS as ORPHAN_SWEEP, instance_of, open_desk
from wrasse.app.own_sweeps import load_sweep
from wrasse.app.retention_building import build_stream_sweep, stream_sweeps
from wrasse.app.retention_settings import STREAM_SWEEPS
from wrasse.app.settings import CircuitBreaker, Settings
from wrasse.app.store_url import parse_store
from wrasse.app.sweep_ports import (
    ARCHIVES,
    ENGINE as ENGINE,
    JOBS as JOBS,
    LEASES,
    OBJECTS,
    ORPHANS,
    RECORDS,
    STREAMS as STREAMS,
    TASKS as TASKS,
    Opened as Opened,
    fill_ports,
    hearts,
    needs_of,
    scheduled,
    stray_search,
    sweep_home,
    swept_home,
)
from wrasse.app.task_opening import open_tasks, task_home
from wrasse.app.task_sweeping import build_task_sweeps
from wrasse.app.traces import Traces, open_traces
from wrasse.app.wiring import Stores
from wrasse.breaker import BreakerSettings
from wrasse.clock import Clock, SystemClock
from wrasse.engine.guard import MassDeath, Traffic
from wrasse.engine.loop import Engine, Scheduled
from wrasse.engine.pulses import backend_guards
from wrasse.engine.run import AnySweep
from wrasse.errors import UsageError
from wrasse.jobs.beats import Beats, ChildBeats, LoopBeats
from wrasse.jobs.breakers import SHUT_QUEUES, ShutQueues
from wrasse.jobs.exec import Command
from wrasse.jobs.handler_url import is_url
from wrasse.jobs.handlers import ANY, Function, Handlers, load as load_handler
from wrasse.jobs.pacing import Pace
from wrasse.jobs.producer import Producer
from wrasse.jobs.rates import parse_rate, parse_weight
from wrasse.jobs.record_core.limiter import BUDGETS, RecordedLimiter
from wrasse.jobs.registry import Registry
from wrasse.jobs.repeating import PERIODIC, Repeater
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker import Worker, WorkerSettings
from wrasse.leases.core import leases_in
from wrasse.orphans.desk import Desk
from wrasse.ports.guard import Guard
from wrasse.ports.jobs import JobQueue
from wrasse.sweeps import CATALOGUE
from wrasse.sweeps.aged_records import AgedRecords
from wrasse.sweeps.expired_leases import ExpiredLeases
from wrasse.sweeps.open_transactions import OpenTransactions
from wrasse.sweeps.orphan_archives import OrphanArchives
from wrasse.sweeps.spent_decisions import SpentDecisions
from wrasse.sweeps.stuck_jobs import StuckJobs

DEFAULT_LEASES = leases_in("default")
JOB_SWEEPS = ("stuck_jobs", "finished_jobs")  # what every worker process also runs
LEASE_SWEEPS = (  # what every process that serves leases also runs
    ExpiredLeases.name,
    OpenTransactions.name,
    SpentDecisions.name,
    AgedRecords.name,
)
IDLE = "idle"  # the group of sweeps that keep away from traffic


async def open_homes(config: Config, stores: Stores, *needs: str, into: Opened | None = None) -> Opened:
    """Opens what is needed and not yet open; equal backends once."""
    where, home = config.homes, task_home(config)
    opened = into or Opened(types=tuple(config.settings.task_types))
    if home is not None and opened.open_tasks is None:
        opened.open_tasks = partial(_open_tasks, config, stores, opened)
    for need in needs:
        port, _, root = need.partition("/")
        if port in (JOBS, RECORDS, ENGINE):
            opened.stores[port] = await stores.open(getattr(where, port))
        elif port == STREAMS:
            opened.stores[port] = await stores.open_streams(where.streams)
        elif port == OBJECTS:
            opened.object_store = await stores.open_object_store(where.objects)
        elif port == LEASES and opened.leasing is None:
            leasing = await open_leasing(config, stores)
            opened.stores[RECORDS] = await stores.open(where.records)
            # Parts open side by side; the API and the idle sweeps must count the same traffic.
            opened.leasing = opened.leasing or leasing
        elif port == TASKS and opened.open_tasks is not None:
            await opened.open_tasks()
            opened.stores[RECORDS] = await stores.open(where.records)
        elif port == ORPHANS:
            for name in [root] if root else [*config.settings.orphans]:
                if name not in opened.desks:
                    opened.desks[name], beside = await open_desk(name, config, stores, stores.clock)
                    opened.sweep_homes[name] = sweep_home(beside, stores.clock)
    if opened.engine_journal is None and ENGINE in needs:
        journal = await stores.open_journal(where.journal)
        opened.engine_journal = opened.engine_journal or journal
    return opened


def is_served(config: Config, need: str) -> bool:
    """Whether a server is part of this need, which a daemon waits for."""
    where, settings = config.homes, config.settings
    port, _, root = need.partition("/")
    if port == ORPHANS:
        own = settings.orphans[root]
        urls: tuple[str, ...] = (own.store or where.objects, own.database, where.sightings[root].opened())
    elif port == ARCHIVES:
        urls = tuple(home.opened() for _, home in where.archives)
    elif port == TASKS:
        urls = (where.records, where.streams)
    else:
        urls = (getattr(where, RECORDS if port == LEASES else port),)
    return any(url.startswith(("postgres", "mysql", "mariadb")) or parse_store(url).served for url in urls)


async def _open_tasks(config: Config, stores: Stores, opened: Opened) -> JobQueue:
    if opened.tasks is None:
        home = task_home(config)
        assert home is not None, "who asks for tasks has types of them"
        tasks = await open_tasks(home, stores)
        opened.tasks = opened.tasks or tasks  # another task may have been quicker
    return opened.tasks


@dataclass(frozen=True, slots=True)
class Family:
    """Sweeps that need the same backends: they start together, and wait for no other's backend."""

    name: str
    needs: tuple[str, ...]
    build: Callable[[Opened], Sequence[Scheduled]]


def families(config: Config, clock: Clock, only: Collection[str] | None = None) -> Sequence[Family]:
    """The sweeps named in `only`, or all: wrasse's, then one's own."""
    settings, where = config.settings, config.homes
    wanted = [name for name in config.catalogue if only is None or name in only]
    apart = (ORPHAN_SWEEP, *LEASE_SWEEPS, *STREAM_SWEEPS)
    found = []
    # Leases at leases.server are swept there.
    leases = [name for name in LEASE_SWEEPS if name in wanted and not settings.leases.server]
    if leases:
        found.append(
            Family("leases", (LEASES,), lambda opened: [build_lease_sweep(n, settings, opened, clock) for n in leases])
        )
    streams = [name for name in STREAM_SWEEPS if name in wanted and where.serves(STREAMS)]
    if streams:
        found.append(Family("streams", (STREAMS,), lambda opened: _stream_sweeps(streams, settings, opened, clock)))
    for name in wanted:
        if name not in apart:
            own = settings.sweeps[name]
            kind = load_sweep(own.use) if own.use else CATALOGUE[name].kind
            build = partial(_one, name, settings, clock)
            # Where no backend has jobs, there is nothing to sweep; a sweep of one's own is refused.
            if own.use or where.serves(JOBS):
                found.append(Family(name, needs_of(kind), build))
    if ORPHAN_SWEEP in wanted:
        for root in settings.orphans:
            build = partial(_orphans, root, settings, clock)
            found.append(Family(instance_of(root), (f"{ORPHANS}/{root}",), build))
    if task_home(config) is not None and (tasks := [name for name in JOB_SWEEPS if name in wanted]):
        build = partial(_task_sweeps, tasks, settings, clock)
        found.append(Family("tasks", (TASKS,), build))
    return found


def _one(name: str, settings: Settings, clock: Clock, opened: Opened) -> Sequence[Scheduled]:
    return (build_sweep(name, settings, opened, clock),)


def _orphans(root: str, settings: Settings, clock: Clock, opened: Opened) -> Sequence[Scheduled]:
    return (build_orphans(opened.desks[root], settings, opened, clock),)


def _task_sweeps(names: Sequence[str], settings: Settings, clock: Clock, opened: Opened) -> Sequence[Scheduled]:
    return tuple(build_task_sweeps(settings, opened, clock, names))


def _stream_sweeps(
    names: Sequence[str], settings: Settings, opened: Opened, clock: Clock
) -> Sequence[Scheduled]:
    there = [name for name in stream_sweeps(settings, opened) if name in names]
    return [build_stream_sweep(name, settings, opened, clock) for name in there]


async def open_engine(
    config: Config, stores: Stores, clock: Clock, only: Collection[str] | None = None, into: Opened | None = None
) -> tuple[Engine, Opened]:
    """The engine with the sweeps named in `only`, or with all, and what they needed."""
    found = families(config, clock, only)
    needs = [need for family in found for need in family.needs]
    opened = await open_homes(config, stores, ENGINE, *needs, into=into)
    engine = build_engine(config.settings, opened, clock, owner_name())
    for family in found:
        engine.add(family.build(opened))
    return engine, opened


def owner_name() -> str:
    """Who we are to others: a name no two processes ever share."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"


def build_engine(settings: Settings, opened: Opened, clock: Clock, owner: str) -> Engine:
    """The engine, without sweeps."""
    home = sweep_home(opened.engine, clock)
    return Engine(
        (),
        lessor=home.lessor,
        state=home.state,
        journal=opened.journal,
        clock=clock,
        owner=owner,
        lease_ttl=settings.engine.lease,
        journal_kept=settings.engine.journal_kept,
    )


def build_sweep(name: str, settings: Settings, opened: Opened, clock: Clock) -> Scheduled:
    """One sweep with its settings, budget and guards."""
    own = settings.sweeps[name]
    kind = load_sweep(own.use) if own.use else CATALOGUE[name].kind
    sweep = kind(**fill_ports(kind, opened), **own.fields)
    felt = [backend_guards(heart, clock, skew_max=settings.engine.skew_max) for heart in hearts(kind, opened)]
    guards: tuple[Guard, ...] = tuple(guard for each in felt for guard in each)
    if isinstance(sweep, StuckJobs):
        if opened.jobs.strays is not None:
            sweep = replace(sweep, search=stray_search(settings.reaper, opened.jobs.strays, clock))
        # Silence proves nothing while nobody could be heard, so these hold for one silence after that.
        silent = backend_guards(opened.jobs, clock, sweep.silence, skew_max=settings.engine.skew_max)
        guards = (*silent, MassDeath(opened.jobs.jobs, sweep.silence))
    return scheduled(sweep, own, guards, name, swept_home(kind, opened, clock))


def build_orphans(desk: Desk, settings: Settings, opened: Opened, clock: Clock) -> Scheduled:
    """The sweep of one root of orphans."""
    own, root = settings.sweeps[ORPHAN_SWEEP], settings.orphans[desk.root.name]
    seed = timedelta(seconds=settings.gc.interval) if root.preset else timedelta(0)
    felt = backend_guards(opened.engine, clock, skew_max=settings.engine.skew_max)
    batch_max = own.fields["batch_max"]
    assert isinstance(batch_max, int), "a number by its type"
    sweep, name = OrphanArchives(desk, batch_max), desk.root.name
    guards, home = (*felt, *desk.guards), opened.sweep_homes[name]
    return scheduled(sweep, own, guards, instance_of(name), home, interval=root.interval or seed or None)


def build_lease_sweep(name: str, settings: Settings, opened: Opened, clock: Clock) -> Scheduled:
    """A sweep of leases. Those of the idle group keep away from traffic; retention does not wait for it."""
    own, leasing = settings.sweeps[name], opened.leasing
    assert leasing is not None, "who builds it has leases"
    guards = backend_guards(opened.records, clock, skew_max=settings.engine.skew_max)
    idle: dict[str, AnySweep] = {
        ExpiredLeases.name: ExpiredLeases(leasing.leases, leasing.namespaces),
        OpenTransactions.name: OpenTransactions(leasing.leases),
        SpentDecisions.name: SpentDecisions(leasing.leases),
    }
    group = IDLE
    if name == AgedRecords.name:
        retention = own.fields["retention"]
        assert isinstance(retention, timedelta), "a time by its type"
        sweep: AnySweep = AgedRecords(leasing.leases, leasing.namespaces, retention)
        group = ""
    else:
        sweep = idle[name]
        guards = (*guards, Traffic(leasing.activity, settings.leases.idle_sweep_grace, clock))
    return scheduled(sweep, own, guards, name, sweep_home(opened.records, clock), group=group)


@dataclass(frozen=True, slots=True)
class Working:
    """A worker, who beats for it, and who tells which queues it leaves alone."""

    worker: Worker
    beats: Beats
    telling: ShutQueues
    traces: Traces | None = None

    async def run(self) -> None:
        """Works until the worker is stopped."""
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(self.telling.run())
            try:
                await self.worker.run()
            finally:
                telling.cancel()
                if self.traces is not None:
                    await self.traces.close()

    async def run_pending(self) -> int:
        """Runs what is ready now; see the worker's method."""
        try:
            return await self.worker.run_pending()
        finally:
            if self.traces is not None:
                await self.traces.close()

    def wrong(self) -> str | None:
        """Why the worker is of no use now, if it is not."""
        return None if self.beats.state.beating else "no beats go out, so it takes nothing"


def build_worker(
    config: Config, opened: Opened, clock: Clock, handlers: Handlers, tally: Tally, concurrency: int | None = None
) -> Working:
    """A worker for the configured queues."""
    own = config.settings.worker
    settings = WorkerSettings(
        queues=tuple(dict.fromkeys(own.queues[name] for name in own.priorities)),
        concurrency=own.count if concurrency is None else concurrency,
        silence=own.heartbeat_ttl,
        timeout=own.timeout,
        retry=RetryPolicy(own.max_retries, own.backoff.base, own.backoff.max),
        wait=own.brpoplpush_timeout,
        weights={own.queues[name]: parse_weight(text) for name, text in own.weights.items()},
        rates=tuple(parse_rate(queue, text) for queue, text in own.rates.items()),
        breaker=breaker_settings(config.settings.circuit_breaker),
        breaker_pause=own.breaker_pause,
    )
    url = parse_store(config.homes.jobs)
    # What lives in this process's memory no child could reach. A path is made absolute: handlers may change directory.
    beats: Beats = (
        LoopBeats(opened.jobs.jobs, clock) if url.scheme == "memory" else ChildBeats(url.resolved().url, tally)
    )
    traces = open_traces(config.settings.observability.tracing)
    worker = Worker(opened.jobs.jobs, handlers, clock, beats, settings, tally, traces)
    assert worker.breakers is not None, "the settings of a worker have those of its breakers"
    shut = opened.jobs.records(SHUT_QUEUES)
    telling = ShutQueues(worker.breakers, worker.info.id, opened.jobs.jobs, shut, clock)
    return Working(worker, beats, telling, traces)


def breaker_settings(own: CircuitBreaker) -> BreakerSettings:
    """What the settings say of breakers."""
    return BreakerSettings(own.failure_threshold, own.window, own.cooldown_period, own.min_samples)


def build_producer(settings: Settings, opened: Opened, clock: Clock, tally: Tally) -> Producer:
    """What puts jobs into the queue of their priority."""
    return Producer(
        opened.queue,
        clock,
        queues=settings.worker.queues,
        priority=settings.producer.default_priority,
        tally=tally,
        keep=settings.worker.result_kept,
    )


def build_pace(settings: Settings, opened: Opened, rate: int) -> Pace:
    """A rate per second that everybody who puts into the same backend shares."""
    store = opened.jobs
    limiter = store.limiter or RecordedLimiter(store.records(BUDGETS))
    return Pace(limiter, settings.producer.rate_limit_key, rate)


def configured(
    settings: Settings, own: Registry | None = None, *, handler: str = "", command: str = ""
) -> Registry:
    """What a program registered and what settings or the command line name; the latter take the place of the settings'
    default handler. A kind has only one handler, a name one periodic job."""
    registry = Registry()
    if own is not None:
        registry.include(own)
    for kind, text in settings.worker.handlers.items():
        registry.add(kind, _handler(text, settings))
    for name, each in settings.periodic.items():
        registry.repeat(as_periodic(name, each))
    if not (handler or command):
        handler, command = settings.worker.handler, settings.worker.exec
    if handler:
        registry.include(_named(handler, settings))
    elif command:
        registry.add(ANY, Command(command, settings.worker.exec_env))
    return registry


def build_handlers(registry: Registry) -> Handlers:
    """The handlers of a worker, with what wraps them."""
    handlers = Handlers(registry.middleware)
    for kind, function in registry.functions.items():
        handlers.add(kind, function, registry.retries.get(kind))
    return handlers


def build_repeater(settings: Settings, opened: Opened, clock: Clock, tally: Tally, registry: Registry) -> Repeater:
    """What puts periodic jobs."""
    producer = build_producer(settings, opened, clock, tally)
    return Repeater(registry.periodic.values(), producer, opened.jobs.records(PERIODIC), clock)


def message_handlers(text: str) -> Sequence[Registered]:
    """What the App that `module:name` names has registered for messages; nothing if it names a function."""
    streams = getattr(_imported(text), "streams", None)
    return tuple(streams.handlers) if isinstance(streams, AppStreams) else ()


def _imported(text: str) -> object:
    """What `module:name` names, where the module was imported already."""
    module, _, path = text.partition(":")
    found: object = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _handler(text: str, settings: Settings) -> Function:
    """The function that `module:name` names, or what posts to a URL."""
    if not is_url(text):
        return load_handler(text)
    # What speaks HTTP is imported only where it is used: it takes longer than all the rest.
    from wrasse.jobs.posting import Post, PostSettings

    own = settings.worker.http
    return Post(text, SystemClock(), PostSettings(own.refused == "bury", own.authorization, own.connect_timeout))


def _named(text: str, settings: Settings) -> Registry:
    """The function or URL that a text names, for every kind; or, where it names an App, all that it has registered."""
    registry = Registry()
    try:
        registry.add(ANY, _handler(text, settings))
    except UsageError:
        theirs = getattr(_imported(text), "registry", None)
        if isinstance(theirs, Registry):
            return theirs
        raise
    return registry
