"""The store's time: the local clock, corrected by the `Date` of replies.

A reply says the store's time in whole seconds, so it bounds how far the two clocks are apart to a second and the time
the request took. While the local clock is within the bounds it is believed; outside, it is moved to the nearer one.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from wrasse.backends.s3.replies import parse_date
from wrasse.clock import Clock

MARGIN = timedelta(seconds=1)  # what a Date leaves open
_DRIFT = timedelta(milliseconds=1)  # by which an old bound gives way with every reply


class StoreClock:
    """What time it is at the store."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._low: timedelta | None = None
        self._high: timedelta | None = None

    def now(self) -> datetime:
        """The store's time, as well as it is known."""
        return self._local.now() + self.offset

    @property
    def offset(self) -> timedelta:
        """How far the store is ahead of us."""
        if self._low is None or self._high is None:
            return timedelta(0)
        return min(max(timedelta(0), self._low), self._high)

    def learn(self, date: str | None, sent_at: datetime, received_at: datetime) -> None:
        """Notes the Date of a reply to a request that was sent and answered at these local times."""
        try:
            said = parse_date(date or "")
        except ValueError:
            return
        low, high = said - received_at, said + MARGIN - sent_at
        if self._low is None or self._high is None or low > self._high or high < self._low:
            self._low, self._high = low, high  # a clock was set: what was known no longer holds
            return
        self._low, self._high = max(low, self._low - _DRIFT), min(high, self._high + _DRIFT)
