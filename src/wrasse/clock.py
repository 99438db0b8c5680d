"""The only file that knows the time.

Wall time (`now`, UTC, aware) is for instants that others read: deadlines, records, logs. Monotonic time is for
how long something took and for what must not notice a step of the wall clock. The two are never mixed.

Decisions about what is stored use neither: they get `at`, the clock of the backend that stores it. Waiting is
`asyncio.sleep` and `asyncio.timeout`, so that a loop with virtual time moves everything at once.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """What the time is, and how long something took."""

    def now(self) -> datetime:
        """The wall time, UTC and aware."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never steps back."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to; for tests and `run_pending`."""

    __slots__ = ("_now", "_seconds")

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        assert now.tzinfo is not None, "instants are aware"
        self._now = now
        self._seconds = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, by: timedelta) -> None:
        """Moves both clocks forward."""
        assert by >= timedelta(0), "time does not run backwards; use step()"
        self._now += by
        self._seconds += by.total_seconds()

    def step(self, by: timedelta) -> None:
        """Moves the wall clock alone, either way, as an operator or NTP does."""
        self._now += by


def to_micros(instant: datetime) -> int:
    """Whole microseconds since 1970: how SQL and binary forms store an instant."""
    return (instant - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant that `to_micros` stored."""
    return EPOCH + timedelta(microseconds=micros)
