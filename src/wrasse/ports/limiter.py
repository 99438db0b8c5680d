"""Limiter: one budget per second, shared by all processes that name the same key.

Promise. With a rate of `rate` a second and a burst of `burst`, 1 <= burst <= rate, never more than `rate + burst` are
allowed in any second, so never more than twice the rate, however many processes ask and whenever one of them dies; and
callers that ask again after the time they were given get all of the rate. What is allowed is allowed now: nothing is
reserved, so a process that dies while it waits leaves nothing behind, and a second after a crash nothing is left of
it.

Costs. One round trip a call. The clock is the backend's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

SECOND = 1_000_000_000  # in nanoseconds
RATE_MAX = 1_000_000  # a second


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many may be done now, and how long until asking for the rest makes sense; zero if nothing is left to ask."""

    count: int
    wait: timedelta


class Limiter(Protocol):
    """The budgets of a backend."""

    async def allow(self, key: str, count: int, *, rate: int, burst: int) -> Allowance:
        """Takes up to `count` out of the budget of this key."""
        ...

    async def give_back(self, key: str, count: int, *, rate: int) -> None:
        """Returns what was allowed and, as it turned out, not needed."""
        ...


@dataclass(frozen=True, slots=True)
class Spent:
    """A budget as backends keep it that store one number: the moment, in nanoseconds, until which it is spent. Each one
    that is allowed moves it on by its share of a second, and it may be ahead of now by the shares of a burst."""

    to: int

    def allow(self, now: int, count: int, *, rate: int, burst: int) -> tuple[Spent, Allowance]:
        """The budget after up to `count` were taken out of it."""
        check_rate(count, rate, burst)
        share = SECOND // rate
        ahead = self._ahead(now)
        granted = min(count, max(0, (burst * share - ahead) // share))
        ahead += granted * share
        rest = min(count - granted, burst)
        wait = max(0, ahead + rest * share - burst * share) if rest else 0
        return Spent(now + ahead), Allowance(granted, timedelta(microseconds=-(-wait // 1_000)))

    def give_back(self, now: int, count: int, *, rate: int) -> Spent:
        """The budget after so many were returned to it."""
        return Spent(now + max(0, self._ahead(now) - count * (SECOND // rate)))

    def _ahead(self, now: int) -> int:
        # More than a second ahead no burst can bring it: the clock was set back, and that must stop no producer.
        ahead = self.to - now
        return ahead if 0 <= ahead <= SECOND else 0


def check_rate(count: int, rate: int, burst: int) -> None:
    """What every backend relies on."""
    assert count >= 0, f"asked for {count}"
    assert 1 <= burst <= rate <= RATE_MAX, f"{rate} a second in bursts of {burst}"
