"""All ports in the memory of one process: the reference, and the backend of tests and simulations.

Data lives as long as this object. `restart` makes it behave like a server that came back with its data.
"""

from __future__ import annotations

from wrasse.backends.memory.catalog import MemoryCatalog
from wrasse.backends.memory.groups import MemoryGroups
from wrasse.backends.memory.jobs import MemoryJobs
from wrasse.backends.memory.journal import MemoryJournal
from wrasse.backends.memory.limiter import MemoryLimiter
from wrasse.backends.memory.objects import MemoryObjects
from wrasse.backends.memory.records import MemoryNamespaces, MemoryRecords
from wrasse.backends.memory.sightings import MemorySightings
from wrasse.backends.memory.streams import Logs, MemoryStreams
from wrasse.clock import Clock, SystemClock
from wrasse.ports.backend import Capabilities, JobStore, ObjectStore, StreamStore, full_groups
from wrasse.ports.guard import HealthSample
from wrasse.ports.records import Collection

_SYSTEM = SystemClock()


class Memory(JobStore, StreamStore, ObjectStore):
    """A backend: jobs, journal, records and a health sample."""

    capabilities = full_groups(
        Capabilities(
            jobs=True, job_extras=True, streams=True, objects=True, journal=True, limiter=True, sightings=True,
            status_index=True, copies=True
        )
    )  # fmt: skip

    def __init__(self, clock: Clock = _SYSTEM, *, done_max: int = 10_000, identity: str = "memory") -> None:
        self._clock = clock
        self._identity = identity
        self._restarts = 0
        self._records: dict[str, MemoryRecords] = {}
        self.jobs = MemoryJobs(clock, done_max=done_max)
        self.journal: MemoryJournal = MemoryJournal(clock)
        self.limiter = MemoryLimiter(clock)
        self._logs = logs = Logs(clock)
        self.streams = MemoryStreams(logs)
        self.groups = MemoryGroups(logs)
        self.objects = MemoryObjects(clock)
        self.catalog = MemoryCatalog(clock)
        self.namespaces = MemoryNamespaces(self._records, clock)
        self.sightings = MemorySightings(clock)

    def records(self, collection: Collection) -> MemoryRecords:
        """The records of one collection; the same ones each time."""
        return self._records.setdefault(collection.data, MemoryRecords(self._clock, self._logs))

    async def health_sample(self) -> HealthSample:
        """Identity and clock, now."""
        identity = f"{self._identity}-{self._restarts}" if self._restarts else self._identity
        return HealthSample(identity, self._clock.now())

    async def close(self) -> None:
        """Nothing is open; every backend has this method."""

    def restart(self) -> None:
        """Continues under another identity, as a server does that came back with its data."""
        self._restarts += 1
