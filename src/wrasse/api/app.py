"""App: wrasse in a program. `connect` returns one; nothing is opened before it is used.

app = wrasse.connect()                                   # or a settings file, or the URL of a store

@app.handler("resize")
async def resize(job): ...

await app.jobs.enqueue("resize", {"path": "a.png"})
await app.worker().run()
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from wrasse.api.jobs import Jobs
from wrasse.api.streams import AppStreams
from wrasse.clock import Clock, SystemClock
from wrasse.config.backend_urls import is_nats
from wrasse.config.load import Config, load
from wrasse.engine.loop import Engine
from wrasse.errors import UnknownName, UsageError, first_error
from wrasse.jobs.handlers import Function, Middleware, Registry
from wrasse.jobs.new_job import Duration, as_duration, encoded
from wrasse.jobs.periodic import Cron, Every, Missed, Periodic, parse_cron
from wrasse.jobs.producer import Producer
from wrasse.jobs.rate_limiter import SharedRate
from wrasse.jobs.retry import Retry
from wrasse.jobs.scheduler import PeriodicScheduler
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.worker import Worker
from wrasse.leases.lease_scope import LeaseOptions, Operations, lease_key, transact
from wrasse.leases.names import Xids
from wrasse.ports.backend import StreamStore
from wrasse.ports.jobs import JobQueue
from wrasse.runtime.backends import Stores
from wrasse.runtime.engine import JOB_SWEEPS, open_engine
from wrasse.runtime.leases import lease_client
from wrasse.runtime.open_ports import JOBS, LEASES, STREAMS, OpenPorts, open_homes
from wrasse.runtime.signals import on_stop
from wrasse.runtime.worker import (
    WorkerRuntime,
    build_handlers,
    build_pace,
    build_producer,
    build_scheduler,
    build_worker,
    configured,
    owner_name,
)

_URL = re.compile(r"[a-z][a-z0-9+.-]+:")
_HANDLER = TypeVar("_HANDLER", bound=Function)
_MIDDLEWARE = TypeVar("_MIDDLEWARE", bound=Middleware)
_log = logging.getLogger("wrasse.app")


class Registering(ABC):
    """What a program registers, with or without an event loop: handlers, middleware and periodic jobs."""

    def __init__(self, config: Config, registry: Registry) -> None:
        self.config, self.registry = config, registry

    @abstractmethod
    def configure(self, config: Config) -> None:
        """Uses these settings, if nothing is open yet: those of the `wrasse run` that runs this App's handlers."""

    def handler(self, kind: str = "", *, retry: Retry | None = None) -> Callable[[_HANDLER], _HANDLER]:
        """Registers a function as the handler of a kind; async or plain. No kind: jobs without one. "*": the rest.
        `retry`: how often, how soon and after which exceptions a failed job of this kind is retried."""

        def register(function: _HANDLER) -> _HANDLER:
            self.registry.add(kind, function, retry)
            return function

        return register

    def middleware(self, function: _MIDDLEWARE) -> _MIDDLEWARE:
        """Registers `async def m(job, call_next)`, which is called around every handler, async or plain: it awaits
        `call_next(job)` for the result, or does not. The first registered is the outermost."""
        return self.registry.wrap(function)

    def every(
        self,
        interval: Duration,
        *,
        name: str = "",
        data: object = None,
        priority: str | None = None,
        missed: str = "once",
    ) -> Callable[[_HANDLER], _HANDLER]:
        """Runs the function as a job at every multiple of an interval, once however many processes are up. `missed`:
        what is done with slots at which none was up: skip, once or all."""
        return self._add_periodic(Every(as_duration(interval)), name, data, priority, missed)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        name: str = "",
        data: object = None,
        priority: str | None = None,
        missed: str = "once",
    ) -> Callable[[_HANDLER], _HANDLER]:
        """Runs the function as a job at every slot of a cron expression, once however many processes are up."""
        return self._add_periodic(parse_cron(expression, tz), name, data, priority, missed)

    def _add_periodic(
        self, schedule: Cron | Every, name: str, data: object, priority: str | None, missed: str
    ) -> Callable[[_HANDLER], _HANDLER]:
        if missed not in [*Missed]:
            raise UnknownName(missed, [*Missed], what="policy for missed slots")
        if priority is not None and priority not in self.config.settings.worker.queues:
            raise UnknownName(priority, self.config.settings.worker.queues, what="priority")

        def register(function: _HANDLER) -> _HANDLER:
            called = name or getattr(function, "__name__", "")
            self.registry.repeat(Periodic(called, schedule, called, encoded(data), priority, Missed(missed)))
            self.registry.add(called, function)
            return function

        return register


class App(Registering):
    """The parts of wrasse a program uses, on one configuration."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        super().__init__(config, Registry())
        self._clock = clock or SystemClock()
        self._stores = Stores.of(config.settings.worker, self._clock)
        self._opening = asyncio.Lock()
        self._opened: OpenPorts | None = None
        self._producer: Producer | None = None
        self._remote: Operations | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.tally = Tally()
        self.jobs = Jobs(self._jobs, self._pace)
        self.streams = AppStreams(self._streams, self._clock)
        self.on = self.streams.on

    def configure(self, config: Config) -> None:
        if self._opened is None:
            self.config, self._stores = config, Stores.of(config.settings.worker, self._clock)

    async def repeater(self) -> PeriodicScheduler:
        """The scheduler of periodic jobs, for a process without a worker: `await (await app.repeater()).run()`."""
        settings = self.config.settings
        registry = configured(settings, self.registry)
        return build_scheduler(settings, await self.open(JOBS), self._clock, self.tally, registry)

    def worker(self, concurrency: int | None = None, *, signals: bool = True) -> AppWorker:
        """A worker with this app's handlers and those of the settings. Without `signals` it leaves SIGTERM and SIGINT
        to the program it is part of, which then calls `stop`."""
        return AppWorker(self, concurrency, signals)

    def lease(
        self,
        key: str,
        *,
        ttl: Duration = "30s",
        wait: Duration | None = None,
        owner: str | None = None,
        namespace: str = "",
    ) -> lease_key:
        """Takes the lease of a key for the length of an `async with`. It is renewed automatically, and the body is
        cancelled if it is lost. `wait`: how long to wait for it; without one there is no limit. What the body saves
        with `lease.save` is committed when it ends without an error."""
        waits = None if wait is None else as_duration(wait)
        options = LeaseOptions(owner or owner_name(), as_duration(ttl), namespace, waits)
        return lease_key(self._leases, key, options, self._clock)

    def transaction(
        self,
        *,
        ttl: Duration = "30s",
        wait: Duration | None = "30s",
        owner: str | None = None,
        namespace: str = "",
    ) -> transact:
        """Several keys that change together or not at all, for the length of an `async with`: `change.lease(key)`
        enlists one. What the body saves is committed when it ends without an error, on all keys or on none. `wait`: how
        long to wait for each key, which ends a deadlock of two transactions."""
        waits = None if wait is None else as_duration(wait)
        options = LeaseOptions(owner or owner_name(), as_duration(ttl), namespace, waits)
        return transact(self._leases, Xids(self._clock).unmarked(), options, self._clock)

    async def engine(self) -> Engine:
        """The engine with every configured sweep: run it, or request a plan."""
        engine, _ = await open_engine(self.config, self._stores, self._clock, into=await self.open())
        return engine

    async def run_pending(self) -> int:
        """Runs every job that is ready now, in this loop, until none is; returns the number of attempts. For tests of
        handlers."""
        return await (await self._build_worker(None)).run_pending()

    async def open(self, *needs: str) -> OpenPorts:
        """Opens what is needed and not yet open: jobs, records, streams, objects, engine, leases."""
        async with self._opening:
            loop = asyncio.get_running_loop()
            if self._opened is None:
                self._opened, self._loop = await open_homes(self.config, self._stores), loop
            if self._loop is not loop:
                raise UsageError(
                    "this app was opened in another event loop",
                    do="use one asyncio.run() for everything, close the app before, or use wrasse.sync",
                )
            return await open_homes(self.config, self._stores, *needs, into=self._opened)

    async def close(self) -> None:
        """Closes what was opened; the app may be used again."""
        self._opened = self._producer = self._loop = self._remote = None
        await self._stores.close()

    def forget(self) -> object:
        """Drops what was opened without closing it, in a forked process: it belongs to the parent, and must stay alive
        and unused here. The app opens its own on next use."""
        left = (self._stores, self._opened, self._producer, self._loop, self._remote)
        self._stores = Stores.of(self.config.settings.worker, self._clock)
        self._opening = asyncio.Lock()
        self._opened = self._producer = self._loop = self._remote = None
        return left

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _leases(self) -> Operations:
        """Leases in the backend of records, or at the lease server of the settings."""
        own = self.config.settings.leases
        if not own.server:
            leasing = (await self.open(LEASES)).leasing
            assert leasing is not None, "an opened port has leases"
            return leasing.leases
        await self.open()
        if self._remote is None:
            client = lease_client(own, self._clock)
            self._stores.finish_first(client.close)
            self._remote = client
        return self._remote

    async def _streams(self) -> StreamStore:
        opened = self._opened
        if opened is None or self._loop is not asyncio.get_running_loop() or STREAMS not in opened.stores:
            opened = await self.open(STREAMS)
        return opened.streams

    async def _jobs(self) -> tuple[Producer, JobQueue]:
        opened = self._opened
        if opened is None or self._loop is not asyncio.get_running_loop() or JOBS not in opened.stores:
            opened = await self.open(JOBS)
        if self._producer is None:
            self._producer = build_producer(self.config.settings, opened, self._clock, self.tally)
        return self._producer, opened.queue

    async def _pace(self, rate: int) -> SharedRate:
        return build_pace(self.config.settings, await self.open(JOBS), rate)

    async def _build_worker(self, concurrency: int | None) -> WorkerRuntime:
        opened = await self.open(JOBS)
        handlers = build_handlers(configured(self.config.settings, self.registry))
        return build_worker(self.config, opened, self._clock, handlers, self.tally, concurrency)


class AppWorker:
    """A worker in a program, with the sweeps that rescue the jobs of dead workers."""

    def __init__(self, app: App, concurrency: int | None, signals: bool = True) -> None:
        self._app = app
        self._concurrency = concurrency
        self._signals = signals
        self._worker: Worker | None = None
        self._engine: Engine | None = None
        self._repeater: PeriodicScheduler | None = None
        self._stopped = False

    async def run(self) -> None:
        """Works until it is stopped or cancelled. SIGTERM and SIGINT stop it within `worker.grace` if `signals`."""
        app = self._app
        settings = app.config.settings
        with on_stop(lambda _: self.stop(settings.worker.grace), heard=self._signals):
            working = await app._build_worker(self._concurrency)
            self._worker = working.worker
            engine, _ = await open_engine(app.config, app._stores, app._clock, JOB_SWEEPS, await app.open())
            self._engine = engine
            repeater = self._repeater = await app.repeater()
            if self._stopped:
                return
            try:
                async with asyncio.TaskGroup() as group:
                    others = [group.create_task(engine.run()), group.create_task(repeater.run())]
                    try:
                        await working.run()
                    finally:
                        engine.stop()
                        repeater.stop()
                        await asyncio.wait(others)
            except BaseExceptionGroup as errors:
                raise first_error(errors) from errors

    def stop(self, grace: Duration = "30s") -> None:
        """Ends `run`: nothing new is claimed, and running handlers have `grace` to finish."""
        self._stopped = True
        if self._worker is not None and self._engine is not None:
            self._engine.stop()
            self._worker.stop(as_duration(grace))
        if self._repeater is not None:
            self._repeater.stop()


def connect(where: str | Path | None = None, *, clock: Clock | None = None) -> App:
    """An App on a settings file, on the store of a URL (`sqlite:wrasse.db`, `redis://host:6379/0`,
    `nats://host:4222`, `s3://bucket`, `file:folder`, `memory:`), or on `wrasse.yaml` and the embedded default. Nothing
    is opened yet."""
    if isinstance(where, str) and _URL.match(where):
        # The program's URL decides: neither a file nor another program's variables apply.
        environ = {name: text for name, text in os.environ.items() if name.startswith("WRASSE_")}
        environ.pop("WRASSE_CONFIG", None)
        # NATS has no job lists, and an S3 bucket no streams: their use is refused there.
        ports = ("records", "streams") if is_nats(where) else ("jobs", "records", "streams")
        ports = ("jobs", "records", "objects") if where.startswith(("s3:", "file:")) else ports
        everything = {f"backends.{port}": where for port in ports}
        config = load(os.devnull, environ=environ, program=everything)
    else:
        config = load(where)
    for warning in config.warnings:
        _log.warning(warning)
    return App(config, clock)


_default: App | None = None


def lease(
    key: str,
    *,
    ttl: Duration = "30s",
    wait: Duration | None = None,
    owner: str | None = None,
    namespace: str = "",
) -> lease_key:
    """`App.lease` on the default configuration, opened once for the process."""
    global _default
    if _default is None:
        _default = connect()
    return _default.lease(key, ttl=ttl, wait=wait, owner=owner, namespace=namespace)
