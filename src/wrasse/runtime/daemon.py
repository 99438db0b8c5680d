"""wrasse run: a worker, sweeps, a producer, an archiver and the status page in one process, from start to clean stop.

Errors in settings, handlers, backends or ports are reported at the start, before anything runs. The first SIGTERM or
SIGINT drains: nothing new is claimed, running handlers have `worker.grace` to finish, unfinished jobs are released, and
the process ends with 0. The second ends it at once with 1. An outage of a backend ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from wrasse import __version__
from wrasse.api.streams import listen
from wrasse.archives.archiver import Archiver
from wrasse.clock import Clock
from wrasse.config.backend_urls import table
from wrasse.config.load import Config
from wrasse.config.urls import Address, parse_address
from wrasse.engine.loop import Engine
from wrasse.errors import StoreUnavailable, UnknownName, UsageError, first_error
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.scheduler import PeriodicScheduler
from wrasse.jobs.tally import Labels, Tally
from wrasse.jobs.worker.breakers import SHUT_QUEUES
from wrasse.jobs.worker.worker import Worker
from wrasse.lease_server.access import access_of
from wrasse.lease_server.server import LeaseServer
from wrasse.observability.logs import LogHandler, LogTally, hear_strangers
from wrasse.ports.backend import Backend
from wrasse.runtime.archiver import archive_streams, build_archiver
from wrasse.runtime.backends import Stores, with_jobs
from wrasse.runtime.engine import JOB_SWEEPS, LEASE_SWEEPS, Family, build_engine, families
from wrasse.runtime.leases import check_serving
from wrasse.runtime.open_ports import (
    ARCHIVES,
    ENGINE,
    JOBS,
    LEASES,
    RECORDS,
    STREAMS,
    TASKS,
    OpenPorts,
    is_served,
    open_homes,
)
from wrasse.runtime.producer import ROLE as PRODUCER, ProducerRun, ProducerRuntime, Summary, producer_directory
from wrasse.runtime.signals import on_stop, set_switch_interval
from wrasse.runtime.worker import (
    DEFAULT_LEASES,
    WorkerRuntime,
    build_handlers,
    build_scheduler,
    build_task_workers,
    build_worker,
    configured,
    message_handlers,
    owner_name,
)
from wrasse.streams.consumer import StreamSubscription, StreamTally
from wrasse.web.server import Server
from wrasse.web.snapshot import Subject, SubjectWatch

T = TypeVar("T")
_PAUSE = 1.0  # seconds between two tries
_LOGGED_EVERY = 30  # tries between two log lines
_log = logging.getLogger("wrasse.daemon")
ROLES = ("all", "worker", "sweeper", "producer", "archiver", "leases")


class BackendWait:
    """Waits for the backends of a process's parts."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.parts: dict[str, str] = {}  # part -> the error of its backend
        self._stop = stop

    async def opened(
        self, part: str, open: Callable[[], Awaitable[T]], tried: asyncio.Event, *, served: bool
    ) -> T | None:
        """The result of `open`, as soon as its servers answer; None if the process is stopped before that. `tried` is
        set after the first try. A file is not waited for."""
        tries = 0
        try:
            while not self._stop.is_set():
                try:
                    return await self._unless_stopped(open())
                except StoreUnavailable as error:
                    if not served:
                        raise
                    self._note(part, f"{error.message}; {error.do}", tries)
                    tried.set()
                tries += 1
                await self._unless_stopped(asyncio.sleep(_PAUSE))
            return None
        finally:
            tried.set()
            self.parts.pop(part, None)

    def _note(self, part: str, error: str, tries: int) -> None:
        reported = [each for other, each in self.parts.items() if other != part]
        self.parts[part] = error
        # Of parts that wait for one server only the first logs it.
        if tries % _LOGGED_EVERY == 0 and error not in reported:
            _log.warning("waiting for the backend", extra={"role": part, "error": error})

    async def _unless_stopped(self, what: Awaitable[T]) -> T | None:
        """Waits for this, or for the end of the process: a connection attempt may take long."""
        task = asyncio.ensure_future(what)
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of the command line: roles, the handler of jobs, and whether files are watched."""

    roles: tuple[str, ...]
    handler: str = ""
    command: str = ""
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """What was started: for the start line, and for tests that need the port."""

    roles: tuple[str, ...]
    handlers: tuple[str, ...]
    queues: tuple[str, ...]
    slots: int
    sweeps: tuple[str, ...]
    streams: tuple[str, ...]
    messages: tuple[str, ...]
    producer: bool
    leases: Address | None
    backends: Mapping[str, str]
    addresses: tuple[Address, ...]

    def __str__(self) -> str:
        parts = []
        if self.slots:
            kinds = ", ".join("any kind" if kind == "*" else kind or "no kind" for kind in self.handlers)
            parts.append(f"a worker with {self.slots} slots for {', '.join(self.queues)} ({kinds})")
        if self.sweeps:
            parts.append(f"sweeps {', '.join(self.sweeps)}")
        if self.messages:
            parts.append(f"handlers of messages on {', '.join(self.messages)}")
        if self.streams:
            parts.append(f"an archiver of {', '.join(self.streams)}")
        if self.producer:
            parts.append("a producer of files")
        if self.leases:
            parts.append(f"leases on {self.leases}")
        where = f" · status on http://{self.addresses[0]}/" if self.addresses else ""
        return f"wrasse {__version__} runs {' and '.join(parts)} on {_grouped(self.backends)}{where}"

    def facts(self) -> Mapping[str, object]:
        """The same as fields of a log line."""
        return {
            "roles": self.roles,
            "slots": self.slots,
            "queues": self.queues,
            "sweeps": self.sweeps,
            "streams": self.streams,
            "leases": "" if self.leases is None else str(self.leases),
            "address": [str(address) for address in self.addresses],
            "backends": [f"{port}: {backend}" for port, backend in self.backends.items()],
            "version": __version__,
            "pid": os.getpid(),
        }


def _grouped(backends: Mapping[str, str]) -> str:
    """Each backend once, with its ports."""
    found: dict[str, list[str]] = {}
    for port, backend in backends.items():
        found.setdefault(backend, []).append(port)
    return "; ".join(f"{backend} ({', '.join(ports)})" for backend, ports in found.items())


def parse_roles(text: str) -> tuple[str, ...]:
    """The roles that a comma-separated text names."""
    roles = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for role in roles:
        if role not in ROLES:
            raise UnknownName(role, ROLES, what="role")
    if not roles:
        raise UsageError("no role is named", do=f"use one of: {', '.join(ROLES)}")
    return roles


Run = Callable[[], Coroutine[None, None, None]]
Open = Callable[..., Coroutine[None, None, OpenPorts]]


@dataclass(frozen=True, slots=True)
class DaemonPart:
    """One part of a process, the ports it needs, and a function that opens them and returns its main coroutine."""

    name: str
    needs: tuple[str, ...]
    start: Callable[[], Coroutine[None, None, Run]]


async def _nothing() -> None:
    """The main coroutine of a part that others call."""


class Daemon:
    """One process of `wrasse run`."""

    def __init__(self, config: Config, orders: RunOptions, clock: Clock, logs: tuple[LogHandler, LogTally]) -> None:
        self._config = config
        self._clock = clock
        self._log_handler, self._log_tally = logs
        self._handlers = self._with_handlers(orders)
        served = "worker" in orders.roles or ("all" in orders.roles and config.homes.serves(JOBS))
        self._works = bool(len(self._handlers)) and served
        self._sweeps = _sweeps_of(orders.roles, config)
        self._streams = self._archived_streams(orders)
        self._messages = self._listened_to(orders)
        self._messages_stopped = asyncio.Event()  # set when the handling of messages is to stop
        self._roles = orders.roles
        self._directory = producer_directory(config, orders.roles, watch=orders.watch)
        self._watch_files = orders.watch
        self._producer: ProducerRuntime | None = None
        self._tally = Tally(Labels([*config.settings.worker.queues.values(), *config.settings.task_types]))
        self._message_tallies: dict[str, StreamTally] = {}  # by group: outcomes of messages
        self._worker: WorkerRuntime | None = None
        self._task_workers: tuple[Worker, ...] = ()
        self._engine: Engine | None = None
        self._archiver: Archiver | None = None
        self._scheduler: PeriodicScheduler | None = None
        self._stopping = False
        self._opened = OpenPorts()
        self._waiting = BackendWait(self._messages_stopped)
        self._up = asyncio.Event()  # set when the first part works
        self._leases_on: Address | None = None
        # With the role `all` only if an address is set: no port is opened by default.
        self._serves_leases = "leases" in orders.roles or ("all" in orders.roles and config.named("leases.listen"))
        self._lease_server: LeaseServer | None = None
        if self._serves_leases:
            check_serving(config)

    def _archived_streams(self, orders: RunOptions) -> tuple[str, ...]:
        """The patterns of the streams that this process archives."""
        named = tuple(each.stream for each in archive_streams(self._config.settings))
        if "archiver" in orders.roles and not named:
            raise UsageError(
                "an archiver needs streams to archive",
                do='set archiver.streams, for example [{stream: "gbe.events.audit.*"}]',
            )
        return named if {"all", "archiver"} & set(orders.roles) else ()

    def _listened_to(self, orders: RunOptions) -> Sequence[StreamSubscription]:
        """The handlers of messages that this process runs: those of the App that the handler names."""
        named = orders.handler or ("" if orders.command else self._config.settings.worker.handler)
        return message_handlers(named) if named and {"all", "worker"} & set(orders.roles) else ()

    def _with_handlers(self, orders: RunOptions) -> Handlers:
        self._registry = configured(self._config.settings, handler=orders.handler, command=orders.command)
        handlers = build_handlers(self._registry)
        if "worker" in orders.roles and not len(handlers) and not self._listened_to(orders):
            raise UsageError(
                "a worker needs a handler", do="give --handler=module:name or --exec='command', or set worker.handlers"
            )
        return handlers

    async def run(self) -> None:
        """Runs until a signal, or until a failure that a restart may fix."""
        settings = self._config.settings
        try:
            # Signals are handled from here on: a supervisor may stop the process right after the start line.
            async with Stores.of(settings.worker, self._clock) as stores:
                with on_stop(self._stop):
                    self._opened = await open_homes(self._config, stores)
                    server = Server(SubjectWatch(self._subject, settings.observability.queue_sample_interval))
                    try:
                        addresses = await self._listen(server)
                        await self._run_parts(self._parts(stores), addresses)
                    finally:
                        if self._lease_server is not None:
                            await self._lease_server.close(settings.worker.grace)
                        await server.close()
        finally:
            self._log_handler.settle()

    def _parts(self, stores: Stores) -> Sequence[DaemonPart]:
        """The parts of this process with their needs; they start independently of each other."""
        config = self._config

        async def opened(*needs: str) -> OpenPorts:
            return await open_homes(config, stores, *needs, into=self._opened)

        found = []
        if self._works:
            found.append(DaemonPart("worker", (JOBS,), partial(self._start_worker, opened)))
            if config.settings.task_types:
                found.append(DaemonPart("tasks", (TASKS,), partial(self._start_tasks, opened)))
        if self._sweeps:
            found.append(DaemonPart("engine", (ENGINE,), partial(self._start_engine, opened)))
            for family in families(config, self._clock, self._sweeps):
                needs = (ENGINE, *family.needs)
                found.append(
                    DaemonPart(f"sweep {family.name}", needs, partial(self._add_sweeps, opened, needs, family))
                )
        if self._streams:
            found.append(
                DaemonPart("archiver", (STREAMS, ENGINE, ARCHIVES), partial(self._start_archiver, stores, opened))
            )
        if self._registry.periodic and {"all", "worker", "sweeper"} & set(self._roles):
            found.append(DaemonPart("periodic", (JOBS,), partial(self._start_scheduler, opened)))
        if self._directory:
            found.append(DaemonPart(PRODUCER, (JOBS,), partial(self._start_producer, opened)))
        if self._messages:
            found.append(DaemonPart("messages", (STREAMS,), partial(self._start_messages, opened)))
        if self._serves_leases and config.settings.leases.listen:
            found.append(DaemonPart("leases", (LEASES,), partial(self._serve_leases, opened)))
        return found

    async def _start_worker(self, opened: Open) -> Run:
        set_switch_interval()
        backends = await opened(JOBS)
        self._worker = build_worker(self._config, backends, self._clock, self._handlers, self._tally)
        return self._worker.run

    async def _start_tasks(self, opened: Open) -> Run:
        set_switch_interval()
        backends = await opened(TASKS)
        self._task_workers = build_task_workers(self._config, backends, self._clock, self._handlers, self._tally)

        async def run() -> None:
            await asyncio.gather(*(worker.run() for worker in self._task_workers))

        return run

    async def _start_engine(self, opened: Open) -> Run:
        return self._engine_on(await opened(ENGINE)).run

    async def _add_sweeps(self, opened: Open, needs: tuple[str, ...], family: Family) -> Run:
        backends = await opened(*needs)
        self._engine_on(backends).add(family.build(backends))
        return _nothing

    def _engine_on(self, backends: OpenPorts) -> Engine:
        if self._engine is None:
            self._engine = build_engine(self._config.settings, backends, self._clock, owner_name())
        return self._engine

    async def _start_archiver(self, stores: Stores, opened: Open) -> Run:
        await opened(STREAMS)
        self._archiver = await build_archiver(self._config, stores, self._clock, owner_name())
        return self._archiver.run

    async def _start_scheduler(self, opened: Open) -> Run:
        backends = await opened(JOBS)
        settings = self._config.settings
        self._scheduler = build_scheduler(settings, backends, self._clock, self._tally, self._registry)
        return self._scheduler.run

    async def _start_producer(self, opened: Open) -> Run:
        run = ProducerRun(self._directory, once=not self._watch_files, alone=self._alone)
        self._producer = ProducerRuntime(self._config, await opened(JOBS), self._clock, self._tally, run)
        return self._producer.run

    async def _start_messages(self, opened: Open) -> Run:
        store = (await opened(STREAMS)).streams
        return partial(listen, store, self._clock, self._messages, self._messages_stopped, self._message_tallies)

    async def _serve_leases(self, opened: Open) -> Run:
        own, leasing = self._config.settings.leases, (await opened(LEASES)).leasing
        assert leasing is not None, "an opened port has leases"
        self._lease_server = LeaseServer(leasing.leases, self._clock, access_of(own))
        self._leases_on = await self._lease_server.listen(parse_address(own.listen))
        return _nothing

    @property
    def _alone(self) -> bool:
        """Whether only the producer runs here."""
        return self._roles == (PRODUCER,)

    def produced(self) -> Summary | None:
        """The summary of the producer, if only that ran."""
        return self._producer.summary() if self._alone and self._producer is not None else None

    def _subject(self) -> Subject:
        """This process for the status page, as far as it has started."""
        settings, opened, worker = self._config.settings, self._opened, self._worker
        jobs, records, streams = (self._open_store(port) for port in (JOBS, RECORDS, STREAMS))
        return Subject(
            clock=self._clock,
            roles=self._roles,
            backend=str(self._config.homes.ports["jobs"]),
            jobs=None if jobs is None else with_jobs(jobs),
            queue=None if jobs is None or opened.tasks is None else opened.queue,
            journal=opened.engine_journal,
            leases=None if records is None else records.records(DEFAULT_LEASES),
            streams=None if streams is None else streams.streams,
            engine=self._engine,
            waiting=dict(self._waiting.parts),
            worker=None if worker is None else worker.wrong,
            shut=None if jobs is None else jobs.records(SHUT_QUEUES),
            breakers=None if worker is None else worker.worker.breakers,
            shut_max=settings.circuit_breaker.unready_after,
            tally=self._tally,
            logs=self._log_tally,
            messages=self._message_tallies,
            archives=None if self._archiver is None else self._archiver.tally,
            spans=None if worker is None or worker.traces is None else worker.traces.tally,
            queues=tuple(settings.worker.queues.values()),
            leasing=opened.leasing,
            lease_calls={} if self._lease_server is None else self._lease_server.calls,
            orphans=opened.orphans,
            retention=opened.retention,
        )

    def _open_store(self, port: str) -> Backend | None:
        """The backend of this port, if this process has it open, for this port or for another."""
        ports = self._config.homes.ports
        same = (store for other, store in self._opened.stores.items() if ports[other].url == ports[port].url)
        return self._opened.stores.get(port) or next(same, None)

    def _stop(self, why: str) -> None:
        """Drains; parts that have not started yet do not start."""
        grace = self._config.settings.worker.grace
        _log.info("stopping", extra={"signal": why, "seconds": grace.total_seconds()})
        self._stopping = True
        self._up.set()
        if self._engine is not None:
            self._engine.stop()
        if self._lease_server is not None:
            self._lease_server.api.drain()
        for worker in (*self._task_workers, *(() if self._worker is None else (self._worker.worker,))):
            worker.stop(grace)
        if self._archiver is not None:
            self._archiver.stop(grace)
        if self._scheduler is not None:
            self._scheduler.stop()
        if self._producer is not None:
            self._producer.stop()
        self._messages_stopped.set()

    async def _listen(self, server: Server) -> tuple[Address, ...]:
        settings = self._config.settings
        addresses = []
        # Several producers may run on one machine; the page of one needs an explicit address.
        if settings.http.listen and (not self._alone or self._config.named("http.listen")):
            addresses.append(await server.listen(parse_address(settings.http.listen)))
        if settings.http.metrics_listen:
            metrics = parse_address(settings.http.metrics_listen)
            addresses.append(await server.listen(metrics, metrics_only=True))
        if self._config.named("observability.metrics_port"):
            port = settings.observability.metrics_port
            addresses.append(await server.listen(Address("127.0.0.1", port), metrics_only=True))
        return tuple(addresses)

    def _log_start(self, addresses: tuple[Address, ...], leases: Address | None) -> None:
        workers = (*(() if self._worker is None else (self._worker.worker,)), *self._task_workers)
        settings = self._config.settings
        made = {name for family in families(self._config, self._clock, self._sweeps) for name in family.sweeps}
        started = Started(
            roles=self._roles,
            handlers=tuple(self._handlers) if workers else (),
            queues=tuple(queue for worker in workers for queue in worker.settings.queues),
            slots=sum(worker.settings.concurrency for worker in workers),
            sweeps=tuple(name for name in self._sweeps if name in made and settings.sweeps[name].enabled),
            streams=self._streams,
            messages=tuple(each.pattern for each in self._messages),
            producer=bool(self._directory),
            leases=leases,
            backends={row.port: row.backend for row in table(self._config.homes) if not row.refused},
            addresses=addresses,
        )
        if self._log_handler.human:
            # Not a log line, so it may have the path of the database.
            sys.stderr.write(f"{started}\n")
        else:
            _log.info("started", extra=started.facts())
        if "all" in self._roles and not self._works and not self._messages:
            _log.warning("no handler is set, so jobs are not run: only sweeps are")
        for path, source in self._config.sources.items():
            # Bare names may be meant for another program: their use here must be easy to see.
            bare = source.startswith("environment") and "WRASSE_" not in source
            _log.log(logging.INFO if bare else logging.DEBUG, "set", extra={"setting": path, "source": source})

    async def _run_parts(self, parts: Sequence[DaemonPart], addresses: tuple[Address, ...]) -> None:
        hear_strangers(self._log_handler)
        try:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._tick())
                tried = [asyncio.Event() for _ in parts]
                running = [group.create_task(self._run(part, each)) for part, each in zip(parts, tried, strict=True)]
                for each in tried:
                    await each.wait()
                await self._up.wait()
                if not self._stopping:
                    self._log_start(addresses, self._leases_on)
                await asyncio.gather(*running)
                ticking.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        _log.info("stopped")

    async def _run(self, part: DaemonPart, tried: asyncio.Event) -> None:
        """Runs one part, from its backend's first answer to its end."""
        # A single walk fails on an outage; a daemon waits for its server.
        once = self._alone and not self._watch_files
        waits = not once and any(is_served(self._config, need) for need in part.needs)
        run = await self._waiting.opened(part.name, part.start, tried, served=waits)
        self._up.set()
        if run is not None and not self._stopping:
            await run()

    async def _tick(self) -> None:
        """Logs every second how many lines were suppressed."""
        while True:
            await asyncio.sleep(1)
            self._log_handler.settle()


def _sweeps_of(roles: tuple[str, ...], config: Config) -> tuple[str, ...]:
    if {"all", "sweeper"} & set(roles):
        return tuple(config.catalogue)
    return (*(JOB_SWEEPS if "worker" in roles else ()), *(LEASE_SWEEPS if "leases" in roles else ()))
