"""Shelves: where the records of a collection stand, so that they are counted and listed without being read.

Promise. A record stands on the shelf that its newest write named, or on none, and moves there in the step of that
write. Numbers come from an index, and a page of a shelf reads what it shows. Where other programs write records too, a
record may have changed since it was put on its shelf: whoever lists looks at it, and `shelve` puts it where it belongs,
so that no number stays wrong for ever.

Costs. One round trip each; what a write costs more for its spot is one entry of an index. Numbers of whole shelves cost
the same however many they are.

A part that some Records have: `Records.shelves` is it, or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from wrasse.ports.page import Page, number_in
from wrasse.ports.records import Record

_TURN_MAX = 1 << 63


@dataclass(frozen=True, slots=True)
class IndexPosition:
    """Where a record stands: on which shelf, and its turn there. A shelf's name has no spaces."""

    shelf: str
    turn: int

    def __post_init__(self) -> None:
        assert " " not in self.shelf, "shelves are named without spaces"
        assert -_TURN_MAX <= self.turn < _TURN_MAX, "a turn has 64 bits"


@dataclass(frozen=True, slots=True)
class StatusRange:
    """A shelf, or the part of it up to a turn, that one included."""

    shelf: str
    upto: int | None = None


class IndexedRecords(Protocol):
    """Records that stand on shelves: where, the `spot` of their newest `create` or `put` says."""

    async def shelve(self, placed: Sequence[tuple[Record, IndexPosition | None]]) -> int:
        """Puts records where they belong, each if it is still the one that was read; how many stood elsewhere. Changes
        neither a record nor its version."""
        ...

    async def shelf_counts(self, spans: Sequence[StatusRange]) -> tuple[tuple[int, ...], datetime]:
        """How many records each span has, all at the same moment; and the backend's clock."""
        ...

    async def shelf_page(self, shelf: str, after: str | None, limit: int, *, newest: bool = False) -> Page[Record]:
        """Records of a shelf by turn, equal turns by stored name; with `newest` downwards. `after` is a cursor, as
        `spot_cursor` makes one of any turn and name."""
        ...


def spot_cursor(turn: int, name: str) -> str:
    """Where a listing goes on after the record of this stored name."""
    return f"{turn}:{name}"


def read_cursor(cursor: str) -> tuple[int, str]:
    """The turn and the stored name in a cursor."""
    turn, colon, name = cursor.partition(":")
    return number_in(cursor, turn if colon else ""), name
