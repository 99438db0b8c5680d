"""The status index: which records of a collection have which status, so that they are counted and listed without
being read.

Promise. A record has the index entry that its newest write named, or none; the entry changes in the same transaction as
the record. Numbers come from the index, and a page of one status reads the records that it shows. Where other programs
write records too, a record may have changed since it was indexed: a listing checks each record, and `reindex` corrects
its entry, so that no number stays wrong for ever.

Costs. One round trip each; a write with an index entry writes one entry more. Counting costs the same however many
records a status has.

A part that some Records have: `Records.status_index` is it, or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from wrasse.ports.page import Page, number_in
from wrasse.ports.records import Record

_POSITION_MAX = 1 << 63


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The status of a record, and its position among those of this status. A status has no spaces."""

    status: str
    position: int

    def __post_init__(self) -> None:
        assert " " not in self.status, "a status has no spaces"
        assert -_POSITION_MAX <= self.position < _POSITION_MAX, "a position has 64 bits"


@dataclass(frozen=True, slots=True)
class StatusRange:
    """All records of a status, or those up to a position, that one included."""

    status: str
    upto: int | None = None


class IndexedRecords(Protocol):
    """Records with a status index: the `index_entry` of the newest `create` or `put` is what counts."""

    async def reindex(self, placed: Sequence[tuple[Record, IndexEntry | None]]) -> int:
        """Corrects the entries of records, each if it is still the one that was read; gives how many were wrong.
        Changes neither a record nor its version."""
        ...

    async def status_counts(self, spans: Sequence[StatusRange]) -> tuple[tuple[int, ...], datetime]:
        """How many records each span has, all at the same moment; and the backend's clock."""
        ...

    async def status_page(self, status: str, after: str | None, limit: int, *, newest: bool = False) -> Page[Record]:
        """Records of a status by position, equal positions by stored name; with `newest` downwards. `after` is a
        cursor, as `index_cursor` makes one of any position and name."""
        ...


def index_cursor(position: int, name: str) -> str:
    """Where a listing goes on after the record of this stored name."""
    return f"{position}:{name}"


def read_cursor(cursor: str) -> tuple[int, str]:
    """The position and the stored name in a cursor."""
    position, colon, name = cursor.partition(":")
    return number_in(cursor, position if colon else ""), name
