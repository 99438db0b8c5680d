"""Ids that sort by time: ULIDs, 26 characters, strictly increasing within one process.

48 bits of milliseconds and 80 random bits, in Crockford's base 32. Within one millisecond, or while the wall clock
stands still or steps back, the random part counts up instead, so that two ids of one process never come out equal or
in the wrong order.
"""

from __future__ import annotations

import secrets
import threading

from wrasse.clock import Clock, to_micros

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_RANDOM_BITS = 80


class Ids:
    """Makes ids. One per process is enough; it may be shared between threads."""

    __slots__ = ("_clock", "_last", "_lock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0
        self._lock = threading.Lock()

    def new(self) -> str:
        """The next id."""
        fresh = (to_micros(self._clock.now()) // 1_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        with self._lock:
            # Half the random space is left above a fresh id on average, so counting up cannot run out in practice.
            self._last = fresh if fresh >> _RANDOM_BITS > self._last >> _RANDOM_BITS else self._last + 1
            return _encode(self._last)


def _encode(number: int) -> str:
    return "".join(_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10))
