"""A world of tasks: one type, its queue, and what its streams say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from conformance.queue_client import QueueClient
from faults import FaultyRecords, Network
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.sweep import Action
from wrasse.jobs.stream_tasks.fields import ERRORS, SWEEPS, TASKS, queue_of, terminal_of
from wrasse.jobs.stream_tasks.queue import TaskPorts, TaskQueue, TaskType
from wrasse.jobs.stream_tasks.store import TaskRetention
from wrasse.ports.groups import Groups
from wrasse.ports.objects import Objects
from wrasse.ports.records import Collection, Record, Records
from wrasse.ports.streams import START, Streams
from wrasse.runtime.stream_tasks import EnvelopeCodec
from wrasse.sweeps.stuck_jobs import StuckJobs

MAIL = "low"  # the type, called as the queue that a QueueClient uses unless told otherwise
STEP = timedelta(seconds=30)
RETRIES = 2


class Apart:
    """Records whose writes cannot carry entries of streams."""

    emits = False

    def __init__(self, records: Records) -> None:
        self._records = records

    def __getattr__(self, name: str) -> object:
        return getattr(self._records, name)


class TaskWorld:
    """Tasks in memory, and a sweep of them."""

    def __init__(self, *, apart: bool = False, types: Sequence[str] = (MAIL,), streams: Streams | None = None) -> None:
        self.clock = ManualClock()
        self.memory = Memory(self.clock)
        self.apart = apart
        self.streams = streams or self.memory.streams
        self.types = tuple(TaskType(name, RETRIES, STEP) for name in types)
        self.jobs = self.another()
        self.client = QueueClient(self.jobs)

    def another(
        self,
        *,
        streams: Streams | None = None,
        groups: Groups | None = None,
        objects: Objects | None = None,
        network: Network | None = None,
    ) -> TaskQueue:
        """The same tasks, as another process has them; with a network between it and their records."""

        def records(collection: Collection) -> Records:
            found = self._records(collection)
            return FaultyRecords(found, network) if network is not None and collection == TASKS else found

        ports = TaskPorts(
            records,
            streams or self.streams,
            groups or self.memory.groups,
            EnvelopeCodec(self.clock),
            self.clock,
            objects or self.memory.objects,
            kept=TaskRetention(timedelta(days=1), timedelta(days=90)),
        )
        return TaskQueue(ports, self.types)

    @property
    def sweep(self) -> StuckJobs:
        """The sweep of stuck tasks, as the settings build it."""
        retries = {each.name: RETRIES for each in self.types}
        return StuckJobs(self.jobs, heartbeat_timeout=timedelta(0), retries=retries, reports=self.jobs.reports)

    async def swept(self, sweep: StuckJobs | None = None) -> list[str]:
        """One run of the sweep, without its engine: what it did."""
        sweep = sweep or self.sweep
        await self.jobs.strays.scan(None, 100, heartbeat_timeout=STEP, dry=False)
        page = await sweep.find(None, 100)
        actions = [each for info in page if isinstance(each := sweep.decide(info, page.at), Action)]
        await sweep.apply(actions)
        return [action.verb for action in actions]

    async def fields(self, id: str) -> dict[str, str]:
        """The record of a task as others read it."""
        record = await self.memory.records(TASKS).get(f"{MAIL}:{id}")
        assert record is not None, f"there is no task {id!r}"
        return msgspec.json.decode(record.value, type=dict[str, str])

    async def write(self, id: str, fields: dict[str, str], due_at: datetime | None = None) -> Record:
        """A record as another program would leave it."""
        records = self.memory.records(TASKS)
        await records.create(f"{MAIL}:{id}", msgspec.json.encode(fields), due_at=due_at)
        record = await records.get(f"{MAIL}:{id}")
        assert record is not None
        return record

    async def queued(self) -> list[dict[str, object]]:
        """What the queue stream says, oldest first."""
        return await self.said(queue_of(MAIL))

    async def ended(self) -> list[dict[str, object]]:
        """What the terminal stream says."""
        return await self.said(terminal_of(MAIL))

    async def errors(self) -> list[dict[str, object]]:
        """What was told for alerting."""
        return await self.said(ERRORS)

    async def reports(self) -> list[dict[str, object]]:
        """What sweeps told."""
        return await self.said(SWEEPS)

    async def said(self, subject: str) -> list[dict[str, object]]:
        """The events of a stream."""
        codec = EnvelopeCodec(self.clock)
        page = await self.memory.streams.read(subject, START, 1_000)
        return [msgspec.json.decode(codec.open(entry) or b"null") for entry in page]

    def _records(self, collection: Collection) -> Records:
        records = self.memory.records(collection)
        return Apart(records) if self.apart else records  # type: ignore[return-value]
