"""Tasks as a queue under test: the records, streams and groups of a backend, and objects beside them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from wrasse.backends.directory.connect import Directory
from wrasse.backends.memory.connect import Memory
from wrasse.clock import Clock
from wrasse.jobs.stream_tasks.queue import TaskPorts, TaskQueue, TaskType
from wrasse.ports.objects import Objects
from wrasse.ports.records import Records
from wrasse.runtime.stream_tasks import EnvelopeCodec

PREFIX = "tasks "
APART = "memory, apart"  # where records and streams are not one database
TASKS_BACKENDS = ("tasks memory", "tasks memory, apart", "tasks sqlite", "tasks redis")
LONG_TASKS_BACKENDS = ("tasks nats", "tasks nats-2.9", "tasks redis-7.0", "tasks redis-cluster")
TYPES = tuple(TaskType(name) for name in ("low", "high", "other"))
# What is not so for tasks, each with why.
NOT_FOR_TASKS = {
    "test_an_id_may_have_any_printable_character": "ids and types of tasks have the design document's letters",
    "test_no_more_done_jobs_are_kept_than_allowed": "finished tasks go by age alone: nothing counts them as they end",
    "test_done_jobs_need_not_be_kept_at_all": "a completed task is a record that others read",
}


WIDTH = timedelta(seconds=1)


class Apart:
    """Records whose writes cannot carry entries of streams."""

    emits = False

    def __init__(self, records: Records) -> None:
        self._records = records

    def __getattr__(self, name: str) -> object:
        return getattr(self._records, name)


class TaskBackend:
    """A backend whose job queue is that of tasks."""

    def __init__(
        self, backend: object, objects: Objects, clock: Clock, closes: tuple[object, ...], *, apart: bool = False
    ) -> None:
        self.inner = backend
        self._closes = closes
        # What is due is shown at most one width late, and the suite lets less than a second pass.
        records = lambda collection: backend.records(replace(collection, width=WIDTH))  # noqa: E731
        if apart:
            records = lambda collection: Apart(backend.records(collection))  # noqa: E731
        ports = TaskPorts(records, backend.streams, backend.groups, EnvelopeCodec(clock), clock, objects)
        self.jobs = TaskQueue(ports, TYPES)
        self.records = backend.records
        self.streams = backend.streams
        self.groups = backend.groups
        self.health_sample = backend.health_sample

    async def close(self) -> None:
        for each in self._closes:
            await each.close()


async def tasks_on(name: str, backend: object, place: Path, clock: Clock) -> TaskBackend:
    """Tasks on this backend, with the objects that it has or a directory's."""
    if isinstance(backend, Memory):
        return TaskBackend(backend, backend.objects, clock, (), apart=name == APART)
    directory = await Directory.open(place / "objects", clock)
    return TaskBackend(backend, directory.objects, clock, (backend, directory))
