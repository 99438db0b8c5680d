"""Ids of leases and transactions as lockd's clients expect them: 20 characters of 0-9a-v, twelve bytes.

Four bytes of seconds, five that differ between processes, three that count: they sort roughly by time, and two
processes never make the same one.
"""

from __future__ import annotations

import re
import secrets
import threading

from wrasse.clock import Clock

_ALPHABET = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [one + two for one in _ALPHABET for two in _ALPHABET]
_FORM = re.compile(r"[0-9a-v]{19}[0g]")  # 96 bits in 20 characters of five: the last four bits are unused
_COUNTS = 1 << 24


class Xids:
    """Makes ids."""

    __slots__ = ("_clock", "_count", "_lock", "_process")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._process = secrets.randbits(40)
        self._count = secrets.randbelow(_COUNTS)
        self._lock = threading.Lock()

    def new(self) -> str:
        """The next id."""
        with self._lock:
            self._count = (self._count + 1) % _COUNTS
            count = self._count
        number = (int(self._clock.now().timestamp()) & 0xFFFFFFFF) << 64 | self._process << 24 | count
        number <<= 4
        return "".join([_PAIRS[number >> shift & 1023] for shift in range(90, -1, -10)])


def is_xid(text: str) -> bool:
    """Whether this is the form of such an id."""
    return bool(_FORM.fullmatch(text))
