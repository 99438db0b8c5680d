"""Limits of queues: the moments of the last takes, as many as a limit allows, tell whether another may follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime

from wrasse.ports.jobs import Rate


class Rates:
    """When jobs of limited queues were taken."""

    __slots__ = ("_takes",)

    def __init__(self) -> None:
        self._takes: dict[str, deque[datetime]] = {}

    def allowed(self, queue: str, rates: Sequence[Rate], now: datetime) -> int | None:
        """How many jobs of this queue may be taken now; None if no rate speaks of it."""
        return min((rate.limit - self._within(rate, now) for rate in rates if rate.queue == queue), default=None)

    def took(self, queue: str, count: int, rates: Sequence[Rate], now: datetime) -> None:
        """Notes that so many were taken."""
        limit = max((rate.limit for rate in rates if rate.queue == queue), default=0)
        if limit:
            takes = self._takes.get(queue, ())
            self._takes[queue] = deque([*takes, *[now] * count], maxlen=limit)

    def next_at(self, queues: Sequence[str], rates: Sequence[Rate], now: datetime) -> datetime | None:
        """When the first of the queues that are at their limit now may be taken from again."""
        ends = [
            self._takes[rate.queue][-rate.limit] + rate.per
            for rate in rates
            if rate.queue in queues and self._within(rate, now) >= rate.limit
        ]
        return min(ends, default=None)

    def _within(self, rate: Rate, now: datetime) -> int:
        return sum(at > now - rate.per for at in self._takes.get(rate.queue, ()))
