"""The backends under test, each behind the same small face. All knowledge of a backend is in this file.

A store can be opened, reopened as after a restart of our process, and let time pass: at once where the clock is ours,
by waiting where it is the server's.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from conformance.object_stores import S3Place
from conformance.recorded_stores import PREFIX as RECORDED, RecordedBackend
from conformance.task_stores import APART, PREFIX, tasks_on
from servers.cluster import SHARED_CLUSTER
from servers.nats import SHARED_NATS, newest_nats
from servers.old import nats_2_9, redis_7_0
from servers.seaweed import S3 as S3Server
from servers.valkey import SHARED, newest, oldest
from wrasse.backends.memory.connect import Memory
from wrasse.clock import Clock, ManualClock, SystemClock
from wrasse.ports.guard import HealthSample
from wrasse.ports.jobs import JobQueue
from wrasse.ports.journal import Journal
from wrasse.ports.records import Collection, Records, stored_name
from wrasse.runtime.backends import journal_of

BACKENDS = ("memory", "sqlite")
CLUSTER, REDIS_PY = "redis-cluster", "redis-py"
REDIS_SERVERS = {"redis": newest, "redis-7.0": redis_7_0, "redis-6.2": oldest}
NATS_SERVERS = {"nats": newest_nats, "nats-2.9": nats_2_9}
OLD_SERVERS = ("redis-7.0", "nats-2.9", REDIS_PY)  # the oldest that streams run on, and the other client of Redis
JOBS_BACKENDS = (*BACKENDS, "redis")
STREAMS_BACKENDS = (*BACKENDS, "redis", "nats")
RECORDS_BACKENDS = (*BACKENDS, "directory", "redis", "redis-6.2", "strict s3", "s3", "nats")
EMITTING_BACKENDS = ("memory", "sqlite", "redis")  # where records and streams are one database


class Backend(Protocol):
    """What every backend's connect.py offers."""

    @property
    def jobs(self) -> JobQueue: ...

    def records(self, collection: Collection) -> Records: ...

    async def health_sample(self) -> HealthSample: ...

    async def close(self) -> None: ...


class Store:
    """One backend under test."""

    def __init__(
        self,
        name: str,
        place: Path,
        *,
        clock: Clock | None = None,
        done_max: int = 10_000,
        server: S3Server | None = None,
    ) -> None:
        self._tasks = name.startswith(PREFIX)
        self._recorded = name.startswith(RECORDED)
        self.name = name = name.removeprefix(PREFIX).removeprefix(RECORDED)
        if clock is None and server is not None:
            clock = SystemClock()  # the server's own moves by itself
        self.clock = clock if clock is not None else ManualClock()
        self._s3 = S3Place(self.clock, server)
        self._place = place
        self._done_max = done_max
        self._memory = Memory(self.clock, done_max=done_max)
        self._backend: Backend | None = None
        self._root = f"t{uuid4().hex}"  # of all keys of a server that tests share

    async def open(self) -> None:
        """Connects."""
        self._backend = await self.another()

    async def another(self) -> Backend:
        """A second connection to the same data, as another process would have. The caller closes it."""
        backend = await self._another()
        if self._recorded:
            return RecordedBackend(backend, self.clock, self._done_max)  # type: ignore[arg-type]
        return await tasks_on(self.name, backend, self._place, self.clock) if self._tasks else backend

    async def _another(self) -> Backend:
        if self.name in ("memory", APART):
            return self._memory
        if self.name == "directory":
            from wrasse.backends.directory.connect import Directory

            return await Directory.open(self._place / "data", self.clock)
        if self.name in (*REDIS_SERVERS, CLUSTER, REDIS_PY):
            return await self._redis()
        if self.name in NATS_SERVERS:
            return await self._nats()
        if self.name.endswith("s3"):
            from wrasse.backends.s3.connect import S3

            return await S3.open(await self._s3.address(), self.clock)
        from wrasse.backends.sqlite.connect import Sqlite  # here: the memory suite runs without it

        return await Sqlite.open(self._place / "wrasse.db", self.clock, done_max=self._done_max)

    async def _redis(self) -> Backend:
        from wrasse.backends.redis.connect import Redis
        from wrasse.backends.redis.options import RedisOptions

        on_cluster = self.name == CLUSTER
        newest_or = REDIS_SERVERS.get(self.name, newest)
        servers = SHARED_CLUSTER.get().nodes if on_cluster else (SHARED.at(newest_or()),)
        nodes = tuple(("127.0.0.1", server.port) for server in servers)
        prefix = "" if on_cluster else f"{self._root}:stream:"  # a stream named `a` is not that of another test
        client = REDIS_PY if self.name == REDIS_PY else "own"
        options = RedisOptions(nodes=nodes, root=self._root, cluster=on_cluster, streams_prefix=prefix, client=client)
        # Where the clock is ours, the scripts believe in it; where it moves by itself, in the server's.
        return await Redis.open(
            options,
            self.clock,
            done_max=self._done_max,
            time=self.clock if isinstance(self.clock, ManualClock) else None,
        )

    async def _nats(self) -> Backend:
        from wrasse.backends.nats.connect import Nats
        from wrasse.backends.nats.options import NatsOptions

        prefix = f"{self._root}.s."  # a stream named `a` is not that of another test
        node = ("127.0.0.1", SHARED_NATS.at(NATS_SERVERS[self.name]()).port)
        options = NatsOptions(nodes=(node,), root=self._root, streams_prefix=prefix)
        told = self.clock if isinstance(self.clock, ManualClock) else None
        return await Nats.open(options, self.clock, time=told)

    async def reopen(self) -> None:
        """What a restart of our process does."""
        await self.close(keeps=True)
        await self.open()

    async def close(self, *, keeps: bool = False) -> None:
        """Disconnects."""
        if self._backend is not None:
            if self.name in (*REDIS_SERVERS, CLUSTER, REDIS_PY) and not keeps:
                await forget(getattr(self._backend, "inner", self._backend), self._root)
            if self.name in NATS_SERVERS and not keeps:
                await forget_bucket(getattr(self._backend, "inner", self._backend), self._root)
            await self._backend.close()
            self._backend = None
        await self._s3.close()

    async def pass_time(self, duration: timedelta) -> None:
        """Lets the backend's clock move on by this much."""
        if isinstance(self.clock, ManualClock):
            self.clock.advance(duration)
        else:
            await asyncio.sleep(duration.total_seconds())

    @property
    def soon(self) -> timedelta:
        """A while that is short, and yet longer than a few calls take."""
        return timedelta(milliseconds=300) if isinstance(self.clock, ManualClock) else timedelta(seconds=3)

    @property
    def backend(self) -> Backend:
        """The connection."""
        assert self._backend is not None, "the store is not open"
        return self._backend

    @property
    def jobs(self) -> JobQueue:
        return self.backend.jobs

    @property
    def journal(self) -> Journal:
        return journal_of(self.backend, self.clock)  # type: ignore[arg-type]

    def keeps(self, key: str) -> bool:
        """Whether a record may have this key; SeaweedFS is a tree of folders, and wrasse refuses others there."""
        return self.name != "s3" or ("\\" not in key and len(stored_name(key).encode()) <= 255)

    def collection(self, name: str = "things") -> Collection:
        """Where the records of this name live, on any connection."""
        return Collection.named(name, width=timedelta(seconds=1))

    def records(self, name: str = "things") -> Records:
        """The records of one collection."""
        return self.backend.records(self.collection(name))


async def forget(backend: Backend, root: str) -> None:
    """Removes what one store left on a server that others use."""
    from wrasse.backends.redis.connect import Redis

    assert isinstance(backend, Redis)
    cursor: bytes = b"0"
    while True:
        cursor, keys = await backend.client.ask("SCAN", cursor, "MATCH", f"*{root}*", "COUNT", 1_000)
        if keys:
            await backend.client.ask("UNLINK", *keys)
        if cursor == b"0":
            return


async def forget_bucket(backend: Backend, root: str) -> None:
    """The same on a NATS server."""
    from wrasse.backends.nats.client.jetstream import JetStream
    from wrasse.backends.nats.connect import Nats

    assert isinstance(backend, Nats)
    js = JetStream(backend.connection)
    names = (await js.call("STREAM.NAMES", {"subject": f"{root}.>"})).get("streams") or []
    await asyncio.gather(*(js.call(f"STREAM.DELETE.{name}") for name in (f"KV_{root}", *names)))
