"""The store's clock in whole milliseconds, as tasks keep their instants: never ahead of the store's own, so that a
deadline which is over here is over there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from wrasse.bounded import LATEST
from wrasse.clock import Clock, from_micros, to_micros
from wrasse.ports import store_time

_STALE = 5.0  # seconds after which the store is asked again
_MILLISECOND = timedelta(milliseconds=1)


class StoreTime(store_time.StoreTime):
    """What the time is at a store, without asking it each time."""

    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[datetime]]) -> None:
        super().__init__(clock, ask, kept=_STALE)

    async def now(self) -> datetime:
        """The time there."""
        return whole(await super().now())

    def heard(self, at: datetime) -> datetime:
        """Notes what an answer said; gives it in whole milliseconds."""
        self.note(at)
        return whole(at)


def whole(at: datetime) -> datetime:
    """The last whole millisecond."""
    return from_micros(to_micros(at) // 1_000 * 1_000)


def whole_up(at: datetime) -> datetime:
    """The next whole millisecond: what is not to happen before this moment does not."""
    down = whole(at)
    return down if down == at or down > LATEST - _MILLISECOND else down + _MILLISECOND
