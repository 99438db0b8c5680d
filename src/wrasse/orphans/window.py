"""References as they pass by in the order of keys: which of them protects a unit, and what they say about its group.

Only the prefixes that cover the present unit are remembered, so memory follows how deep they are nested, not how many
there are. References out of order are an error: a database that sorts by another rule than the listing would make
orphans of what it refers to.
"""

from __future__ import annotations

from collections.abc import Iterator

from wrasse.errors import StoreBroken
from wrasse.orphans.spool import Referred


class Covering:
    """A prefix that covers the present unit, the strongest reference up to it, and whether it covered anything yet."""

    __slots__ = ("matched", "row", "strongest")

    def __init__(self, row: Referred, below: Referred | None) -> None:
        self.row = row
        self.strongest = stronger(below, row)
        self.matched = False


class Window:
    """References in order. Units must be asked for in order, too."""

    def __init__(self, rows: Iterator[Referred]) -> None:
        self._rows = rows
        self._covering: list[Covering] = []
        self._next: Referred | None = None
        self._last = b""
        self.rows = 0
        self.rows_live = 0
        self.matched = 0  # of those that are live: the archives of rows that have ended go, and the rows stay
        self.group = b""
        self.live = False  # whether a reference that protects now is in the group
        self.ended = False
        self._advance()

    def enter(self, group: bytes) -> None:
        """What follows is about units of another group."""
        self.group, self.live, self.ended = group, False, False
        for covering in self._covering:
            if group.startswith(covering.row.key):
                self._note(covering.row)

    def protecting(self, unit: bytes, directory: bool, listed: bool) -> Referred | None:
        """The strongest reference to a unit: to it, to a prefix of it, or, for a directory, to anything in it."""
        covering = self._covering
        while covering and not unit.startswith(covering[-1].row.key):
            covering.pop()
        found = None
        row = self._next
        while row is not None and (row.key <= unit or (directory and row.key.startswith(unit))):
            key = row.key
            if self.group and (key.startswith(self.group) or (row.prefix and self.group.startswith(key))):
                self._note(row)
            if row.prefix and unit.startswith(key):
                covering.append(Covering(row, covering[-1].strongest if covering else None))
            elif key == unit or (directory and key.startswith(unit)):
                found = stronger(found, row)
                self.matched += listed and row.live
            self._advance()
            row = self._next
        if not covering:
            return found
        if listed:
            self._match(covering)
        return stronger(covering[-1].strongest, found) if found is not None else covering[-1].strongest

    def leave(self) -> None:
        """Reads to the end of the group: what it says about the group is complete then."""
        row = self._next
        while row is not None and (row.key < self.group or row.key.startswith(self.group)):
            if row.key.startswith(self.group):
                self._note(row)
            self._advance()
            row = self._next

    def finish(self) -> None:
        """Reads to the end, so that every reference is counted and was in order."""
        while self._next is not None:
            self._advance()

    def _match(self, covering: list[Covering]) -> None:
        for each in reversed(covering):
            if each.matched:
                return
            each.matched = True
            self.matched += each.row.live

    def _note(self, row: Referred) -> None:
        if row.live:
            self.live = True
        else:
            self.ended = True

    def _advance(self) -> None:
        row = self._next = next(self._rows, None)
        if row is not None:
            if row.key < self._last:
                raise StoreBroken(
                    "references do not come in the byte order of their keys",
                    do='let the query sort by bytes: ORDER BY key COLLATE "C"',
                )
            self._last = row.key
            self.rows += 1
            self.rows_live += row.live


def stronger(one: Referred | None, other: Referred) -> Referred:
    """The reference that protects longer: one that is live, else the one that ended last."""
    if one is None or (other.live, other.ended) > (one.live, one.ended):
        return other
    return one
