"""Which ports a sweep asks for, and where they come from: by the annotation of every field without a default.

Fields with a default are settings. Records are asked for together with their collection:
`carts: Annotated[Records, Collection.named("carts")]`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.app.lease_ports import Leasing
from wrasse.app.settings import ReaperSettings, SweepSettings
from wrasse.app.wiring import KeepsRecords, with_jobs, with_streams
from wrasse.clock import Clock
from wrasse.engine.budget import Budget
from wrasse.engine.loop import ENGINE_LEASES, Scheduled, SweepHome
from wrasse.engine.run import AnySweep
from wrasse.engine.state import ENGINE_STATE
from wrasse.jobs.routed import RoutedJobs
from wrasse.jobs.stray_search import StraySearch
from wrasse.jobs.stream_tasks.queue import StreamedJobs
from wrasse.leases.manager import LeaseManager
from wrasse.orphans.desk import Desk
from wrasse.ports.backend import Backend, JobStore, ObjectStore, StreamStore
from wrasse.ports.groups import Groups
from wrasse.ports.guard import Guard
from wrasse.ports.jobs import JobQueue
from wrasse.ports.journal import Journal
from wrasse.ports.objects import Objects
from wrasse.ports.pulse import Heart
from wrasse.ports.records import Collection, Records
from wrasse.ports.strays import Strays
from wrasse.ports.streams import Streams
from wrasse.streams.trimmer import RetentionTally

PORTS: tuple[type, ...] = (JobQueue, Records, Streams, Groups, Objects, Journal)


# What a command or a role may need; `orphans/<root>` is one root alone.
JOBS, RECORDS, STREAMS, OBJECTS, ENGINE, LEASES, TASKS, ORPHANS, ARCHIVES = (
    "jobs", "records", "streams", "objects", "engine", "leases", "tasks", "orphans", "archives",
)  # fmt: skip


@dataclass(slots=True)
class Opened:
    """The backends of a process, by port. Only those are open that were asked of `open_homes`."""

    stores: dict[str, Backend] = dataclasses.field(default_factory=dict)
    object_store: ObjectStore | None = None
    engine_journal: Journal | None = None
    desks: dict[str, Desk] = dataclasses.field(default_factory=dict)  # by root of orphans
    sweep_homes: dict[str, SweepHome] = dataclasses.field(default_factory=dict)  # by root: beside its sightings
    leasing: Leasing | None = None
    retention: RetentionTally = dataclasses.field(default_factory=RetentionTally)
    tasks: StreamedJobs | None = None  # where the settings name types of tasks
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
        """The backend of the journal and of what the engine keeps."""
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
    def orphans(self) -> tuple[Desk, ...]:
        """The desks of the roots that were opened."""
        return tuple(self.desks.values())

    @property
    def queue(self) -> JobQueue:
        """Jobs and tasks, to list, enqueue and change. Tasks are opened when a call is about one."""
        return self.jobs.jobs if self.open_tasks is None else RoutedJobs(self.jobs.jobs, self.open_tasks, self.types)

    def _store(self, port: str) -> Backend:
        assert port in self.stores, f"{port} were not opened"
        return self.stores[port]


def sweep_home(store: KeepsRecords, clock: Clock) -> SweepHome:
    """The leases and states of sweeps, in the backend that they sweep."""
    lessor = LeaseManager(store.records(ENGINE_LEASES), clock, margin=store.margin)
    return SweepHome(lessor, store.records(ENGINE_STATE))


def scheduled(
    sweep: AnySweep,
    own: SweepSettings,
    guards: Sequence[Guard],
    name: str,
    home: SweepHome | None,
    *,
    interval: timedelta | None = None,
    group: str = "",
) -> Scheduled:
    """A sweep with the cadence and the budget of its settings, or with an interval of its own."""
    return Scheduled(
        sweep,
        interval=own.interval if interval is None else interval,
        jitter=own.jitter,
        budget=Budget(own.actions_max, own.runtime_max, own.pause),
        guards=tuple(guards),
        enabled=own.enabled,
        name=name,
        group=group,
        home=home,
    )


def stray_search(own: ReaperSettings, strays: Strays, clock: Clock) -> StraySearch:
    """The search for stray jobs, at the pace of the settings."""
    return StraySearch(strays, clock, own.scan_count, own.pass_budget, own.page_delay, own.page_jitter)


@dataclass(frozen=True, slots=True)
class PortField:
    """A field that wants a port."""

    field: str
    kind: object
    collection: Collection | None = None

    @property
    def wants_collection(self) -> bool:
        """Whether the port is handed out per collection."""
        return self.kind is Records


@dataclass(frozen=True, slots=True)
class SettingField:
    """A field that is a setting."""

    field: str
    hint: object
    default: object


def port_fields(sweep: type) -> Iterator[PortField]:
    """The fields without a default."""
    hints = typing.get_type_hints(sweep, include_extras=True)
    for field in dataclasses.fields(sweep):
        if _required(field):
            hint = hints[field.name]
            extras = getattr(hint, "__metadata__", ())
            kind = typing.get_args(hint)[0] if extras else hint
            yield PortField(field.name, kind, next((e for e in extras if isinstance(e, Collection)), None))


def setting_fields(sweep: type) -> Iterator[SettingField]:
    """The fields with one, but for those that are wired."""
    hints = typing.get_type_hints(sweep)
    for field in dataclasses.fields(sweep):
        if not _required(field) and not field.metadata.get("wired"):
            made = field.default_factory
            default = field.default if made is dataclasses.MISSING else made()
            yield SettingField(field.name, hints[field.name], default)


def fill_ports(sweep: type, opened: Opened) -> dict[str, object]:
    """The ports of a sweep, from where they live."""
    return {port.field: _port(port, opened) for port in port_fields(sweep)}


def hearts(sweep: type, opened: Opened) -> Sequence[Heart]:
    """The backends a sweep depends on, each once."""
    found = [_opened(need, opened) for need in needs_of(sweep)]
    return [heart for index, heart in enumerate(found) if heart not in found[:index]]


def needs_of(sweep: type) -> tuple[str, ...]:
    """What must be open for a sweep."""
    return tuple(dict.fromkeys(_need(port.kind) for port in port_fields(sweep)))


def swept_home(sweep: type, opened: Opened, clock: Clock) -> SweepHome | None:
    """The leases and states of a sweep: beside the first of its ports; None if it has only the journal."""
    needs = [need for need in needs_of(sweep) if need != ENGINE]
    return sweep_home(_opened(needs[0], opened), clock) if needs else None


def _need(kind: object) -> str:
    if kind is Objects:
        return OBJECTS
    if kind in (Streams, Groups):
        return STREAMS
    return JOBS if kind is JobQueue else ENGINE if kind is Journal else RECORDS


def _opened(need: str, opened: Opened) -> Backend | ObjectStore:
    return opened.objects if need == OBJECTS else opened.stores[need]


def _required(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _port(port: PortField, opened: Opened) -> object:
    if port.kind is JobQueue:
        return opened.jobs.jobs
    if port.kind is Journal:
        return opened.journal
    if port.kind is Streams:
        return opened.streams.streams
    if port.kind is Groups:
        return opened.streams.groups
    if port.kind is Objects:
        return opened.objects.objects
    assert port.kind is Records, f"{port.field} is a port"
    assert port.collection is not None, "records are of a collection"
    return opened.records.records(port.collection)
