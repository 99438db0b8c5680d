"""Which leases may have left an object that no record names, as far as this process knows.

An object is written before the record names it, and one that is superseded goes after. Whoever dies, is cancelled or
gets no answer in between leaves a loose object under a lease that goes on. So a lease is sound only here, where it was
granted, and only while nothing of it is open; the index entry of any other stays, and a sweep looks at the key.
Bounded: a lease that was longest not touched is forgotten first, and then it is not sound.
"""

from __future__ import annotations

from collections import OrderedDict

LEASES_MAX = 10_000


class Doubts:
    """How many writes and deletes of each lease have no known end yet."""

    __slots__ = ("_max", "_open")

    def __init__(self, leases_max: int = LEASES_MAX) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._max = leases_max

    def granted(self, lease: str) -> None:
        """This process granted the lease just now: there is nothing of it yet."""
        self._open[lease] = 0
        if len(self._open) > self._max:
            self._open.popitem(last=False)

    def begin(self, lease: str) -> None:
        """An object is about to be written or taken away."""
        if lease in self._open:
            self._open[lease] += 1
            self._open.move_to_end(lease)

    def end(self, lease: str) -> None:
        """The record names the object that was written, or the one that was to go is gone."""
        if lease in self._open:
            self._open[lease] -= 1

    def sound(self, lease: str) -> bool:
        """Whether this lease has left nothing behind for certain."""
        return self._open.get(lease) == 0

    def forget(self, lease: str) -> None:
        """The lease is over."""
        self._open.pop(lease, None)
