"""Streams and Groups behind a network that misbehaves; see faults.py for what can go wrong and who plans it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from faults import Network
from wrasse.ports.groups import Answer, ConsumerState, Delivery, Groups, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.streams import Draft, Entry, EntryChunk, EntryId, Streams, StreamState, Trimmed


class FaultyStreams:
    """Streams behind a network."""

    def __init__(self, streams: Streams, network: Network) -> None:
        self._streams = streams
        self._network = network

    @property
    def dedup_window(self) -> timedelta:
        return self._streams.dedup_window

    async def append(self, drafts: Sequence[Draft]) -> Sequence[EntryId]:
        return await self._network.call("append", lambda: self._streams.append(drafts))

    async def read(self, subject: str, after: EntryId, limit: int) -> Page[Entry]:
        return await self._network.call("read", lambda: self._streams.read(subject, after, limit))

    async def chunk(self, subject: str, after: EntryId, limit: int) -> EntryChunk:
        return await self._network.call("read", lambda: self._streams.chunk(subject, after, limit))

    async def info(self, subject: str) -> StreamState | None:
        return await self._network.call("info", lambda: self._streams.info(subject))

    async def subjects(self, pattern: str, after: str | None, limit: int) -> Page[str]:
        return await self._network.call("subjects", lambda: self._streams.subjects(pattern, after, limit))

    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        return await self._network.call(
            "trim", lambda: self._streams.trim(subject, age=age, below=below, protect=protect, limit=limit)
        )


class FaultyGroups:
    """Groups behind a network."""

    def __init__(self, groups: Groups, network: Network) -> None:
        self._groups = groups
        self._network = network

    async def join(
        self, subject: str, group: str, start: StartAt, *, ack_timeout: timedelta | None = None, cursor: bool = False
    ) -> bool:
        return await self._network.call(
            "join", lambda: self._groups.join(subject, group, start, ack_timeout=ack_timeout, cursor=cursor)
        )

    async def deliver(
        self,
        subjects: Sequence[str],
        group: str,
        consumer: str,
        limit: int,
        *,
        ack_timeout: timedelta,
        wait: timedelta = timedelta(0),
    ) -> Sequence[Delivery]:
        return await self._network.call(
            "deliver",
            lambda: self._groups.deliver(subjects, group, consumer, limit, ack_timeout=ack_timeout, wait=wait),
        )

    async def extend(self, consumer: str, deliveries: Sequence[Delivery], *, ack_timeout: timedelta) -> Sequence[bool]:
        return await self._network.call(
            "extend", lambda: self._groups.extend(consumer, deliveries, ack_timeout=ack_timeout)
        )

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        return await self._network.call("answer", lambda: self._groups.answer(answers))

    async def mark(self, subject: str, group: str, upto: EntryId) -> Outcome:
        return await self._network.call("mark", lambda: self._groups.mark(subject, group, upto))

    async def consumers(self, subject: str, group: str) -> Sequence[ConsumerState]:
        return await self._network.call("consumers", lambda: self._groups.consumers(subject, group))

    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        return await self._network.call("retire", lambda: self._groups.retire(subject, group, consumer))
