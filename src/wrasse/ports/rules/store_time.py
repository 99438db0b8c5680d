"""The store's clock, estimated between two answers of the store.

A lease ends by the store's clock, but a read does not return it and a request for it each time would double every
operation. So the last answer that did is carried forward by monotonic time. The store made that answer some time
between request and reply; contenders assume the one end and holders the other, so that a slow network never makes two
of them overlap.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec

from wrasse.clock import Clock

KEPT = 60.0  # seconds; over a minute two ordinary clocks drift apart by a few milliseconds
JUMP_MAX = 0.1  # seconds


class _ClockSample(msgspec.Struct, frozen=True):
    at: datetime
    sent: float
    answered: float
    wall: datetime


class StoreTime:
    """The store's clock as this process estimates it. `ask` reads it, and is called when the last answer is older
    than `kept` seconds, or when our wall clock jumped since."""

    __slots__ = ("_answer", "_ask", "_clock", "_kept")

    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[datetime]], *, kept: float = KEPT) -> None:
        self._clock, self._ask, self._kept = clock, ask, kept
        self._answer: _ClockSample | None = None

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        at = self.earliest()
        if at is None:
            sent = self._clock.monotonic()
            at = await self._ask()
            self.note(at, sent)
        return at

    def note(self, at: datetime, sent: float | None = None) -> None:
        """The store just answered `at` to a request sent at `sent` on our monotonic clock."""
        answered = self._clock.monotonic()
        self._answer = _ClockSample(at, answered if sent is None else sent, answered, self._clock.now())

    def earliest(self) -> datetime | None:
        """A lower bound of the store's time; None when it has to be read again. After a jump of our own wall clock (a
        laptop resumed) monotonic time may have stood still meanwhile, so the last answer is discarded."""
        answer = self._answer
        if answer is None:
            return None
        passed = self._clock.monotonic() - answer.answered
        jumped = (self._clock.now() - answer.wall).total_seconds() - passed
        if passed > self._kept or not -JUMP_MAX <= jumped <= JUMP_MAX:
            return None
        return answer.at + timedelta(0, passed)

    def reckoned(self) -> datetime | None:
        """The last answer plus the time since, however long that is."""
        answer = self._answer
        return None if answer is None else answer.at + timedelta(0, self._clock.monotonic() - answer.answered)

    def monotonic(self, instant: datetime) -> float:
        """Our monotonic time before which the store's clock cannot show this instant."""
        answer = self._answer
        assert answer is not None, "the store has answered before anything was granted"
        return answer.sent + (instant - answer.at).total_seconds()
