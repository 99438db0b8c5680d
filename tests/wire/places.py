"""The backends, each empty, with a clock of ours where it lets itself be told the time, and the dump of all it holds.

All knowledge of how a backend is opened is in this file.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats as nats_py
import redis

from conformance.object_stores import make_bucket
from servers.nats import Nats as NatsServer
from servers.seaweed import S3 as S3Server
from servers.strict_s3 import StrictS3
from servers.valkey import Valkey
from wire.dumps import Item, as_text, directory_items, nats_items, object_items, redis_items, sqlite_items
from wire.placeholders import Placeholders
from wrasse.backends.directory.connect import Directory
from wrasse.backends.nats.connect import Nats
from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import Clock, ManualClock, SystemClock

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@dataclass
class Place:
    """A backend that is open, and what it holds by other means."""

    name: str
    backend: Any
    clock: Clock
    names: Placeholders
    items: Callable[[], Awaitable[list[Item]]]
    idle: Callable[[], Awaitable[None]] | None = None  # until the port that plays has nothing left to do

    async def dump(self) -> str:
        """Everything that it holds, as it is recorded."""
        return as_text(await self.items(), self.names)


@dataclass(frozen=True)
class Servers:
    """The servers of the tests of this package, which are theirs alone: each scenario begins with empty ones."""

    redis: Callable[[], Valkey]
    nats: Callable[[], NatsServer]
    s3: Callable[[], S3Server]


@contextlib.asynccontextmanager
async def place(name: str, folder: Path, servers: Servers) -> AsyncIterator[Place]:
    """One backend, empty."""
    opened = {
        "redis": _redis, "nats": _nats, "sqlite": _sqlite, "directory": _directory, "strict s3": _strict_s3, "s3": _s3,
    }  # fmt: skip
    async with opened[name](folder, servers) as found:
        try:
            yield found
        finally:
            await found.backend.close()


@contextlib.asynccontextmanager
async def _redis(folder: Path, servers: Servers) -> AsyncIterator[Place]:
    server, clock, names = servers.redis(), ManualClock(START), Placeholders()
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    backend = await Redis.open(RedisOptions(nodes=(("127.0.0.1", server.port),)), clock, time=clock)

    async def items() -> list[Item]:
        return redis_items(server.url, names)

    yield Place("redis", backend, clock, names, items)


@contextlib.asynccontextmanager
async def _nats(folder: Path, servers: Servers) -> AsyncIterator[Place]:
    server, clock, names = servers.nats(), ManualClock(START), Placeholders()
    client = await nats_py.connect(server.url)
    for stream in await client.jetstream().streams_info():
        await client.jetstream().delete_stream(stream.config.name)
    await client.close()
    backend = await Nats.open(NatsOptions(nodes=(("127.0.0.1", server.port),)), clock, time=clock)

    async def items() -> list[Item]:
        return await nats_items(server.url)

    yield Place("nats", backend, clock, names, items)


@contextlib.asynccontextmanager
async def _sqlite(folder: Path, servers: Servers) -> AsyncIterator[Place]:
    path, clock, names = folder / "wrasse.db", ManualClock(START), Placeholders()

    async def items() -> list[Item]:
        return sqlite_items(path)

    yield Place("sqlite", await Sqlite.open(path, clock), clock, names, items)


@contextlib.asynccontextmanager
async def _directory(folder: Path, servers: Servers) -> AsyncIterator[Place]:
    root, clock, names = folder / "data", ManualClock(START), Placeholders()

    async def items() -> list[Item]:
        return directory_items(root)

    yield Place("directory", await Directory.open(root, clock), clock, names, items)


@contextlib.asynccontextmanager
async def _strict_s3(folder: Path, servers: Servers) -> AsyncIterator[Place]:
    clock, names = ManualClock(START), Placeholders()
    strict = StrictS3(clock)
    await strict.start()
    address = S3Address("bucket", endpoint=strict.endpoint, access_key="test", secret_key="testsecret")

    async def items() -> list[Item]:
        return object_items({k.decode(): (thing.data, _kept(thing.headers)) for k, thing in strict.things.items()})

    try:
        yield Place("strict s3", await S3.open(address, clock), clock, names, items)
    finally:
        await strict.close()


@contextlib.asynccontextmanager
async def _s3(folder: Path, servers: Servers) -> AsyncIterator[Place]:
    server, clock = servers.s3(), SystemClock()
    bucket, prefix = (await make_bucket(server)).bucket, f"w{datetime.now(UTC).timestamp():.6f}"
    address = S3Address(bucket, prefix, server.endpoint, access_key=server.key, secret_key=server.secret)
    names = Placeholders(datetime.now(UTC))

    async def items() -> list[Item]:
        return object_items(await asyncio.to_thread(_listed, server, bucket, f"{prefix}/"))

    yield Place("s3", await S3.open(address, clock), clock, names, items)


def _listed(server: S3Server, bucket: str, prefix: str) -> Mapping[str, tuple[bytes, Mapping[str, str]]]:
    import boto3

    client = boto3.client(
        "s3", endpoint_url=server.endpoint, aws_access_key_id=server.key, aws_secret_access_key=server.secret,
        region_name="us-east-1",
    )  # fmt: skip
    found = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for each in page.get("Contents", ()):
            answer = client.get_object(Bucket=bucket, Key=each["Key"])
            headers = _kept(answer["ResponseMetadata"]["HTTPHeaders"])
            found[each["Key"].removeprefix(prefix)] = (answer["Body"].read(), headers)
    client.close()
    return found


def _kept(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers that are stored with an object."""
    named = {name.lower(): text for name, text in headers.items()}
    return {n: t for n, t in named.items() if n.startswith("x-amz-meta-") or n in ("content-type", "content-encoding")}


async def pass_time(at: Place, span: Any) -> None:
    """Moves the clock on, where it is ours: under no request, which a strict store would refuse for its signature."""
    if at.idle is not None:
        await at.idle()
    if isinstance(at.clock, ManualClock):
        at.clock.advance(span)


async def dumped(
    open_place: Callable[[str], Awaitable[Place]], name: str, play: Callable[[Place], Awaitable[None]]
) -> str:
    """What a backend holds after a scenario. Where the clock is a server's, the scenario is played again if it was
    under way at the turn of a minute: what is due then has entries in two buckets instead of one."""
    while True:
        at = await open_place(name)
        minute = datetime.now(UTC).minute
        await play(at)
        if isinstance(at.clock, ManualClock) or datetime.now(UTC).minute == minute:
            return await at.dump()
