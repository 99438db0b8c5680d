"""A publisher, consumers and handlers for tests of messages, on any backend.

Time is real here: consumers work beside the test. Nothing depends on how fast, only on what comes before what.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from conformance.stores import Store
from wrasse.ports.groups import StartAt
from wrasse.ports.streams import START, Draft, Entry
from wrasse.streams.consumer import Consumer, ConsumerSettings, StreamSubscription
from wrasse.streams.delivery import Received
from wrasse.streams.publisher import Publication, Publisher

S = "gbe.tasks.email.queue"
DEAD = "gbe._deadletter.tasks"
G = "email-workers"
SHORT = timedelta(milliseconds=300)
FIRST = StartAt(first=True)
PATIENCE = 30
# Nothing is delivered again for its ack timeout while a test lasts, however slow the machine is; EXPIRING is for the
# tests of exactly that.
MANUAL = ConsumerSettings(
    start=FIRST, ack_timeout=timedelta(seconds=PATIENCE * 2), nak_delay=timedelta(milliseconds=10)
)
AUTO = replace(MANUAL, auto_ack=True)
EXPIRING = replace(MANUAL, ack_timeout=SHORT)


class StreamClient:
    """A publisher and as many consumers as a test wants."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.streams, self.groups = store.backend.streams, store.backend.groups
        self.publisher = Publisher(self.streams, store.clock)

    async def publish(self, *payloads: bytes, subject: str = S) -> list[str]:
        return await self.publisher.publish_many([Publication(subject, payload) for payload in payloads])

    def consumer(self, handler, settings: ConsumerSettings = MANUAL, *, pattern: str = S, group: str = G, groups=None):
        subscription = StreamSubscription(pattern, group, handler, settings)
        return Consumer(self.streams, groups or self.groups, self.store.clock, subscription)

    @asynccontextmanager
    async def consuming(self, handler, settings: ConsumerSettings = MANUAL, **named) -> AsyncIterator[Consumer]:
        consumer = self.consumer(handler, settings, **named)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run())
            yield consumer
            await consumer.close()

    async def entries(self, subject: str) -> Sequence[Entry]:
        return (await self.streams.read(subject, START, 1_000)).items

    async def pending(self, group: str = G) -> int:
        info = await self.streams.info(S)
        return sum(state.pending for state in (info.groups if info else ()) if state.name == group)

    async def raw(self, *bodies: bytes, subject: str = S) -> None:
        await self.streams.append([Draft(subject, body) for body in bodies])


class Log:
    """A handler that notes what it gets, and does with it what a test wants."""

    def __init__(self, act: Callable[[Received], Awaitable[object]] | None = None) -> None:
        self.seen: list[Received] = []
        self._act = act
        self._more = asyncio.Event()

    async def __call__(self, received: Received) -> None:
        self.seen.append(received)
        self._more.set()
        if self._act is not None:
            await self._act(received)

    async def until(self, count: int) -> list[Received]:
        async with asyncio.timeout(PATIENCE):
            while len(self.seen) < count:
                self._more.clear()
                await self._more.wait()
        return self.seen

    @property
    def payloads(self) -> list[bytes]:
        return [received.payload for received in self.seen]


async def acks(received: Received) -> None:
    await received.ack()


async def raises(received: Received) -> None:
    raise ValueError("no such user")


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await check():  # noqa: ASYNC110  # what it waits for is in the store, and rings no bell
            await asyncio.sleep(0.01)


async def same(what: Awaitable[int], wanted: int) -> bool:
    """Whether it is so now; for `eventually`."""
    return await what == wanted


async def reached(counter: int, wanted: int) -> bool:
    """Whether a counter is that far, for `eventually`. It may be further at the first look: never wait for equality."""
    return counter >= wanted


async def consumers(client: StreamClient) -> int:
    """How many consumers the group knows."""
    return len(await client.groups.consumers(S, G))
