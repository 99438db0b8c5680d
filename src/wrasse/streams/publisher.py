"""Publishing: a message is stored when `publish` returns, under an id that its consumers see.

A batch is stored whole or not at all, in order. A message with an idempotency `key` that was published before, within
the backend's window, is not stored again, and the first one's id comes back; where the backend keeps no window, a key
is refused, since a caller who gives one relies on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock, to_micros
from wrasse.errors import UsageError
from wrasse.ids import Ids
from wrasse.ports.streams import Draft, EntryId, Streams
from wrasse.streams.envelope import PAYLOAD_BYTES_MAX, Envelope, check_payload, decode, encode


@dataclass(frozen=True, slots=True)
class Message:
    """Something to publish."""

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
        """Stores one message and gives its id."""
        return (await self.publish_many([Message(subject, payload, key, trace_id)]))[0]

    async def publish_many(self, messages: Sequence[Message]) -> list[str]:
        """Stores messages, all or none, in order, and gives their ids."""
        if self._closed:
            raise UsageError("this publisher is closed", do="publish before closing it, or make another")
        for message in messages:
            self._check(message)
        at = to_micros(self._clock.now()) // 1_000
        envelopes = [self._envelope(message, at) for message in messages]
        drafts = [
            Draft(message.subject, encode(envelope), message.key)
            for message, envelope in zip(messages, envelopes, strict=True)
        ]
        stored = await self._streams.append(drafts)
        return [
            await self._first_id(message, id, envelope) if message.key else envelope.message_id
            for message, envelope, id in zip(messages, envelopes, stored, strict=True)
        ]

    async def close(self) -> None:
        """From now on nothing is published here."""
        self._closed = True

    def _check(self, message: Message) -> None:
        check_payload(message.payload, message.subject, self._payload_max)
        if message.key and self._streams.dedup_window <= timedelta(0):
            raise UsageError(
                f"an idempotency key for {message.subject!r}, and this backend keeps none",
                do="publish without a key and let consumers recognise repeats, or use another backend for streams",
            )

    def _envelope(self, message: Message, at: int) -> Envelope:
        return Envelope(self._ids.new(), message.subject, at, bytes(message.payload), message.trace_id)

    async def _first_id(self, message: Message, id: EntryId, envelope: Envelope) -> str:
        """The id of the message that is stored there: an earlier one's, if the key was known."""
        page = await self._streams.read(message.subject, id.previous, 1)
        if not page.items or page.items[0].id != id:
            return envelope.message_id  # trimmed meanwhile: nobody will see either id again
        return decode(page.items[0].body).message_id
