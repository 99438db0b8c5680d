"""Ids that are remembered after their job is gone, so that a finished job never runs again under the same id.

Bounded by time: every change forgets what is past its time, earliest first.
"""

from __future__ import annotations

import heapq
from datetime import datetime


class KnownIds:
    """Lasting ids of deleted jobs, each until its own moment."""

    __slots__ = ("_order", "_until")

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}
        self._order: list[tuple[datetime, str]] = []

    def has(self, id: str, now: datetime) -> bool:
        """Whether a put of this id is to be refused."""
        until = self._until.get(id)
        return until is not None and now < until

    def keep(self, id: str, until: datetime, now: datetime) -> None:
        """Remembers an id."""
        self._until[id] = until
        heapq.heappush(self._order, (until, id))
        while self._order and self._order[0][0] <= now:
            moment, old = heapq.heappop(self._order)
            if self._until.get(old) == moment:
                del self._until[old]
