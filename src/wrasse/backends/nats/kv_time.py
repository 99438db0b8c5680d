"""The server's time, as far as its answers tell: what it said last, carried on by our monotonic clock for a while.

An answer gives the time at some moment between question and answer: the middle is taken, and only answers that came
soon count, so that what is told is less than MARGIN off. Our wall clock has no say in it: a step of it moves nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable

MARGIN = timedelta(seconds=1)
CARRIED_MAX = 30.0  # seconds until the server is asked again
SOON = 1.0  # seconds; half of it is the error
_TRIES = 3


class KvTime:
    """Asks when it has not heard the time for a while. With `told` that is the time, for all that is decided."""

    __slots__ = ("_ask", "_at", "_clock", "_seconds", "told")

    def __init__(self, ask: Callable[[], Awaitable[datetime]], clock: Clock, told: Clock | None = None) -> None:
        self._ask = ask
        self._clock = clock
        self.told = told
        self._at: datetime | None = None
        self._seconds = 0.0

    async def now(self) -> datetime:
        """The time by which is decided what is due."""
        return self.told.now() if self.told is not None else await self.server()

    async def server(self) -> datetime:
        """The server's own time, which its messages carry."""
        if self._at is None or self._clock.monotonic() - self._seconds > CARRIED_MAX:
            try:
                await self._hear()
            except StoreUnavailable:
                if self._at is None:
                    raise
                # What was asked for is done: that nobody tells the time now must not make it look undone.
        assert self._at is not None, "the server was heard"
        return self._at + timedelta(seconds=self._clock.monotonic() - self._seconds)

    def read(self, at: datetime) -> datetime:
        """The time by which is decided, where an answer says what it is."""
        return self.told.now() if self.told is not None else at

    async def _hear(self) -> None:
        for _ in range(_TRIES):
            asked = self._clock.monotonic()
            at = await self._ask()
            took = self._clock.monotonic() - asked
            if took <= SOON:
                self._at, self._seconds = at, asked + took / 2
                return
        raise StoreUnavailable("the server takes too long to tell the time", do="see what else uses it")
