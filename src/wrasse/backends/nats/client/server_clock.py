"""An estimate of the server's time: requested now and then, and advanced by our own monotonic clock.

It is behind the server's clock by at most the round trip of the request and the drift of two clocks in half a minute,
and never goes back by itself. Where the error must be below MARGIN, only answers with a shorter round trip count.
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
    """The server's time. `told` replaces it: only for tests that let hours pass. `within`: the longest round trip that
    counts."""

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
        self._time = StoreTime(clock, self._measured, kept=CARRIED_MAX)
        self._lock = asyncio.Lock()
        self.told = told

    async def now(self) -> datetime:
        """The time that decides what is due."""
        return self.told.now() if self.told is not None else await self.server()

    async def server(self) -> datetime:
        """The server's own clock, as in its messages; asks the server if the last answer is too old."""
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
                return at  # a write that was made must not fail because the time cannot be read now

    async def millis(self) -> int:
        """The same as `server`, in whole milliseconds since 1970."""
        return to_micros(await self.now()) // 1_000

    def reckoned_millis(self) -> int:
        """The result of `reckoned`, in whole milliseconds since 1970."""
        return to_micros(self.reckoned()) // 1_000

    def read(self, at: datetime) -> datetime:
        """The time that decides, where an answer contains it."""
        return self.told.now() if self.told is not None else at

    def heard(self, timestamp: str) -> datetime:
        """Takes the server's time from an answer that just arrived."""
        if self.told is not None:
            return self.told.now()
        at = moment(timestamp)
        self._time.note(self._never_back(at))
        return at

    def reckoned(self) -> datetime:
        """The last answer plus the time since."""
        if self.told is not None:
            return self.told.now()
        at = self._time.reckoned()
        assert at is not None, "the server was asked"
        return at

    async def _measured(self) -> datetime:
        for _ in range(_TRIES):
            sent_at = self._clock.monotonic()
            at = await self._ask()
            if self._clock.monotonic() - sent_at <= self._within:
                return self._never_back(at)
        raise StoreUnavailable("the server takes too long to tell the time", do="see what else uses it")

    def _never_back(self, at: datetime) -> datetime:
        """An answer, which does not go back behind an earlier one unless by more than a second."""
        before = self._time.reckoned()
        return at if before is None else max(at, min(before, at + timedelta(seconds=1)))
