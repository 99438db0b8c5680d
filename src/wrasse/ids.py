"""Ids that sort by time: ULIDs, 26 characters, strictly increasing within one process.

48 bits of milliseconds and 80 random bits, in Crockford's base 32. Within one millisecond, or while the wall clock
stands still or steps back, the random part counts up instead, so that two ids of one process never come out equal or
in the wrong order.
"""

from __future__ import annotations

import secrets
import threading
from datetime import datetime

from wrasse.clock import EPOCH, Clock, from_micros, to_micros

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_RANDOM_BITS = 80
_LENGTH = 26
_TAIL_BITS = 30
_TAIL_END = 1 << _TAIL_BITS


class Ids:
    """Makes ids. One per process is enough; it may be shared between threads."""

    __slots__ = ("_clock", "_head", "_lock", "_tail", "_until")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = EPOCH  # from here on an id gets a millisecond of its own
        self._head = ""  # the newest id but for its last three pairs, which count up
        self._tail = _TAIL_END
        self._lock = threading.Lock()

    def new(self) -> str:
        """The next id."""
        now = self._clock.now()
        with self._lock:
            if now >= self._until:
                self._start(to_micros(now) // 1_000 << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS))
            else:
                # Half the random space is left above a fresh id on average, so counting up cannot run out in practice.
                self._tail += 1
                if self._tail == _TAIL_END:
                    self._start((_decode(self._head) + 1) << _TAIL_BITS)
            tail = self._tail
            return self._head + _PAIRS[tail >> 20] + _PAIRS[tail >> 10 & 1023] + _PAIRS[tail & 1023]

    def several(self, count: int) -> list[str]:
        """The next ids, as many as are asked for, in one step."""
        if count < 1:
            return []
        first = self.new()
        with self._lock:
            head, last = self._head, self._tail
            fits = last + count <= _TAIL_END
            if fits:
                self._tail = last + count - 1
        if not fits:
            return [first, *[self.new() for _ in range(count - 1)]]
        rest = range(last + 1, last + count)
        return [first, *[head + _PAIRS[n >> 20] + _PAIRS[n >> 10 & 1023] + _PAIRS[n & 1023] for n in rest]]

    def _start(self, number: int) -> None:
        self._until = from_micros(((number >> _RANDOM_BITS) + 1) * 1_000)
        self._tail = number & _TAIL_END - 1
        self._head = "".join([_PAIRS[number >> shift & 1023] for shift in range(120, _TAIL_BITS - 1, -10)])


def first_at(instant: datetime) -> str:
    """What sorts before every id made at this instant or later, and after every earlier one."""
    number = max(to_micros(instant) // 1_000, 0)
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(40, -1, -10)])


def made_at(id: str) -> datetime | None:
    """When an id was made, to the millisecond; None if it is not one of ours."""
    if len(id) != _LENGTH or not set(id) <= set(_ALPHABET):
        return None
    try:
        return from_micros((_decode(id) >> _RANDOM_BITS) * 1_000)
    except OverflowError:
        return None


def uuid7(clock: Clock) -> str:
    """A UUID of version 7, which sorts by time, for those who expect UUIDs."""
    number = to_micros(clock.now()) // 1_000 << 80 | 0x7 << 76 | secrets.randbits(12) << 64
    text = f"{number | 0b10 << 62 | secrets.randbits(62):032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _decode(text: str) -> int:
    number = 0
    for sign in text:
        number = number << 5 | _ALPHABET.index(sign)
    return number
