"""A catalog in memory. The reference for what the port's header promises, and the catalog of tests and demos."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from wrasse.clock import EPOCH, Clock
from wrasse.ports.catalog import Reference
from wrasse.ports.page import Page, check_limit, no_cursor


class MemoryCatalog:
    """A catalog with two methods that add and remove references."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._references: tuple[Reference, ...] = ()  # in order; replaced, never changed: a snapshot keeps its own

    def add(self, *references: Reference) -> None:
        """Adds references."""
        self._references = tuple(sorted((*self._references, *references), key=_order))

    def remove(self, *references: Reference) -> None:
        """Removes references."""
        self._references = tuple(each for each in self._references if each not in references)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[MemorySnapshot]:
        yield MemorySnapshot(self._references, self._clock.now())

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        return [protecting(key, self._references, below=below) for key in keys]

    def leader(self, name: str) -> None:
        return None


class MemorySnapshot:
    """One view of all references."""

    def __init__(self, references: tuple[Reference, ...], at: datetime) -> None:
        self._references = references
        self._at = at

    @property
    def at(self) -> datetime:
        return self._at

    async def page(self, after: str | None, limit: int) -> Page[Reference]:
        check_limit(limit, "references")
        if after is not None and not after.isdigit():
            raise no_cursor(after)
        start = 0 if after is None else int(after)
        shown = self._references[start : start + limit]
        cursors = tuple(str(start + n + 1) for n in range(len(shown)))
        return Page(shown, cursors, self._at, start + limit < len(self._references))


def protecting(key: str, references: Sequence[Reference], *, below: bool = False) -> Reference | None:
    """The reference that protects a key longest."""
    named = [
        each
        for each in references
        if each.key == key or (each.prefix and key.startswith(each.key)) or (below and each.key.startswith(key))
    ]
    return max(named, key=lambda each: each.strength, default=None)


def _order(reference: Reference) -> tuple[bytes, bool, str, str, datetime]:
    key = reference.key.encode("utf-8", "surrogateescape")
    return key, reference.prefix, reference.owner, reference.rule, reference.ended_at or EPOCH
