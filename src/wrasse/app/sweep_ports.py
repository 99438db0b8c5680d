"""Which ports a sweep asks for, and where they come from: by the annotation of every field without a default.

Fields with a default are settings. Records are asked for together with their collection:
`carts: Annotated[Records, Collection.named("carts")]`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wrasse.app.lease_ports import Leasing
from wrasse.app.wiring import ObjectStore, Store
from wrasse.jobs.routed import RoutedJobs
from wrasse.jobs.streamed import StreamedJobs
from wrasse.orphans.desk import Desk
from wrasse.ports.groups import Groups
from wrasse.ports.jobs import JobQueue
from wrasse.ports.journal import Journal
from wrasse.ports.objects import Objects
from wrasse.ports.pulse import Heart
from wrasse.ports.records import Collection, Records
from wrasse.ports.streams import Streams
from wrasse.streams.trimmer import RetentionTally

PORTS: tuple[type, ...] = (JobQueue, Records, Streams, Groups, Objects, Journal)


@dataclass(frozen=True, slots=True)
class Opened:
    """The backends of a process, by what lives there. Streams and objects are opened where a sweep asks for them."""

    jobs: Store
    records: Store
    engine: Store
    journal: Journal
    streams: Store | None = None
    objects: ObjectStore | None = None
    orphans: tuple[Desk, ...] = ()  # a desk per root
    leasing: Leasing | None = None
    retention: RetentionTally = dataclasses.field(default_factory=RetentionTally)

    tasks: StreamedJobs | None = None  # where the settings name types of tasks
    types: tuple[str, ...] = ()

    @property
    def queue(self) -> JobQueue:
        """Jobs and tasks, for whoever looks, puts and mends."""
        return self.jobs.jobs if self.tasks is None else RoutedJobs(self.jobs.jobs, self.tasks, self.types)


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
    found = [_home(port.kind, opened) for port in port_fields(sweep)]
    return [heart for index, heart in enumerate(found) if heart not in found[:index]]


def wants_port(sweep: type, *kinds: type) -> bool:
    """Whether a sweep asks for one of these ports."""
    return any(port.kind in kinds for port in port_fields(sweep))


def _required(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _home(kind: object, opened: Opened) -> Store | ObjectStore:
    if kind is Objects:
        return _objects(opened)
    if kind in (Streams, Groups):
        return _streams(opened)
    return opened.jobs if kind is JobQueue else opened.engine if kind is Journal else opened.records


def _port(port: PortField, opened: Opened) -> object:
    if port.kind is JobQueue:
        return opened.jobs.jobs
    if port.kind is Journal:
        return opened.journal
    if port.kind is Streams:
        return _streams(opened).streams
    if port.kind is Groups:
        return _streams(opened).groups
    if port.kind is Objects:
        return _objects(opened).objects
    assert port.kind is Records, f"{port.field} is a port"
    assert port.collection is not None, "records are of a collection"
    return opened.records.records(port.collection)


def _streams(opened: Opened) -> Store:
    assert opened.streams is not None, "a sweep that asks for streams has them opened"
    return opened.streams


def _objects(opened: Opened) -> ObjectStore:
    assert opened.objects is not None, "a sweep that asks for objects has them opened"
    return opened.objects
