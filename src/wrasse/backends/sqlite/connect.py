"""A SQLite database as a backend for jobs, streams, records and the journal: durable, on one machine, for several
processes at once.

One thread writes, one reads, one watches for changes of other processes while a worker waits; the event loop never
touches the file. After `kill -9` at any point every confirmed write is there.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from wrasse.backends.sqlite.connection import File, SqliteReader, SqliteWriter, identity
from wrasse.backends.sqlite.groups import SqliteGroups
from wrasse.backends.sqlite.jobs.queue import SqliteFsck, SqliteJobs
from wrasse.backends.sqlite.journal import SqliteJournal
from wrasse.backends.sqlite.limiter import SqliteLimiter
from wrasse.backends.sqlite.records import SqliteNamespaces, SqliteRecords
from wrasse.backends.sqlite.sightings import SqliteSightings
from wrasse.backends.sqlite.streams import SqliteStreams
from wrasse.backends.sqlite.wakeups import SqliteWakeups
from wrasse.clock import Clock, SystemClock
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.ports.backend import Capabilities, JobStore, StreamStore, full_groups
from wrasse.ports.guard import HealthSample
from wrasse.ports.records import Collection

PATIENCE = timedelta(seconds=10)  # how long to wait for another process that has the write lock


class Sqlite(JobStore, StreamStore):
    """One open database. Made by `open`; it serves the event loop that opened it, until `close`."""

    capabilities = full_groups(
        Capabilities(
            jobs=True, job_extras=True, streams=True, journal=True, limiter=True, sightings=True, fsck=True,
            status_index=True
        )
    )  # fmt: skip

    def __init__(self, file: File, clock: Clock, *, done_max: int) -> None:
        self._clock = clock
        self._wakeups = SqliteWakeups(file, clock)
        self._writer = SqliteWriter(file, clock, self._wakeups.fire)
        self._reader = SqliteReader(file)
        self.jobs = SqliteJobs(self._writer, self._reader, self._wakeups, clock, done_max=done_max)
        self.journal = SqliteJournal(self._writer, self._reader, clock)
        self.limiter = SqliteLimiter(self._writer)
        self.namespaces = SqliteNamespaces(self._reader, clock)
        self.sightings = SqliteSightings(self._writer, self._reader, clock)
        self.streams = SqliteStreams(self._writer, self._reader, clock)
        self.fsck = SqliteFsck(self._writer, self._reader)
        self.groups = SqliteGroups(self._writer, self._reader, self._wakeups, clock)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        clock: Clock = SystemClock(),  # noqa: B008  # it has no state
        *,
        done_max: int = 10_000,
        patience: timedelta = PATIENCE,
    ) -> Sqlite:
        """Opens the database, makes it if there is none, and migrates an old one."""
        store = cls(File.at(path, patience), clock, done_max=done_max)
        try:
            await store._writer.open()
            await store._reader.open()
        except BaseException:
            await store.close()
            raise
        return store

    def records(self, collection: Collection) -> SqliteRecords:
        """The records of one collection."""
        return SqliteRecords(self._writer, self._reader, self._clock, collection.data)

    async def health_sample(self) -> HealthSample:
        """Checks that the database answers, and reads its identity: the same for the life of the file."""
        try:
            name = await self._reader.do(identity)
        except StoreBroken as error:
            raise StoreUnavailable(error.message, do=error.do) from error
        return HealthSample(name, self._clock.now())

    async def close(self) -> None:
        """Finishes queued operations, then closes the file. Claims that wait end without a job."""
        self._wakeups.close()
        await self._reader.close()
        await self._writer.close()
