"""Limits of queues: the moments of recent takes tell how many more may follow now."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from wrasse.backends.sqlite.rows import span
from wrasse.backends.sqlite.step import Step
from wrasse.ports.jobs import Rate

_TAKEN = "SELECT coalesce(sum(n), 0) FROM limited_takes WHERE queue = ? AND at > ?"
_TOOK = "INSERT INTO limited_takes VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
_FORGET = "DELETE FROM limited_takes WHERE queue = ? AND at <= ?"
_TIMES = "SELECT at, n FROM limited_takes WHERE queue = ? AND at > ? ORDER BY at DESC"


def allowed(step: Step, queue: str, rates: Sequence[Rate], now: int) -> int | None:
    """How many jobs of this queue may be taken now; None if no rate speaks of it."""
    left = [
        rate.limit - int(step.db.execute(_TAKEN, (queue, now - span(rate.per))).get)
        for rate in rates
        if rate.queue == queue
    ]
    return min(left, default=None)


def took(step: Step, queue: str, count: int, rates: Sequence[Rate], now: int) -> None:
    """Notes that so many were taken, and forgets what no longer matters."""
    longest = max(span(rate.per) for rate in rates if rate.queue == queue)
    step.db.execute(_FORGET, (queue, now - longest))
    step.db.execute(_TOOK, (queue, now, count))


def next_at(db: apsw.Connection, queues: Sequence[str], rates: Sequence[Rate], now: int) -> int | None:
    """When the first of the queues that are at their limit now may be taken from again."""
    ends = [_free_at(db, rate, now) for rate in rates if rate.queue in queues]
    return min((end for end in ends if end is not None), default=None)


def _free_at(db: apsw.Connection, rate: Rate, now: int) -> int | None:
    """When the take that fills the limit leaves the window; None if it is not full."""
    taken = 0
    for at, n in db.execute(_TIMES, (rate.queue, now - span(rate.per))):
        taken += n
        if taken >= rate.limit:
            return int(at) + span(rate.per)
    return None
