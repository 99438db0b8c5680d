"""What the store's clock says, between two answers of the store.

A lease ends by the store's clock, but a read does not bring it along and asking every time would double every
operation. So the last answer that did is carried forward by monotonic time. The answer was made some time between the
question and its arrival; contenders reckon with the one end and holders with the other, so that a slow network never
makes two of them overlap.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec

from wrasse.clock import Clock

KEPT = 60.0  # seconds; over a minute two ordinary clocks drift apart by a few milliseconds
JUMP_MAX = 0.1  # seconds


class _Answer(msgspec.Struct, frozen=True):
    at: datetime
    asked: float
    answered: float
    wall: datetime


class StoreTime:
    """The store's clock as far as this process knows it. `ask` gives it, and is called where the last answer is older
    than `kept` seconds, or where our wall clock jumped since."""

    __slots__ = ("_answer", "_ask", "_clock", "_kept")

    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[datetime]], *, kept: float = KEPT) -> None:
        self._clock, self._ask, self._kept = clock, ask, kept
        self._answer: _Answer | None = None

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        at = self.earliest()
        if at is None:
            asked = self._clock.monotonic()
            at = await self._ask()
            self.note(at, asked)
        return at

    def note(self, at: datetime, asked: float | None = None) -> None:
        """The store just answered `at` to a question put at `asked` on our monotonic clock."""
        answered = self._clock.monotonic()
        self._answer = _Answer(at, answered if asked is None else asked, answered, self._clock.now())

    def earliest(self) -> datetime | None:
        """The store's time at least; None when it has to be asked again. After a jump of our own wall clock (a laptop
        woke up) monotonic time may have stood still meanwhile, so the last answer is worth nothing."""
        answer = self._answer
        if answer is None:
            return None
        passed = self._clock.monotonic() - answer.answered
        jumped = (self._clock.now() - answer.wall).total_seconds() - passed
        if passed > self._kept or not -JUMP_MAX <= jumped <= JUMP_MAX:
            return None
        return answer.at + timedelta(0, passed)

    def reckoned(self) -> datetime | None:
        """The last answer and what has passed since, however long ago that was."""
        answer = self._answer
        return None if answer is None else answer.at + timedelta(0, self._clock.monotonic() - answer.answered)

    def monotonic(self, instant: datetime) -> float:
        """Our monotonic time before which the store's clock cannot show this instant."""
        answer = self._answer
        assert answer is not None, "the store has answered before anything was granted"
        return answer.asked + (instant - answer.at).total_seconds()
