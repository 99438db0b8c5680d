"""The store's clock between two answers of it: what it said last, plus what passed since by the monotonic clock.

Never ahead of the store's own: the time that an answer took on its way counts as not yet passed, so a deadline that is
over here is over there. In whole milliseconds, as tasks keep their instants.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from wrasse.bounded import LATEST
from wrasse.clock import Clock, from_micros, to_micros

_STALE = 5.0  # seconds after which the store is asked again
_MILLISECOND = timedelta(milliseconds=1)


class StoreTime:
    """What the time is at a store, without asking it each time."""

    __slots__ = ("_ask", "_clock", "_heard_at", "_said")

    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[datetime]]) -> None:
        self._clock = clock
        self._ask = ask
        self._said: datetime | None = None
        self._heard_at = 0.0

    async def now(self) -> datetime:
        """The time there."""
        if self._said is None or self._clock.monotonic() - self._heard_at > _STALE:
            self.heard(await self._ask())
        assert self._said is not None, "an answer carries the time"
        passed = timedelta(seconds=self._clock.monotonic() - self._heard_at)
        return whole(self._said + passed)

    def heard(self, at: datetime) -> datetime:
        """Notes what an answer said; gives it in whole milliseconds."""
        self._said, self._heard_at = at, self._clock.monotonic()
        return whole(at)


def whole(at: datetime) -> datetime:
    """The last whole millisecond."""
    return from_micros(to_micros(at) // 1_000 * 1_000)


def whole_up(at: datetime) -> datetime:
    """The next whole millisecond: what is not to happen before this moment does not."""
    down = whole(at)
    return down if down == at or down > LATEST - _MILLISECOND else down + _MILLISECOND
