"""Limits for loops over the pages of a server: the server is not trusted to end a listing.

A repeated cursor, at whatever distance, means that the server leads us in a circle; it is detected with one remembered
cursor (Brent's algorithm). Cursors that never repeat end at ROUNDS_MAX pages.
"""

from __future__ import annotations

from wrasse.errors import StoreBroken

ROUNDS_MAX = 1_000_000
"""The most pages of one listing that a server may answer: at a thousand entries a page, a billion."""


class PageLoop:
    """Counts the pages of one loop."""

    __slots__ = ("_count", "_next", "_seen", "_what", "_where")

    def __init__(self, where: str, what: str) -> None:
        self._where, self._what = where, what
        self._seen: object = None
        self._count, self._next = 0, 1

    def turn(self, cursor: object) -> None:
        """Counts a page that begins at this cursor; StoreBroken if the loop cannot end."""
        if self._count and cursor == self._seen:
            raise self.endless("a cursor was repeated")
        if self._count >= ROUNDS_MAX:
            raise self.endless(f"there are more than {ROUNDS_MAX} pages")
        self._count += 1
        if self._count == self._next:
            self._seen, self._next = cursor, 2 * self._next

    def endless(self, why: str) -> StoreBroken:
        """The error of a loop that does not end."""
        return StoreBroken(
            f"{self._where} answers {self._what} without end: {why}",
            do="check that the address is that of the right server, and that no proxy changes its answers; "
            "restart the server if it is",
        )
