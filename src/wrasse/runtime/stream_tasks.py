"""Builds the queue of stream tasks: records in the backend of records, streams in that of streams, and data too large
for a record in that of objects. If the first two are one backend, a record and its event are one write."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial

import msgspec

from wrasse.clock import Clock, SystemClock, to_micros
from wrasse.config.load import Config
from wrasse.config.settings import StuckTasksSettings, TaskTypeSettings
from wrasse.config.urls import parse_objects, parse_store
from wrasse.errors import StoreBroken
from wrasse.ids import Ids
from wrasse.jobs.stream_tasks.queue import TaskPorts, TaskQueue, TaskType
from wrasse.jobs.stream_tasks.store import THRESHOLD, TaskRetention
from wrasse.ports.groups import DeadLetter, Delivery
from wrasse.ports.jobs import JobQueue
from wrasse.ports.streams import Draft, Entry
from wrasse.runtime.backends import Stores
from wrasse.runtime.leases import LateObjects
from wrasse.streams.delivery import dead_letter
from wrasse.streams.envelope import Envelope, decode, encode
from wrasse.sweeps.finished_jobs import FinishedJobs

SCHEME = "tasks:"


class EnvelopeCodec:
    """Seals and opens envelopes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ids = Ids(clock)

    def seal(self, subject: str, payload: bytes, key: str) -> Draft:
        """A message with this payload, ready to append."""
        at = to_micros(self._clock.now()) // 1_000
        return Draft(subject, encode(Envelope(self._ids.new(), subject, at, payload)), key)

    def open(self, entry: Entry) -> bytes | None:
        """The payload of an entry; None if it carries no message."""
        try:
            return decode(entry.body).payload
        except StoreBroken:
            return None

    def set_aside(self, delivery: Delivery, reason: str) -> DeadLetter:
        """The answer that dead-letters an unreadable entry."""
        return dead_letter(delivery, reason, deliveries=delivery.number)


class TaskBackends(msgspec.Struct, frozen=True):
    """The backends and types of tasks, as one text, for their heartbeat process."""

    records: str
    streams: str
    objects: str  # empty: large parameters are refused
    types: tuple[TaskType, ...]
    kept: TaskRetention | None = None
    threshold: timedelta = THRESHOLD  # of types without settings

    def url(self) -> str:
        """As one text, with absolute paths."""
        records, streams = (parse_store(each).resolved().url for each in (self.records, self.streams))
        objects = parse_objects(self.objects).resolved().url if self.objects else ""
        home = msgspec.structs.replace(self, records=records, streams=streams, objects=objects)
        return SCHEME + msgspec.json.encode(home).decode()


def task_home(config: Config) -> TaskBackends | None:
    """The backends of the tasks of these settings; None if they name no types and have no `sweeper:` section. With the
    section alone no worker runs, but stuck tasks of any type are rescued for other programs."""
    settings, where = config.settings, config.homes
    if not settings.task_types and not config.named("sweeper"):
        return None
    types = task_types(settings.task_types, settings.sweeper)
    own = settings.sweeps[FinishedJobs.name]
    done, dead = own.fields["done_kept"], own.fields["dead_kept"]
    assert isinstance(done, timedelta), "a time by its type"
    assert isinstance(dead, timedelta), "a time by its type"
    # If the sweep is off, finished tasks are never due for deletion.
    kept = TaskRetention(done, dead) if own.enabled else None
    objects, threshold = where.ports["objects"].url, settings.sweeper.stuck_threshold
    return TaskBackends(
        records=where.records, streams=where.streams, objects=objects, types=types, kept=kept, threshold=threshold
    )


async def open_tasks(home: TaskBackends, stores: Stores) -> TaskQueue:
    """The queue of tasks."""
    records, streams = await stores.open(home.records), await stores.open_streams(home.streams)
    ports = TaskPorts(
        records=records.records,
        streams=streams.streams,
        groups=streams.groups,
        codec=EnvelopeCodec(stores.clock),
        clock=stores.clock,
        objects=LateObjects(partial(stores.open_objects, home.objects)) if home.objects else None,
        together=records is streams,
        kept=home.kept,
        threshold=home.threshold,
    )
    return TaskQueue(ports, home.types)


async def open_task_jobs(url: str, clock: Clock | None = None) -> JobQueue:
    """The queue of tasks that a text of `url` names, for the life of the heartbeat process."""
    home = msgspec.json.decode(url.removeprefix(SCHEME), type=TaskBackends)
    return await open_tasks(home, Stores(clock or SystemClock()))


def threshold(own: TaskTypeSettings, own_sweep: StuckTasksSettings) -> timedelta:
    """The heartbeat timeout of this type."""
    return own.step_timeout or own_sweep.stuck_threshold


def task_types(types: Mapping[str, TaskTypeSettings], own_sweep: StuckTasksSettings) -> tuple[TaskType, ...]:
    """The types of the settings for the queue of tasks."""
    return tuple(TaskType(name, own.max_retries, threshold(own, own_sweep)) for name, own in types.items())
