"""Times of files that are never given twice by one process: they make the version of an object.

A stamp is the clock's time in nanoseconds. The clock counts microseconds, so the last three digits are free; they begin
at random, since another process may write in the same microsecond.
"""

from __future__ import annotations

import secrets
import threading
from datetime import datetime

from wrasse.clock import Clock, from_micros, to_micros


class Stamps:
    """Gives out stamps. Threads may share it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def next(self, above: int = 0) -> int:
        """A stamp of now that is above this one and above all given out before."""
        fresh = to_micros(self._clock.now()) * 1_000 + secrets.randbelow(1_000)
        with self._lock:
            self._last = max(fresh, above + 1, self._last + 1)
            return self._last

    def now(self) -> datetime:
        """The clock's time: this backend is on the host's."""
        return self._clock.now()


def instant(stamp: int) -> datetime:
    """The moment a stamp stands for."""
    return from_micros(stamp // 1_000)
