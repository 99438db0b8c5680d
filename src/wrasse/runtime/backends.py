"""The only file that chooses a backend for a port. A URL that this version cannot serve is refused here, at the start.

Backends are imported when they are opened: a process imports only what it uses, and the heartbeat process very little.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from wrasse.clock import Clock, SystemClock
from wrasse.config.redaction import hide
from wrasse.config.urls import StoreUrl, parse_objects, parse_store
from wrasse.engine.record_journal import JOURNAL, RecordJournal
from wrasse.errors import ConfigError
from wrasse.ports.backend import Backend, Finding, JobStore, ObjectStore, StreamStore
from wrasse.ports.catalog import Catalog, Query
from wrasse.ports.guard import Examined, HealthSample
from wrasse.ports.journal import Journal
from wrasse.ports.objects import Objects
from wrasse.ports.records import Collection, Records
from wrasse.ports.sightings import Sightings

if TYPE_CHECKING:
    from wrasse.config.settings import WorkerSection
    from wrasse.jobs.record_queue.queue import RecordedJobs


DONE_MAX = 10_000
RESCUES_MAX = 3
LATE_S = 2.0


class KeepsRecords(Protocol):
    """A backend with records."""

    @property
    def margin(self) -> timedelta:
        """The largest error of the time it returns."""
        ...

    def records(self, collection: Collection) -> Records:
        """The records of one collection."""
        ...


class RecordsAlone(JobStore):
    """An S3 bucket or a directory as a backend of records, and of jobs on records."""

    def __init__(self, store: ObjectStore, clock: Clock, done_max: int, rescues_max: int = RESCUES_MAX) -> None:
        self.store = store
        self.capabilities, self.namespaces, self.objects = store.capabilities, store.namespaces, store.objects
        self.margin = store.margin
        # Each kept done job costs a request: with the default setting none are kept here.
        self.jobs: RecordedJobs = recorded_jobs(store, clock, 0 if done_max == DONE_MAX else done_max, rescues_max)

    @property
    def requests(self) -> int | None:
        """How many requests were sent so far."""
        return self.store.requests

    def records(self, collection: Collection) -> Records:
        """The records of one collection."""
        return self.store.records(collection)

    async def health_sample(self) -> HealthSample:
        """Checks that it answers."""
        return await self.store.health_sample()

    async def honours(self) -> object:
        """The conditional writes it was found to honour."""
        return await self.store.honours()

    async def examine(self) -> Sequence[Finding]:
        """Findings about its server's settings."""
        return await self.store.examine()

    async def finish(self) -> None:
        """Waits for background work."""
        await self.jobs.close()

    async def close(self) -> None:
        """Finishes background work and closes it."""
        await self.finish()
        await self.store.close()


def recorded_jobs(store: ObjectStore, clock: Clock, done_max: int, rescues_max: int) -> RecordedJobs:
    """Jobs on the records and objects of a store. An S3 bucket is polled less often."""
    from wrasse.jobs.record_queue.queue import RecordedJobs, RecordedOptions

    poll_max = 1.0 if store.capabilities.billed else 0.2
    options = RecordedOptions(done_max=done_max, rescues_max=rescues_max, poll_max=poll_max)
    return RecordedJobs(store.records, store.objects, clock, options)


def journal_of(store: Backend, clock: Clock) -> Journal:
    """The journal of a store: a table of its own where it has one, else records."""
    return store.journal or RecordJournal(store.records(JOURNAL), clock)


def with_jobs(store: Backend) -> JobStore:
    """The same backend, checked to have jobs."""
    assert isinstance(store, JobStore), "settings with jobs on other backends are refused when they are read"
    return store


def with_streams(store: Backend) -> StreamStore:
    """The same backend, checked to have streams."""
    assert isinstance(store, StreamStore), "settings with streams on other backends are refused when they are read"
    return store


async def open_store(url: str, clock: Clock | None = None, *, done_max: int = DONE_MAX, create: bool = True) -> Backend:
    """Opens the backend that the URL names. Without `create` a missing file or directory is not created: an empty
    store is opened instead."""
    wanted = parse_store(url)
    return await _open(wanted, clock or SystemClock(), done_max, create=create)


def existing(url: StoreUrl) -> StoreUrl:
    """The same store, or an empty one in memory if it is a file or a directory that does not exist. A database in a
    directory that does not exist is the same: opening it fails, as it would for a command that writes."""
    if url.scheme not in ("sqlite", "file") or not _is_missing(url.path):
        return url
    if url.scheme == "sqlite" and not os.path.isdir(os.path.dirname(url.path) or "."):
        return url
    return StoreUrl("memory")


def _is_missing(path: str) -> bool:
    """Whether a path does not exist. A path that cannot be read, such as a link to itself, is not missing."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


async def _open(url: StoreUrl, clock: Clock, done_max: int, *, create: bool) -> Backend:
    url = url if create else existing(url)
    if url.scheme == "memory":
        from wrasse.backends.memory.connect import Memory

        return Memory(clock, done_max=done_max)
    if url.is_bucket:
        return RecordsAlone(await _open_objects(url, clock, create=create), clock, done_max)
    if url.is_nats:
        from wrasse.backends.nats.connect import Nats

        return await Nats.open(url.url, clock, create=create)
    if url.served:
        try:
            from wrasse.backends.redis.connect import Redis
        except ModuleNotFoundError as missing:
            raise ConfigError(
                f"the redis backend needs the package {missing.name}", do="pip install 'wrasse[redis]'"
            ) from missing

        return await Redis.open(url.url, clock, done_max=done_max, to_read=not create)
    assert url.scheme == "sqlite", "parse_store lets no other through"
    from wrasse.backends.sqlite.connect import Sqlite

    return await Sqlite.open(url.path, clock, done_max=done_max)


async def _open_objects(url: StoreUrl, clock: Clock, *, create: bool) -> ObjectStore:
    url = url if create else existing(url)
    if url.scheme == "memory":
        from wrasse.backends.memory.connect import Memory

        return Memory(clock)
    if url.scheme == "s3":
        from wrasse.backends.s3.address import S3Address
        from wrasse.backends.s3.connect import S3

        return await S3.open(S3Address.parse(url.path.removeprefix("//")), clock, to_read=not create)
    assert url.scheme == "file", "parse_objects lets no other through"
    from wrasse.backends.directory.connect import Directory

    return await Directory.open(url.path, clock)


class Stores:
    """The backends of one process, each opened once, however many ports it serves."""

    __slots__ = (
        "_clock", "_create", "_done_max", "_endings", "_locks", "_objects", "_open", "_rescues_max", "_stack",
        "examined",
    )  # fmt: skip

    def __init__(
        self, clock: Clock, *, done_max: int = DONE_MAX, rescues_max: int = RESCUES_MAX, create: bool = True
    ) -> None:
        self._clock = clock
        self._create = create  # whether a missing file or directory is created
        self._locks: defaultdict[StoreUrl, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._done_max, self._rescues_max = done_max, rescues_max
        self._open: dict[StoreUrl, Backend] = {}
        self._objects: dict[StoreUrl, ObjectStore] = {}
        self._stack = AsyncExitStack()
        self.examined: list[Examined] = []  # catalogs that the doctor examines
        self._endings: list[Callable[[], Awaitable[None]]] = []

    @classmethod
    def of(cls, own: WorkerSection, clock: Clock | None = None, *, create: bool = True) -> Stores:
        """The stores of a process with these settings. A command that only reads creates nothing."""
        return cls(clock or SystemClock(), done_max=own.done_max, rescues_max=own.rescues_max, create=create)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def clock(self) -> Clock:
        """The clock of its backends."""
        return self._clock

    def at_end(self, close: Callable[[], None]) -> None:
        """Calls this before the stores opened so far are closed."""
        self._stack.callback(close)

    def finish_first(self, finish: Callable[[], Awaitable[None]]) -> None:
        """Awaits this before anything is closed."""
        self._endings.append(finish)

    async def open(self, url: str) -> Backend:
        """The backend of this URL."""
        wanted = parse_store(url).resolved()
        if wanted.is_bucket and wanted not in self._open:
            alone = RecordsAlone(await self.open_object_store(url), self._clock, self._done_max, self._rescues_max)
            # Another task may have opened it meanwhile.
            if self._open.setdefault(wanted, alone) is alone:
                self.finish_first(alone.finish)
        async with self._locks[wanted]:
            if wanted not in self._open:
                with told_if_late(hide(str(wanted))):
                    store = await _open(wanted, self._clock, self._done_max, create=self._create)
                self._stack.push_async_callback(store.close)
                self._open[wanted] = store
        return self._open[wanted]

    async def open_journal(self, url: str) -> Journal:
        """The journal of the backend of this URL."""
        return journal_of(await self.open(url), self._clock)

    async def open_streams(self, url: str) -> StreamStore:
        """The backend of this URL, if it has streams."""
        store = await self.open(url)
        await store.check_streams()
        return with_streams(store)

    async def open_objects(self, url: str) -> Objects:
        """The objects of the store of this URL."""
        return (await self.open_object_store(url)).objects

    async def open_object_store(self, url: str) -> ObjectStore:
        """The object store of this URL."""
        wanted = parse_objects(url).resolved()
        async with self._locks[wanted]:
            if wanted not in self._objects:
                with told_if_late(hide(str(wanted))):
                    store = await _open_objects(wanted, self._clock, create=self._create)
                self._stack.push_async_callback(store.close)
                self._objects[wanted] = store
        return self._objects[wanted]

    async def open_catalog(self, url: str, queries: Sequence[Query]) -> Catalog:
        """The references that these queries return, in a user's database."""
        if url.startswith("sqlite:"):
            from wrasse.backends.sqlite.catalog import SqliteCatalog

            return SqliteCatalog(parse_store(url).resolved().path, queries, self._clock)
        from wrasse.backends.sql.catalog import SqlCatalog

        catalog = SqlCatalog.open(url, queries)
        self._stack.push_async_callback(catalog.close)
        self.examined.append(catalog)
        return catalog

    async def open_sightings(self, url: str) -> tuple[Sightings, KeepsRecords]:
        """The sightings of orphans in the store of this URL, and the backend of records beside them."""
        if url.startswith(("postgresql:", "postgres:", "postgresql+")):
            from wrasse.backends.sql.sightings import PostgresSightings

            sightings = await PostgresSightings.open(url)
            self._stack.push_async_callback(sightings.close)
            return sightings, sightings
        store = await self.open(url)
        if store.sightings is None:
            raise ConfigError(
                f"{url.partition(':')[0]} keeps no sightings of orphans",
                do="set sightings: sqlite:wrasse.db in the root",
            )
        return store.sightings, store

    async def close(self) -> None:
        """Closes them all, the last opened first."""
        while self._endings:
            await self._endings.pop()()
        self._open.clear()
        self._objects.clear()
        await self._stack.aclose()


TELL: ContextVar[Callable[[str], None] | None] = ContextVar("TELL", default=None)


@contextmanager
def told_if_late(where: str) -> Iterator[None]:
    """Calls TELL, if set, once with `where` if the body takes longer than LATE_S."""
    tell = TELL.get()
    if tell is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(LATE_S, tell, where)
    try:
        yield
    finally:
        timer.cancel()
