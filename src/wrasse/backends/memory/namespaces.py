"""Namespaces of the records in memory."""

from __future__ import annotations

from collections.abc import Mapping

from wrasse.backends.memory.records import MemoryRecords
from wrasse.clock import Clock
from wrasse.ports.namespaces import in_order, namespace_of
from wrasse.ports.page import Page


class MemoryNamespaces:
    """The port."""

    def __init__(self, collections: Mapping[str, MemoryRecords], clock: Clock) -> None:
        self._collections, self._clock = collections, clock

    async def page(self, after: str | None, limit: int) -> Page[str]:
        start = "" if after is None else in_order(after)
        names = (name for name in map(namespace_of, self._collections) if name and in_order(name) > start)
        found = sorted(names, key=in_order)
        shown = tuple(found[:limit])
        return Page(shown, shown, self._clock.now(), more=len(found) > limit)
