"""Ids of leases and transactions in the format that lockd's clients expect: 20 characters of 0-9a-v, twelve bytes.

Four bytes of seconds, five random, three of a counter: they sort roughly by time, are unique, and cannot be predicted
from others, since knowing the id of a transaction is enough to decide it. In a marked id, two of the random bytes are a
checksum of the rest: it shows that a server generated the id.
"""

from __future__ import annotations

import re
import secrets
import threading
import zlib

from wrasse.clock import Clock
from wrasse.errors import UsageError

_ALPHABET = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [one + two for one in _ALPHABET for two in _ALPHABET]
_FORM = re.compile(r"[0-9a-v]{19}[0g]")  # 96 bits in 20 characters of five: the last four bits are unused
_COUNTS = 1 << 24


class Xids:
    """Makes ids."""

    __slots__ = ("_clock", "_count", "_lock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = secrets.randbelow(_COUNTS)
        self._lock = threading.Lock()

    def new(self) -> str:
        """The next id."""
        return _text(self._number())

    def unmarked(self) -> str:
        """The next id without a mark: for transactions that are explicit from the start."""
        while is_marked(id := self.new()):
            pass
        return id

    def marked(self) -> str:
        """The next id, with a mark."""
        number = self._number() & ~(0xFFFF << 24)
        return _text(number | _mark(number) << 24)

    def _number(self) -> int:
        with self._lock:
            self._count = (self._count + 1) % _COUNTS
            count = self._count
        return (int(self._clock.now().timestamp()) & 0xFFFFFFFF) << 64 | secrets.randbits(40) << 24 | count


def is_xid(text: str) -> bool:
    """Whether the text has the format of such an id."""
    return bool(_FORM.fullmatch(text))


def checked_transaction(text: str) -> str:
    """A transaction id from a caller."""
    if not is_xid(text):
        raise UsageError(f"{text[:40]!r} is no transaction", do="use 20 characters of 0-9 and a-v, as an acquire gives")
    return text


def is_marked(text: str) -> bool:
    """Whether an id has the mark; an id made elsewhere has it by chance once in 65,536."""
    number = 0
    for letter in text if is_xid(text) else "":
        number = number << 5 | _ALPHABET.index(letter)
    number >>= 4
    return bool(number) and number >> 24 & 0xFFFF == _mark(number & ~(0xFFFF << 24))


def _mark(number: int) -> int:
    return zlib.crc32(b"wrasse" + number.to_bytes(12)) & 0xFFFF


def _text(number: int) -> str:
    number <<= 4
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(90, -1, -10)])
