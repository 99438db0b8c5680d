"""Namespaces of the records in memory."""

from __future__ import annotations

from collections.abc import Mapping

from wrasse.backends.memory.records import MemoryRecords
from wrasse.clock import Clock
from wrasse.ports.namespaces import namespace_of, page_of
from wrasse.ports.page import Page


class MemoryNamespaces:
    """The port."""

    def __init__(self, collections: Mapping[str, MemoryRecords], clock: Clock) -> None:
        self._collections, self._clock = collections, clock

    async def page(self, after: str | None, limit: int) -> Page[str]:
        names = filter(None, map(namespace_of, self._collections))
        return page_of(names, after, limit, self._clock.now())
