"""The envelopes of task events: the same as those of every other message."""

from __future__ import annotations

from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreBroken
from wrasse.ids import Ids
from wrasse.ports.groups import DeadLetter, Delivery
from wrasse.ports.streams import Draft, Entry
from wrasse.streams.envelope import Envelope, decode, encode
from wrasse.streams.letters import dead_letter


class TaskPost:
    """Seals and opens envelopes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ids = Ids(clock)

    def seal(self, subject: str, payload: bytes, key: str) -> Draft:
        """A message with this payload, ready to append."""
        at = to_micros(self._clock.now()) // 1_000
        return Draft(subject, encode(Envelope(self._ids.new(), subject, at, payload)), key)

    def open(self, entry: Entry) -> bytes | None:
        """The payload of an entry; None if it carries no message."""
        try:
            return decode(entry.body).payload
        except StoreBroken:
            return None

    def set_aside(self, delivery: Delivery, reason: str) -> DeadLetter:
        """The answer that makes an entry which nobody can read a dead letter."""
        return dead_letter(delivery, reason, deliveries=delivery.number)
