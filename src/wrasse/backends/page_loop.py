"""Loops over the pages of a server end: the server is not trusted to say "that was all" one day.

A cursor that comes again, whatever lies between, means that the server leads us in a circle; it is found with one
remembered cursor (Brent). Cursors that never repeat end with ROUNDS_MAX pages.
"""

from __future__ import annotations

from wrasse.errors import StoreBroken

ROUNDS_MAX = 1_000_000
"""Pages of one listing that a server may answer: at a thousand a page, a billion things."""


class PageLoop:
    """Counts the pages of one loop."""

    __slots__ = ("_count", "_next", "_seen", "_what", "_where")

    def __init__(self, where: str, what: str) -> None:
        self._where, self._what = where, what
        self._seen: object = None
        self._count, self._next = 0, 1

    def turn(self, cursor: object) -> None:
        """One more page is asked for, from this cursor; StoreBroken if that leads nowhere."""
        if self._count and cursor == self._seen:
            raise self.endless("the same place came again")
        if self._count >= ROUNDS_MAX:
            raise self.endless(f"{ROUNDS_MAX} pages were not all")
        self._count += 1
        if self._count == self._next:
            self._seen, self._next = cursor, 2 * self._next

    def endless(self, why: str) -> StoreBroken:
        """The error of a loop that leads nowhere."""
        return StoreBroken(
            f"{self._where} answers {self._what} without end: {why}",
            do="check that the address is that of the server that is meant, and that no proxy changes its answers; "
            "restart the server if it is",
        )
