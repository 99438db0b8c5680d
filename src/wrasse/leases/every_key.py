"""Every key there is, namespace by namespace, in bounded pages: for retention, which has no index to go by.

Nothing that serves traffic, tidies after leases or shuts down reads this. One look asks few namespaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from wrasse.errors import UsageError
from wrasse.leases.core import leases_in
from wrasse.leases.lease import KeyRecord, decode_listed
from wrasse.leases.leases import Leases
from wrasse.ports.namespaces import Namespaces
from wrasse.ports.page import Page
from wrasse.ports.records import Record

LOOKS_MAX = 50
_APART = "\n"  # neither namespaces nor stored names have one


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A key as its record says it; None stands for namespaces that have none, and for a record that cannot be read."""

    namespace: str
    key: str
    kept: KeyRecord | None


@dataclass(frozen=True, slots=True)
class EveryKey:
    """Reads all keys, in order."""

    leases: Leases
    namespaces: Namespaces

    async def page(self, after: str | None, limit: int) -> Page[FoundKey]:
        """One page of the namespace that the cursor is in, or of the next that has keys."""
        name, place = _parse(after)
        at: datetime = self.leases.clock.now()
        for _ in range(LOOKS_MAX):
            if place is None:
                following = await self.namespaces.page(name or None, 1)
                if not following.items:
                    return Page((), (), at, more=False)
                name, place = following.items[0], ""
            page = await self.leases.records(leases_in(name)).page("", place or None, limit)
            at = page.at
            if len(page):
                return _shown(name, page, [decode_listed(record) for record in page])
            place = None
        return Page((FoundKey(name, "", None),), (name,), at, more=True)


def _shown(name: str, page: Page[Record], kept: Sequence[KeyRecord | None]) -> Page[FoundKey]:
    ends = len(page) - 1
    cursors = [
        name if number == ends and not page.more else f"{name}{_APART}{place}"
        for number, place in enumerate(page.cursors)
    ]
    found = tuple(FoundKey(name, record.key, each) for record, each in zip(page, kept, strict=True))
    return Page(found, tuple(cursors), page.at, more=True)


def _parse(text: str | None) -> tuple[str, str | None]:
    """The namespace and the place in it; no place: the namespace is read to its end."""
    if text is None:
        return "", None
    name, apart, place = text.partition(_APART)
    if not name:
        raise UsageError(f"{text[:40]!r} is not a cursor", do="use one that an earlier page gave")
    return name, place if apart else None
