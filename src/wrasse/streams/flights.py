"""What a consumer has been given and has not answered: never more than `inflight_max`.

A delivery is in flight from when it is handed out until the backend has its answer, or until its handler is over
without one and its deadline has passed: from then on it is anybody's. Only what waits for a handler or is in one has
its deadline moved on. Pure but for the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.ports.groups import Delivery
from wrasse.ports.streams import EntryId
from wrasse.streams.received import Received

Key = tuple[str, EntryId, int]


@dataclass(slots=True)
class _Flight:
    delivery: Delivery
    until: float  # monotonic
    received: Received | None = None
    over: bool = False  # its handler has ended


class Flights:
    """The deliveries of one consumer."""

    def __init__(self, clock: Clock, inflight_max: int, ack_timeout: timedelta) -> None:
        self._clock = clock
        self._most = inflight_max
        self._seconds = ack_timeout.total_seconds()
        self._flights: dict[Key, _Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def room(self) -> int:
        """How many more may be asked for now."""
        now = self._clock.monotonic()
        for key in [key for key, flight in self._flights.items() if flight.over and flight.until <= now]:
            del self._flights[key]
        return self._most - len(self._flights)

    def began(self, deliveries: Sequence[Delivery], asked_at: float) -> None:
        """Notes what was handed out in answer to a question asked at `asked_at`, which is no later than it began."""
        for delivery in deliveries:
            self._flights[key_of(delivery)] = _Flight(delivery, asked_at + self._seconds)

    def handling(self, delivery: Delivery, received: Received) -> None:
        """A handler has it now."""
        self._flights[key_of(delivery)].received = received

    def over(self, delivery: Delivery) -> None:
        """Its handler has ended; without an answer it stays until its deadline."""
        if (flight := self._flights.get(key_of(delivery))) is not None:
            flight.over = True

    def answered(self, delivery: Delivery) -> None:
        """The backend has its answer."""
        self._flights.pop(key_of(delivery), None)

    def kept(self) -> list[Delivery]:
        """Those whose deadlines are to be moved on."""
        return [flight.delivery for flight in self._flights.values() if not flight.over]

    def extended(self, deliveries: Sequence[Delivery], mine: Sequence[bool], asked_at: float) -> None:
        """What the backend said to moving them on: those that are no longer ours leave."""
        for delivery, held in zip(deliveries, mine, strict=True):
            flight = self._flights.get(key_of(delivery))
            if flight is None:
                continue
            if held:
                flight.until = asked_at + self._seconds
            else:
                del self._flights[key_of(delivery)]
                if flight.received is not None:
                    flight.received.lost = True

    def __contains__(self, delivery: Delivery) -> bool:
        return key_of(delivery) in self._flights


def key_of(delivery: Delivery) -> Key:
    """What tells one hand-out from every other."""
    return delivery.entry.subject, delivery.entry.id, delivery.number
