"""Records that other programs write too, where they are kept in a form that others know.

Such a record has no entry in the due index until somebody has looked at it: it would never be due. A look finds it, and
whoever understands its fields notes when it is due.

Promise. A record that another program wrote, or changed since we last wrote or noted it, is found by a round of looks;
one that nobody else touched is not. `note` changes nothing but the index, and only if the record is still the one that
was looked at. A dry look changes nothing, not even where the next one begins.

Costs. One look reads a bounded part of what there is, in a few round trips.

A part that some Records have: `Records.shared` is it, or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Record


@dataclass(frozen=True, slots=True)
class ForeignScan:
    """What one look saw. `cursor` continues the round; `ended` says that this look was the last of one."""

    changed: tuple[Record, ...]
    at: datetime
    cursor: str
    ended: bool


class SharedRecords(Protocol):
    """Records of which other programs have a part."""

    async def look(self, after: str | None, limit: int, *, dry: bool) -> ForeignScan:
        """One look, at about `limit` records. Without a cursor it goes on where the last look of anybody stopped."""
        ...

    async def note(self, key: str, *, at: str, due_at: datetime | None) -> Outcome:
        """Notes when the record is due, if it still has version `at`; `conflict` if not."""
        ...
