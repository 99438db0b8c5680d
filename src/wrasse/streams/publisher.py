"""Publishing: a message is stored when `publish` returns, under an id that its consumers see.

A batch is stored completely or not at all, in order. A message whose idempotency `key` was published before, within the
backend's window, is not stored again, and the id of the first one is returned; if the backend has no such window, a key
is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock, to_micros
from wrasse.errors import UsageError
from wrasse.ids import Ids
from wrasse.ports.streams import Draft, EntryId, Streams
from wrasse.streams.envelope import PAYLOAD_BYTES_MAX, check_payload, decode, sealed


@dataclass(frozen=True, slots=True)
class Publication:
    """A message to publish."""

    subject: str
    payload: bytes
    key: str = ""
    trace_id: str | None = None


class Publisher:
    """Publishes to the streams of one backend."""

    def __init__(self, streams: Streams, clock: Clock, *, payload_max: int = PAYLOAD_BYTES_MAX) -> None:
        assert 0 < payload_max <= PAYLOAD_BYTES_MAX, "the origin reads no more than a mebibyte"
        self._streams = streams
        self._clock = clock
        self._ids = Ids(clock)
        self._payload_max = payload_max
        self._closed = False

    async def publish(self, subject: str, payload: bytes, *, key: str = "", trace_id: str | None = None) -> str:
        """Stores one message and returns its id."""
        return (await self.publish_many([Publication(subject, payload, key, trace_id)]))[0]

    async def publish_many(self, messages: Sequence[Publication]) -> list[str]:
        """Stores messages, all or none, in order, and returns their ids."""
        if self._closed:
            raise UsageError("this publisher is closed", do="publish before closing it, or make another")
        keyed = self._check(messages)
        at = to_micros(self._clock.now()) // 1_000
        ids = self._ids.several(len(messages))
        drafts = [
            Draft(each.subject, sealed(id, each.subject, at, each.payload, each.trace_id), each.key)
            for each, id in zip(messages, ids, strict=True)
        ]
        stored = await self._streams.append(drafts)
        if not keyed:
            return ids
        return [
            await self._first_id(each, entry, id) if each.key else id
            for each, id, entry in zip(messages, ids, stored, strict=True)
        ]

    async def close(self) -> None:
        """Refuses further messages."""
        self._closed = True

    def _check(self, messages: Sequence[Publication]) -> bool:
        """Refuses invalid messages; returns whether any of them has a key."""
        keyed = ""
        for message in messages:
            if len(message.payload) > self._payload_max:
                check_payload(message.payload, message.subject, self._payload_max)
            if message.key:
                keyed = message.subject
        if keyed and self._streams.dedup_window <= timedelta(0):
            raise UsageError(
                f"an idempotency key for {keyed!r}, which this backend does not support",
                do="publish without a key and let consumers recognise repeats, or use another backend for streams",
            )
        return bool(keyed)

    async def _first_id(self, message: Publication, entry: EntryId, id: str) -> str:
        """The id of the stored message: an earlier one's, if the key was used before."""
        page = await self._streams.read(message.subject, entry.previous, 1)
        if not page.items or page.items[0].id != entry:
            return id  # trimmed meanwhile: neither id is visible any more
        return decode(page.items[0].body).message_id
