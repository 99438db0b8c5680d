"""Builds workers, producers, periodic jobs and their handlers from settings and open backends."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from wrasse.api.streams import AppStreams
from wrasse.breaker import BreakerSettings
from wrasse.clock import Clock, SystemClock
from wrasse.config.load import Config
from wrasse.config.settings import CircuitBreaker, Settings
from wrasse.config.urls import parse_store
from wrasse.errors import UsageError
from wrasse.jobs.command_handler import Command
from wrasse.jobs.handler_name import is_url
from wrasse.jobs.handlers import ANY, Function, Handlers, Registry, load as load_handler
from wrasse.jobs.producer import Producer, ProducerOptions
from wrasse.jobs.rate_limiter import BUDGETS, RecordLimiter, SharedRate
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.scheduler import PERIODIC, PeriodicScheduler
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.breakers import SHUT_QUEUES, ShutQueues
from wrasse.jobs.worker.context import Telemetry, WorkerSettings
from wrasse.jobs.worker.heartbeat import ChildHeartbeat, Heartbeat, LoopHeartbeat
from wrasse.jobs.worker.queue_selector import parse_rate, parse_weight
from wrasse.jobs.worker.worker import Worker
from wrasse.leases.core import leases_in
from wrasse.observability.tracing import Traces, open_traces
from wrasse.runtime.open_ports import (
    ENGINE as ENGINE,
    JOBS as JOBS,
    STREAMS as STREAMS,
    TASKS as TASKS,
    OpenPorts as OpenPorts,
)
from wrasse.runtime.stream_tasks import task_home, threshold
from wrasse.streams.consumer import StreamSubscription

DEFAULT_LEASES = leases_in("default")


def owner_name() -> str:
    """A unique name of this process as an owner."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class WorkerRuntime:
    """A worker, its heartbeat, and the records of its open breakers."""

    worker: Worker
    heartbeat: Heartbeat
    breaker_records: ShutQueues
    traces: Traces | None = None

    async def run(self) -> None:
        """Works until the worker is stopped."""
        async with asyncio.TaskGroup() as group:
            breaker_records = group.create_task(self.breaker_records.run())
            try:
                await self.worker.run()
            finally:
                breaker_records.cancel()
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
        """Why the worker cannot work now; None if it can."""
        return None if self.heartbeat.state.sending else "no heartbeats go out, so it claims nothing"


def build_worker(
    config: Config, opened: OpenPorts, clock: Clock, handlers: Handlers, tally: Tally, concurrency: int | None = None
) -> WorkerRuntime:
    """A worker for the configured queues."""
    own = config.settings.worker
    settings = WorkerSettings(
        queues=tuple(dict.fromkeys(own.queues[name] for name in own.priorities)),
        concurrency=own.count if concurrency is None else concurrency,
        heartbeat_timeout=own.heartbeat_ttl,
        timeout=own.timeout,
        retry=RetryPolicy(own.max_retries, own.backoff.base, own.backoff.max),
        wait=own.brpoplpush_timeout,
        weights={own.queues[name]: parse_weight(text) for name, text in own.weights.items()},
        rates=tuple(parse_rate(queue, text) for queue, text in own.rates.items()),
        breaker=breaker_settings(config.settings.circuit_breaker),
        breaker_pause=own.breaker_pause,
    )
    url = parse_store(config.homes.jobs)
    # A child process cannot reach this one's memory. A path is made absolute: handlers may change directory.
    heartbeat: Heartbeat = (
        LoopHeartbeat(opened.jobs.jobs, clock) if url.scheme == "memory" else ChildHeartbeat(url.resolved().url, tally)
    )
    traces = open_traces(config.settings.observability.tracing)
    worker = Worker(
        jobs=opened.jobs.jobs,
        handlers=handlers,
        clock=clock,
        heartbeat=heartbeat,
        settings=settings,
        telemetry=Telemetry(tally, traces),
    )
    assert worker.breakers is not None, "these settings have a breaker"
    shut = opened.jobs.records(SHUT_QUEUES)
    breaker_records = ShutQueues(
        breakers=worker.breakers, worker=worker.info.id, jobs=opened.jobs.jobs, records=shut, clock=clock
    )
    return WorkerRuntime(worker, heartbeat, breaker_records, traces)


def breaker_settings(own: CircuitBreaker) -> BreakerSettings:
    """The settings of breakers."""
    return BreakerSettings(own.failure_threshold, own.window, own.cooldown_period, own.min_samples)


def build_producer(settings: Settings, opened: OpenPorts, clock: Clock, tally: Tally) -> Producer:
    """A producer that enqueues jobs into the queue of their priority."""
    own = ProducerOptions(
        queues=settings.worker.queues,
        priority=settings.producer.default_priority,
        keep=settings.worker.result_kept,
    )
    return Producer(opened.queue, clock, own, tally)


def build_pace(settings: Settings, opened: OpenPorts, rate: int) -> SharedRate:
    """A rate per second that all producers on the same backend share."""
    store = opened.jobs
    limiter = store.limiter or RecordLimiter(store.records(BUDGETS))
    return SharedRate(limiter, settings.producer.rate_limit_key, rate)


def configured(settings: Settings, own: Registry | None = None, *, handler: str = "", command: str = "") -> Registry:
    """The handlers that a program registered and those of settings or command line; the latter replaces the settings'
    default handler. A kind has only one handler, a name one periodic job."""
    registry = Registry()
    if own is not None:
        registry.include(own)
    for kind, text in settings.worker.handlers.items():
        registry.add(kind, _load_handler(text, settings))
    for name, each in settings.periodic.items():
        registry.repeat(each.as_periodic(name))
    if not (handler or command):
        handler, command = settings.worker.handler, settings.worker.exec
    if handler:
        registry.include(_registry_of(handler, settings))
    elif command:
        registry.add(ANY, Command(command, settings.worker.exec_env))
    return registry


def build_handlers(registry: Registry) -> Handlers:
    """The handlers of a worker, with their middleware."""
    handlers = Handlers(registry.middleware)
    for kind, function in registry.functions.items():
        handlers.add(kind, function, registry.retries.get(kind))
    return handlers


def build_scheduler(
    settings: Settings, opened: OpenPorts, clock: Clock, tally: Tally, registry: Registry
) -> PeriodicScheduler:
    """The scheduler of periodic jobs."""
    producer = build_producer(settings, opened, clock, tally)
    return PeriodicScheduler(registry.periodic.values(), producer, opened.jobs.records(PERIODIC), clock)


def message_handlers(text: str) -> Sequence[StreamSubscription]:
    """The message handlers of the App that `module:name` names; none if it names a function."""
    streams = getattr(_imported(text), "streams", None)
    return tuple(streams.handlers) if isinstance(streams, AppStreams) else ()


def _imported(text: str) -> object:
    """The object that `module:name` names, if the module is imported already."""
    module, _, path = text.partition(":")
    found: object = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _load_handler(text: str, settings: Settings) -> Function:
    """The function that `module:name` names, or the handler of a URL."""
    if not is_url(text):
        return load_handler(text)
    # HTTP modules are imported only where they are used: their import is slow.
    from wrasse.jobs.http_handler import HttpHandler, HttpHandlerSettings

    own = settings.worker.http
    return HttpHandler(
        text, SystemClock(), HttpHandlerSettings(own.refused == "dead_letter", own.authorization, own.connect_timeout)
    )


def _registry_of(text: str, settings: Settings) -> Registry:
    """The function or URL that a text names, for every kind; or, if it names an App, all that it has registered."""
    registry = Registry()
    try:
        registry.add(ANY, _load_handler(text, settings))
    except UsageError:
        theirs = getattr(_imported(text), "registry", None)
        if isinstance(theirs, Registry):
            return theirs
        raise
    return registry


def build_task_workers(
    config: Config, opened: OpenPorts, clock: Clock, handlers: Handlers, tally: Tally
) -> tuple[Worker, ...]:
    """A worker for every type of tasks."""
    home, own = task_home(config), config.settings.worker
    if home is None or opened.tasks is None:
        return ()
    in_memory = home.records.startswith("memory:")
    breaker = breaker_settings(config.settings.circuit_breaker)
    workers = []
    for name, kind in config.settings.task_types.items():
        heartbeat: Heartbeat = LoopHeartbeat(opened.tasks, clock) if in_memory else ChildHeartbeat(home.url(), tally)
        settings = WorkerSettings(
            queues=(name,),
            concurrency=kind.workers,
            heartbeat_timeout=threshold(kind, config.settings.sweeper),
            timeout=own.timeout,
            retry=RetryPolicy(kind.max_retries, own.backoff.base, own.backoff.max),
            wait=own.brpoplpush_timeout,
            breaker=breaker,
            breaker_pause=own.breaker_pause,
        )
        workers.append(
            Worker(
                jobs=opened.tasks,
                handlers=handlers.serving(name),
                clock=clock,
                heartbeat=heartbeat,
                settings=settings,
                telemetry=Telemetry(tally),
            )
        )
    return tuple(workers)
