"""The stores of objects under test, each behind the same small face. All knowledge of a backend is in this file."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from datetime import timedelta
from pathlib import Path

from servers.seaweed import S3 as S3Server
from servers.strict_s3 import StrictS3
from wrasse.backends.directory.connect import Directory
from wrasse.backends.directory.files import Files
from wrasse.backends.memory.connect import Memory
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.client import Client
from wrasse.backends.s3.connect import S3
from wrasse.backends.s3.object_listing import nameable
from wrasse.backends.s3.transport import S3Request, S3Transport
from wrasse.clock import Clock, ManualClock, SystemClock
from wrasse.errors import StoreUnavailable
from wrasse.ports.objects import ObjectInfo, Objects

OBJECT_BACKENDS = ("memory", "directory", "directory that cannot exchange names", "strict s3", "s3")
# SeaweedFS is a tree of folders: an object cannot get the name of a folder that is there already.
FREE_OF_FOLDERS = tuple(name for name in OBJECT_BACKENDS if name != "s3")
BUCKET = "wrasse-tests"


class NoExchange(Files):
    """A file system like NFS, which cannot exchange two names."""

    def exchange(self, one: bytes, other: bytes) -> bool:
        return False


class S3Place:
    """A place of its own in an S3: a strict one in this process, or a prefix in a bucket of a real server."""

    def __init__(self, clock: Clock, server: S3Server | None) -> None:
        self._clock = clock
        self._server = server
        self.strict = StrictS3(clock)
        self._prefix = secrets.token_hex(6)

    async def address(self) -> S3Address:
        """Where it is, up and with its bucket."""
        if self._server is None:
            await self.strict.start()
            return S3Address("bucket", endpoint=self.strict.endpoint, access_key="test", secret_key="testsecret")
        server = self._server
        await make_bucket(server)
        return S3Address(BUCKET, self._prefix, server.endpoint, access_key=server.key, secret_key=server.secret)

    async def close(self) -> None:
        """Closes it; its objects stay."""
        await self.strict.close()


async def make_bucket(server: S3Server, bucket: str = BUCKET) -> S3Address:
    """The bucket that all tests share, each under a prefix of its own: the server has room for few buckets."""
    address = S3Address(bucket, "", server.endpoint, access_key=server.key, secret_key=server.secret)
    wire = S3Transport(address, SystemClock())
    try:
        with contextlib.suppress(StoreUnavailable):  # it is there already
            await wire.ask(S3Request("PUT", None))
        await Client(wire).bucket_is_there()
    finally:
        await wire.close()
    return address


async def versioned_bucket(server: S3Server) -> S3Address:
    """A prefix of its own in a bucket that keeps versions."""
    address = await make_bucket(server, "versioned")
    on = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    wire = S3Transport(address, SystemClock())
    await wire.ask(S3Request("PUT", None, (("versioning", ""),), body=on))
    await wire.close()
    return dataclasses.replace(address, prefix=secrets.token_hex(6))


class ObjectStore:
    """One backend under test."""

    def __init__(self, name: str, place: Path, server: S3Server | None = None) -> None:
        self.name = name
        self.clock: Clock = ManualClock() if name != "s3" else SystemClock()
        self._place = place
        self._memory = Memory(self.clock)
        self._s3 = S3Place(self.clock, server)
        self._backends: list[Memory | Directory | S3] = []

    @property
    def modified_within(self) -> timedelta:
        """How far the time of a change may be from ours: S3 tells whole seconds."""
        return timedelta(seconds=1 if self.name == "strict s3" else 60 if self.name == "s3" else 0.001)

    @property
    def versions_name_bytes(self) -> bool:
        """Whether the same bytes written again may have the same version."""
        return self.name.endswith("s3")

    def keeps(self, key: str) -> bool:
        """Whether the store can keep this key; SeaweedFS is a tree of folders, and wrasse refuses others there."""
        return self.name != "s3" or nameable(key.encode("utf-8", "surrogateescape"))

    async def open(self) -> None:
        """Connects."""
        await self.another()

    async def another(self) -> Objects:
        """A second connection to the same data, as another process would have."""
        backend: Memory | Directory | S3
        if self.name == "memory":
            backend = self._memory
        elif self.name.endswith("s3"):
            backend = await S3.open(await self._s3.address(), self.clock)
        else:
            backend = await Directory.open(
                self._place, self.clock, files=Files if self.name == "directory" else NoExchange
            )
        self._backends.append(backend)
        return backend.objects

    async def reopen(self) -> None:
        """What a restart of our process does."""
        await self.close()
        await self.open()

    async def close(self) -> None:
        """Disconnects."""
        while self._backends:
            await self._backends.pop().close()
        await self._s3.close()

    @property
    def objects(self) -> Objects:
        """The port."""
        return self._backends[0].objects


async def listed(objects: Objects, prefix: str = "", limit: int = 2) -> list[ObjectInfo]:
    """Everything with this prefix, by small pages, so that every listing also tests its cursors."""
    shown: list[ObjectInfo] = []
    after: str | None = None
    while True:
        page = await objects.page(prefix, after, limit)
        shown += page
        after = page.cursor
        if after is None:
            return shown


async def whole(objects: Objects, key: str, *, at: str | None = None) -> bytes:
    """All bytes of one object."""
    return b"".join([chunk async for chunk in objects.read(key, at=at)])
