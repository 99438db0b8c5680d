"""A process on the memory backend and its watch, for the tests of the status page."""

from __future__ import annotations

from datetime import timedelta

from faults import Network, Script
from stream_faults import FaultyStreams
from wrasse.backends.memory.connect import Memory
from wrasse.breaker import BreakerSettings
from wrasse.clock import ManualClock
from wrasse.config.load import load
from wrasse.jobs.worker.breakers import SHUT_QUEUES, Breakers
from wrasse.leases.leases import Leases
from wrasse.ports.backend import Backend
from wrasse.ports.jobs import Job, WorkerInfo
from wrasse.runtime.engine import JOB_SWEEPS, build_engine, build_sweep
from wrasse.runtime.open_ports import OpenPorts
from wrasse.runtime.worker import DEFAULT_LEASES as LEASES
from wrasse.web.pages import page
from wrasse.web.snapshot import ProcessSnapshot, Subject, SubjectWatch

NASTY = "<script>alert(1)</script>&\"'"
HEARTBEAT_TIMEOUT = timedelta(seconds=30)


class Shown:
    """What is watched. `network` is between the process and its streams."""

    def __init__(self, kept: timedelta = timedelta(seconds=2)) -> None:
        self.clock = ManualClock()
        self.store = Memory(self.clock)
        settings = load("/dev/null", environ={}).settings
        stores: dict[str, Backend] = dict.fromkeys(("jobs", "records", "engine"), self.store)
        opened = OpenPorts(stores, engine_journal=self.store.journal)
        self.engine = build_engine(settings, opened, self.clock, "me")
        self.engine.add([build_sweep(name, settings, opened, self.clock) for name in JOB_SWEEPS])
        self.leases = Leases(self.store.records, self.store.objects, self.clock)
        self.network = Network(Script({}))
        self.wrong: str | None = None
        self.breakers = Breakers(("high", "low"), BreakerSettings(), self.clock)
        subject = Subject(
            clock=self.clock,
            roles=("all",),
            backend="memory:",
            jobs=self.store,
            journal=self.store.journal,
            leases=self.store.records(LEASES),
            streams=FaultyStreams(self.store.streams, self.network),
            engine=self.engine,
            worker=lambda: self.wrong,
            shut=self.store.records(SHUT_QUEUES),
            breakers=self.breakers,
        )
        self.watch = SubjectWatch(lambda: subject, kept)

    async def leave_behind(self, id: str, worker: str = "w") -> None:
        """A job that a worker took; nobody beats for it from here on."""
        await self.store.jobs.enqueue([Job(id, queue=NASTY)], request=id)
        await self.store.jobs.heartbeat(WorkerInfo(worker), (), heartbeat_timeout=HEARTBEAT_TIMEOUT)
        await self.store.jobs.claim(
            [NASTY], 1, worker=worker, heartbeat_timeout=HEARTBEAT_TIMEOUT, request=f"take {id}"
        )

    async def refresh(self) -> ProcessSnapshot:
        """A fresh snapshot."""
        self.clock.advance(self.watch.kept)
        return await self.watch.refresh()

    async def page(self) -> str:
        """The whole page."""
        snapshot = await self.refresh()
        return page(snapshot, self.clock.now())
