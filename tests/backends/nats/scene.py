"""Streams and groups on a NATS server that tests share, each test below a root of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

from wrasse.backends.nats.client.connection import NatsConnection
from wrasse.backends.nats.client.jetstream import JetStream
from wrasse.backends.nats.connect import Flows
from wrasse.backends.nats.kv_store import KvBucket
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import Clock, SystemClock
from wrasse.ports.streams import START, Draft, Entry, EntryId

S, G = "gbe.events.audit", "readers"
TIMEOUT = timedelta(seconds=30)


async def flush(link: NatsConnection) -> None:
    """Waits until the server has read everything that was sent."""
    await (await link.ready()).ping()


class Scene:
    """One root; any number of links to it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.root = f"t{uuid4().hex}"
        self.links: list[NatsConnection] = []

    def options(self, port: int | None = None, **more: object) -> NatsOptions:
        node = ("127.0.0.1", port or self.port)
        return NatsOptions(nodes=(node,), root=self.root, streams_prefix=f"{self.root}.s.", **more)

    async def flows(self, port: int | None = None, *, time: Clock | None = None, **how: object) -> Flows:
        """Streams and groups as another process would have them."""
        link = await NatsConnection.open(self.options(port, read_timeout=timedelta(seconds=10)))
        self.links.append(link)
        clock = time or SystemClock()
        bucket = KvBucket(link, clock, time)
        await bucket.open()
        return await Flows.open(link, clock, bucket.time, **how)

    async def js(self) -> JetStream:
        link = await NatsConnection.open(self.options())
        self.links.append(link)
        return JetStream(link)

    async def close(self) -> None:
        js = await self.js()
        for subject in (f"{self.root}.>", f"$KV.{self.root}.>"):
            names = (await js.call("STREAM.NAMES", {"subject": subject})).get("streams") or []
            await asyncio.gather(*(js.call(f"STREAM.DELETE.{name}") for name in names))
        for link in self.links:
            await link.close()


@asynccontextmanager
async def scene(port: int) -> AsyncIterator[Scene]:
    made = Scene(port)
    try:
        yield made
    finally:
        await made.close()


async def entries(flows: Flows, subject: str = S) -> Sequence[Entry]:
    found: list[Entry] = []
    after: EntryId | None = START
    while after is not None:
        page = await flows.streams.read(subject, after, 1_000)
        found += page.items
        after = EntryId.parse(page.cursor) if page.cursor else None
    return found


async def bodies(flows: Flows, subject: str = S) -> list[bytes]:
    return [entry.body for entry in await entries(flows, subject)]


def drafts(count: int, subject: str = S, first: int = 0) -> list[Draft]:
    return [Draft(subject, b"%d" % n) for n in range(first, first + count)]
