"""The backends of a process, by port: only those that a command or a role needs are opened, each once."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from wrasse.clock import Clock
from wrasse.config.load import Config
from wrasse.config.urls import parse_store
from wrasse.engine.loop import ENGINE_LEASES, SweepBackend
from wrasse.engine.turn import ENGINE_STATE
from wrasse.jobs.composite_queue import CompositeQueue
from wrasse.jobs.stream_tasks.queue import TaskQueue
from wrasse.leases.manager import LeaseManager
from wrasse.orphans.scanner import Scanner
from wrasse.ports.backend import Backend, JobStore, ObjectStore, StreamStore
from wrasse.ports.jobs import JobQueue
from wrasse.ports.journal import Journal
from wrasse.runtime.backends import KeepsRecords, Stores, with_jobs, with_streams
from wrasse.runtime.leases import Leasing, open_leasing
from wrasse.runtime.orphans import open_scanner
from wrasse.runtime.stream_tasks import open_tasks, task_home
from wrasse.streams.retention import RetentionTally

# What a command or a role may need; `orphans/<root>` is one root alone.
JOBS, RECORDS, STREAMS, OBJECTS, ENGINE, LEASES, TASKS, ORPHANS, ARCHIVES = (
    "jobs", "records", "streams", "objects", "engine", "leases", "tasks", "orphans", "archives",
)  # fmt: skip


@dataclass(slots=True)
class OpenPorts:
    """The backends of a process, by port. Only those requested from `open_homes` are open."""

    stores: dict[str, Backend] = dataclasses.field(default_factory=dict)
    object_store: ObjectStore | None = None
    engine_journal: Journal | None = None
    scanners: dict[str, Scanner] = dataclasses.field(default_factory=dict)  # by root of orphans
    sweep_homes: dict[str, SweepBackend] = dataclasses.field(default_factory=dict)  # by root: beside its sightings
    leasing: Leasing | None = None
    retention: RetentionTally = dataclasses.field(default_factory=RetentionTally)
    tasks: TaskQueue | None = None  # where the settings name types of tasks
    types: tuple[str, ...] = ()
    open_tasks: Callable[[], Awaitable[JobQueue]] | None = None

    @property
    def jobs(self) -> JobStore:
        """The backend of jobs."""
        return with_jobs(self._store(JOBS))

    @property
    def records(self) -> Backend:
        """The backend of records."""
        return self._store(RECORDS)

    @property
    def engine(self) -> Backend:
        """The backend of the journal and of the engine's records."""
        return self._store(ENGINE)

    @property
    def streams(self) -> StreamStore:
        """The backend of streams."""
        return with_streams(self._store(STREAMS))

    @property
    def objects(self) -> ObjectStore:
        """The backend of objects."""
        assert self.object_store is not None, "objects were not opened"
        return self.object_store

    @property
    def journal(self) -> Journal:
        """The journal."""
        assert self.engine_journal is not None, "the journal was not opened"
        return self.engine_journal

    @property
    def orphans(self) -> tuple[Scanner, ...]:
        """The scanners of the roots that were opened."""
        return tuple(self.scanners.values())

    @property
    def queue(self) -> JobQueue:
        """Jobs and tasks, to list, enqueue and change. Tasks are opened at the first call for one."""
        return (
            self.jobs.jobs if self.open_tasks is None else CompositeQueue(self.jobs.jobs, self.open_tasks, self.types)
        )

    def _store(self, port: str) -> Backend:
        assert port in self.stores, f"{port} were not opened"
        return self.stores[port]


async def open_homes(config: Config, stores: Stores, *needs: str, into: OpenPorts | None = None) -> OpenPorts:
    """Opens what is needed and not yet open; equal backends once."""
    where, home = config.homes, task_home(config)
    opened = into or OpenPorts(types=tuple(config.settings.task_types))
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
            # Parts open concurrently; the API and the idle sweeps must count the same traffic.
            opened.leasing = opened.leasing or leasing
        elif port == TASKS and opened.open_tasks is not None:
            await opened.open_tasks()
            opened.stores[RECORDS] = await stores.open(where.records)
        elif port == ORPHANS:
            for name in [root] if root else [*config.settings.orphans]:
                if name not in opened.scanners:
                    opened.scanners[name], beside = await open_scanner(name, config, stores, stores.clock)
                    opened.sweep_homes[name] = sweep_home(beside, stores.clock)
    if opened.engine_journal is None and ENGINE in needs:
        journal = await stores.open_journal(where.journal)
        opened.engine_journal = opened.engine_journal or journal
    return opened


def is_served(config: Config, need: str) -> bool:
    """Whether this need includes a server, which a daemon waits for."""
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


async def _open_tasks(config: Config, stores: Stores, opened: OpenPorts) -> JobQueue:
    if opened.tasks is None:
        home = task_home(config)
        assert home is not None, "tasks are opened only with task types"
        tasks = await open_tasks(home, stores)
        opened.tasks = opened.tasks or tasks  # opened concurrently by another task
    return opened.tasks


def sweep_home(store: KeepsRecords, clock: Clock) -> SweepBackend:
    """The leases and states of sweeps, in the backend that they sweep."""
    lease_manager = LeaseManager(store.records(ENGINE_LEASES), clock, margin=store.margin)
    return SweepBackend(lease_manager, store.records(ENGINE_STATE))
