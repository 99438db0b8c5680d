"""The server's time, as well as we know it: asked now and then, and carried on with our own monotonic clock.

It is behind the server's by at most the time that its answer took and what two clocks drift apart in half a minute, and
never goes back by itself. Where that must be less than MARGIN, only answers that came within it count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from wrasse.backends.nats.message_codec import moment
from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreUnavailable
from wrasse.ports.rules.store_time import StoreTime

MARGIN = timedelta(seconds=1)
CARRIED_MAX = 30.0  # seconds until the server is asked again
_TRIES = 3


class ServerTime:
    """What the time is there. `told` is what to believe in instead: only for tests that let hours pass. `within`:
    answers that took longer do not count."""

    __slots__ = ("_ask", "_clock", "_lock", "_time", "_within", "told")

    def __init__(
        self,
        clock: Clock,
        ask: Callable[[], Awaitable[datetime]],
        told: Clock | None = None,
        *,
        within: timedelta = timedelta.max,
    ) -> None:
        self._clock, self._ask, self._within = clock, ask, within.total_seconds()
        self._time = StoreTime(clock, self._asked, kept=CARRIED_MAX)
        self._lock = asyncio.Lock()
        self.told = told

    async def now(self) -> datetime:
        """The time by which is decided what is due."""
        return self.told.now() if self.told is not None else await self.server()

    async def server(self) -> datetime:
        """The server's own clock, which its messages carry; asks the server where the last answer is too old."""
        at = self._time.earliest()
        if at is not None:
            return at
        async with self._lock:
            try:
                return await self._time.now()
            except StoreUnavailable:
                at = self._time.reckoned()
                if at is None:
                    raise
                return at  # a write that was made must not look undone because the time cannot be asked for now

    async def millis(self) -> int:
        """The same in whole milliseconds since 1970."""
        return to_micros(await self.now()) // 1_000

    def reckoned_millis(self) -> int:
        """What `reckoned` says, in whole milliseconds since 1970."""
        return to_micros(self.reckoned()) // 1_000

    def read(self, at: datetime) -> datetime:
        """The time by which is decided, where an answer says what it is."""
        return self.told.now() if self.told is not None else at

    def heard(self, timestamp: str) -> datetime:
        """Takes the server's own word for it, as part of an answer that just came."""
        if self.told is not None:
            return self.told.now()
        at = moment(timestamp)
        self._time.note(self._onward(at))
        return at

    def reckoned(self) -> datetime:
        """The last answer and what has passed since."""
        if self.told is not None:
            return self.told.now()
        at = self._time.reckoned()
        assert at is not None, "the server was asked"
        return at

    async def _asked(self) -> datetime:
        for _ in range(_TRIES):
            asked = self._clock.monotonic()
            at = await self._ask()
            if self._clock.monotonic() - asked <= self._within:
                return self._onward(at)
        raise StoreUnavailable("the server takes too long to tell the time", do="see what else uses it")

    def _onward(self, at: datetime) -> datetime:
        """An answer, which does not go back behind what was said before unless by more than a second."""
        before = self._time.reckoned()
        return at if before is None else max(at, min(before, at + timedelta(seconds=1)))
