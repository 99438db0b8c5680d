"""Times of files that are never given twice by one process: they make the version of an object.

A stamp is the clock's time in nanoseconds. The clock counts microseconds, so the last three digits are free; they begin
at random, since another process may write in the same microsecond.
"""

from __future__ import annotations

import random
import threading
from datetime import datetime
from weakref import WeakValueDictionary

from wrasse.clock import Clock, from_micros, to_micros


class Stamps:
    """Gives out stamps for one directory, named by its inode. Threads may share it."""

    def __init__(self, clock: Clock, directory: int) -> None:
        self._clock = clock
        with _lock:
            self._last = _lasts.setdefault(directory, _Last())

    def next(self, above: int = 0) -> int:
        """A stamp of now that is above this one and above all given out before."""
        fresh = to_micros(self._clock.now()) * 1_000 + int(random.random() * 1_000)
        with _lock:
            self._last.stamp = max(fresh, above + 1, self._last.stamp + 1)
            return self._last.stamp

    def now(self) -> datetime:
        """The clock's time: this backend is on the host's."""
        return self._clock.now()


class _Last:
    """The last stamp of a directory, for all in this process who have it open."""

    stamp = 0


_lock = threading.Lock()
_lasts: WeakValueDictionary[int, _Last] = WeakValueDictionary()


def instant(stamp: int) -> datetime:
    """The moment a stamp stands for."""
    return from_micros(stamp // 1_000)
