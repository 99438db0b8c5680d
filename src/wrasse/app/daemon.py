"""wrasse run: a worker, sweeps, a producer, an archiver and the status page in one process, from start to clean stop.

Whatever is wrong with settings, handlers, backends or ports is said at the start, before anything runs. The first
SIGTERM or SIGINT drains: nothing new is taken, running handlers have `worker.grace` to finish, the rest is given back,
and the process ends with 0. The second ends it at once with 1. An outage of a backend ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wrasse import __version__
from wrasse.app.addresses import Address, parse_address
from wrasse.app.app_streams import Registered, listen
from wrasse.app.archiving import archive_streams, build_archiver
from wrasse.app.building import (
    JOB_SWEEPS,
    LEASE_SWEEPS,
    LEASES,
    Opened,
    Working,
    build_engine,
    build_handlers,
    build_repeater,
    build_worker,
    configured,
    message_handlers,
    open_homes,
    owner_name,
)
from wrasse.app.config import Config
from wrasse.app.homes import homes, table
from wrasse.app.http import Server
from wrasse.app.leases_http.access import access_of
from wrasse.app.leases_http.server import LeaseServer
from wrasse.app.leasing import check_state_home
from wrasse.app.logs import LogHandler, LogTally, hear_strangers
from wrasse.app.opening import open_patiently
from wrasse.app.process import hand_over_sooner
from wrasse.app.producing import ROLE as PRODUCER, Producing, Summary, producing_directory
from wrasse.app.signals import on_stop
from wrasse.app.status import Subject, Watch
from wrasse.app.task_working import build_task_workers
from wrasse.app.unserved import open_port
from wrasse.app.unwrap import first_error
from wrasse.app.wiring import Stores
from wrasse.archives.archiver import Archiver
from wrasse.clock import Clock
from wrasse.engine.loop import Engine
from wrasse.errors import UnknownName, UsageError
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.repeating import Repeater
from wrasse.jobs.shut_queues import SHUT_QUEUES
from wrasse.jobs.tally import Labels, Tally
from wrasse.jobs.worker import Worker
from wrasse.ports.streams import Streams
from wrasse.streams.tally import StreamTally

ROLES = ("all", "worker", "sweeper", "producer", "archiver", "leases")
_log = logging.getLogger("wrasse.daemon")


@dataclass(frozen=True, slots=True)
class Orders:
    """What the command line said: roles, what handles jobs, and whether files are watched."""

    roles: tuple[str, ...]
    handler: str = ""
    command: str = ""
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """What came up: for the one line that says so, and for tests that need the port."""

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
        """The same for a log that programs read."""
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
    """Each backend once, with what is there."""
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


class Daemon:
    """One process of ours."""

    def __init__(self, config: Config, orders: Orders, clock: Clock, logs: tuple[LogHandler, LogTally]) -> None:
        self._config = config
        self._clock = clock
        self._log_handler, self._log_tally = logs
        self._handlers = self._with_handlers(orders)
        self._works = bool(len(self._handlers)) and bool({"all", "worker"} & set(orders.roles))
        self._sweeps = _sweeps_of(orders.roles, config)
        self._streams = self._archived_streams(orders)
        self._messages = self._listened_to(orders)
        self._quiet = asyncio.Event()  # set when messages are no longer to be handled
        self._roles = orders.roles
        self._directory = producing_directory(config, orders.roles, watch=orders.watch)
        self._watch_files = orders.watch
        self._producing: Producing | None = None
        self._tally = Tally(Labels([*config.settings.worker.queues.values(), *config.settings.task_types]))
        self._heard: dict[str, StreamTally] = {}  # by group: what became of messages
        self._working: Working | None = None
        self._tasking: tuple[Worker, ...] = ()
        self._engine: Engine | None = None
        self._archiver: Archiver | None = None
        self._repeater: Repeater | None = None
        self._asked_to_stop = False
        # With the role `all` only if somebody says where: a port is not opened unasked.
        self._serves_leases = "leases" in orders.roles or ("all" in orders.roles and config.named("leases.listen"))
        self._lease_server: LeaseServer | None = None
        if self._serves_leases:
            check_state_home(config)

    def _archived_streams(self, orders: Orders) -> tuple[str, ...]:
        """The patterns of the streams that this process archives."""
        named = tuple(each.stream for each in archive_streams(self._config.settings))
        if "archiver" in orders.roles and not named:
            raise UsageError(
                "an archiver needs streams to archive",
                do='set archiver.streams, for example [{stream: "gbe.events.audit.*"}]',
            )
        return named if {"all", "archiver"} & set(orders.roles) else ()

    def _listened_to(self, orders: Orders) -> Sequence[Registered]:
        """The handlers of messages that this process runs: those of the App that the handler names."""
        named = orders.handler or ("" if orders.command else self._config.settings.worker.handler)
        return message_handlers(named) if named and {"all", "worker"} & set(orders.roles) else ()

    def _with_handlers(self, orders: Orders) -> Handlers:
        self._registry = configured(self._config.settings, handler=orders.handler, command=orders.command)
        handlers = build_handlers(self._registry)
        if "worker" in orders.roles and not len(handlers) and not self._listened_to(orders):
            raise UsageError(
                "a worker needs a handler",
                do="say --handler=module:name or --exec='command', or set worker.handlers",
            )
        return handlers

    async def run(self) -> None:
        """Runs until a signal, or until something fails that a restart may mend."""
        settings = self._config.settings
        own = settings.worker
        stores = Stores(self._clock, done_max=own.done_max, rescues_max=own.rescues_max)
        try:
            # Signals are heard from here on: whoever reads that it has started may stop it at once.
            with on_stop(self._stop):
                # Whoever waits for the end of one walk hears of an outage; a daemon waits for its server.
                opened = (
                    await open_homes(self._config, stores)
                    if self._alone and not self._watch_files
                    else await open_patiently(self._config, stores, self._quiet)
                )
                if opened is None:
                    _log.info("stopped")
                    return
                self._store = await open_port("streams", homes(self._config), stores)
                engine = build_engine(settings, opened, self._clock, owner_name(), self._sweeps)
                working = None
                if self._works:
                    hand_over_sooner()
                    working = build_worker(self._config, opened, self._clock, self._handlers, self._tally)
                    self._tasking = build_task_workers(
                        self._config, opened, self._clock, self._handlers, self._tally
                    )
                if self._streams:
                    self._archiver = await build_archiver(self._config, stores, self._clock, owner_name())
                if self._registry.periodic and {"all", "worker", "sweeper"} & set(self._roles):
                    self._repeater = build_repeater(settings, opened, self._clock, self._tally, self._registry)
                if self._directory:
                    self._producing = self._build_producing(opened)
                self._engine, self._working = engine, working
                server = Server(self._watch(opened, self._store.streams, engine, working))
                try:
                    leases = await self._serve_leases(opened)
                    self._say(await self._listen(server), leases)
                    await self._live(engine, working)
                finally:
                    if self._lease_server is not None:
                        await self._lease_server.close(settings.worker.grace)
                    await server.close()
        finally:
            await stores.close()
            self._log_handler.settle()

    @property
    def _alone(self) -> bool:
        """Is the producer all that runs here?"""
        return self._roles == (PRODUCER,)

    async def _serve_leases(self, opened: Opened) -> Address | None:
        """Starts the lease API, if this process has that role; gives its address."""
        own = self._config.settings.leases
        if not self._serves_leases or not own.listen:
            return None
        assert opened.leasing is not None, "what is opened has leases"
        self._lease_server = LeaseServer(opened.leasing.leases, self._clock, access_of(own))
        return await self._lease_server.listen(parse_address(own.listen))

    def _build_producing(self, opened: Opened) -> Producing:
        once = not self._watch_files
        return Producing(
            self._config, opened, self._clock, self._tally, self._directory, once=once, alone=self._alone
        )

    async def _produce(self, producing: Producing, engine: Engine) -> None:
        await producing.run()
        if self._alone:
            engine.stop()

    def produced(self) -> Summary | None:
        """What the producer did, where that was all."""
        return self._producing.summary() if self._alone and self._producing is not None else None

    def _watch(self, opened: Opened, streams: Streams, engine: Engine, working: Working | None) -> Watch:
        settings = self._config.settings
        subject = Subject(
            clock=self._clock,
            roles=self._roles,
            backend=str(homes(self._config).ports["jobs"]),
            jobs=opened.jobs,
            queue=opened.queue,
            journal=opened.journal,
            leases=opened.records.records(LEASES),
            streams=streams,
            engine=engine,
            worker=None if working is None else working.wrong,
            shut=opened.engine.records(SHUT_QUEUES),
            breakers=None if working is None else working.worker.breakers,
            shut_max=settings.circuit_breaker.unready_after,
            tally=self._tally,
            logs=self._log_tally,
            messages=self._heard,
            archives=None if self._archiver is None else self._archiver.tally,
            spans=None if working is None or working.traces is None else working.traces.tally,
            queues=tuple(settings.worker.queues.values()),
            leasing=opened.leasing,
            orphans=opened.orphans,
            retention=opened.retention,
        )
        return Watch(subject, settings.observability.queue_sample_interval)

    def _stop(self, why: str) -> None:
        """Drains. Asked before there is anything to drain, it is remembered."""
        grace = self._config.settings.worker.grace
        _log.info("stopping", extra={"signal": why, "seconds": grace.total_seconds()})
        self._asked_to_stop = True
        if self._engine is not None:
            self._engine.stop()
        if self._lease_server is not None:
            self._lease_server.api.drain()
        for worker in (*self._tasking, *(() if self._working is None else (self._working.worker,))):
            worker.stop(grace)
        if self._archiver is not None:
            self._archiver.stop(grace)
        if self._repeater is not None:
            self._repeater.stop()
        if self._producing is not None:
            self._producing.stop()
        self._quiet.set()

    async def _listen(self, server: Server) -> tuple[Address, ...]:
        settings = self._config.settings
        addresses = []
        # Several producers may walk on one machine; whoever wants to watch one names its address.
        if settings.http.listen and (not self._alone or self._config.named("http.listen")):
            addresses.append(await server.listen(parse_address(settings.http.listen)))
        if settings.http.metrics_listen:
            metrics = parse_address(settings.http.metrics_listen)
            addresses.append(await server.listen(metrics, metrics_only=True))
        if self._config.named("observability.metrics_port"):
            port = settings.observability.metrics_port
            addresses.append(await server.listen(Address("127.0.0.1", port), metrics_only=True))
        return tuple(addresses)

    def _say(self, addresses: tuple[Address, ...], leases: Address | None) -> None:
        workers = (*(() if self._working is None else (self._working.worker,)), *self._tasking)
        settings = self._config.settings
        started = Started(
            roles=self._roles,
            handlers=tuple(self._handlers) if workers else (),
            queues=tuple(queue for worker in workers for queue in worker.settings.queues),
            slots=sum(worker.settings.concurrency for worker in workers),
            sweeps=tuple(name for name in self._sweeps if settings.sweeps[name].enabled),
            streams=self._streams,
            messages=tuple(each.pattern for each in self._messages),
            producer=bool(self._directory),
            leases=leases,
            backends={row.port: row.backend for row in table(homes(self._config)) if not row.refused},
            addresses=addresses,
        )
        if self._log_handler.human:
            # Not a log line: a person may see the path of their own database.
            sys.stderr.write(f"{started}\n")
        else:
            _log.info("started", extra=started.facts())
        if "all" in self._roles and not self._works and not self._messages:
            _log.warning("no handler is set, so jobs are not run: only sweeps are")
        for path, source in self._config.sources.items():
            # Bare names may be another program's: that one of them counts here must be easy to see.
            bare = source.startswith("environment") and "WRASSE_" not in source
            _log.log(logging.INFO if bare else logging.DEBUG, "set", extra={"setting": path, "source": source})

    async def _live(self, engine: Engine, working: Working | None) -> None:
        hear_strangers(self._log_handler)
        try:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._tick())
                if not self._asked_to_stop:
                    others = [group.create_task(engine.run())]
                    others += [group.create_task(worker.run()) for worker in self._tasking]
                    if self._archiver is not None:
                        others.append(group.create_task(self._archiver.run()))
                    if self._repeater is not None:
                        others.append(group.create_task(self._repeater.run()))
                    if self._producing is not None:
                        others.append(group.create_task(self._produce(self._producing, engine)))
                    if self._messages:
                        listening = listen(self._store, self._clock, self._messages, self._quiet, self._heard)
                        others.append(group.create_task(listening))
                    if working is not None:
                        await working.run()
                        engine.stop()
                        self._quiet.set()
                        if self._repeater is not None:
                            self._repeater.stop()
                    await asyncio.wait(others)
                ticking.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        _log.info("stopped")

    async def _tick(self) -> None:
        """Says every second what a flood of log lines left out."""
        while True:
            await asyncio.sleep(1)
            self._log_handler.settle()


def _sweeps_of(roles: tuple[str, ...], config: Config) -> tuple[str, ...]:
    if {"all", "sweeper"} & set(roles):
        return tuple(config.catalogue)
    return (*(JOB_SWEEPS if "worker" in roles else ()), *(LEASE_SWEEPS if "leases" in roles else ()))
