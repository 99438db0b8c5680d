"""The server's time, as far as its answers tell: what it said last, carried on by our monotonic clock for a while.

Our wall clock has no say in it: a step of it moves nothing here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from wrasse.clock import Clock

CARRIED_MAX = 30.0  # seconds until the server is asked again


class ServerTime:
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
            self.heard(await self._ask())
        assert self._at is not None, "the server was heard"
        return self._at + timedelta(seconds=self._clock.monotonic() - self._seconds)

    def heard(self, at: datetime) -> datetime:
        """Notes what an answer says the time is; gives the time by which is decided."""
        self._at, self._seconds = at, self._clock.monotonic()
        return self.told.now() if self.told is not None else at
