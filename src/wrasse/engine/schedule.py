"""When the next run is due: interval, jitter, stagger at start, backoff in an outage. Pure; all in seconds.

Jitter only ever adds. So a run is never due before its interval is over, and of several engines that share a sweep the
first to come after that runs it while the others find it fresh: one run per interval, however many engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

STAGGER_MAX = 10.0
BACKOFF_FIRST = 1.0
BACKOFF_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often: every `interval`, and up to `jitter` of it later."""

    interval: timedelta
    jitter: float = 0.1

    def __post_init__(self) -> None:
        assert self.interval > timedelta(0), "an interval is above zero"
        assert 0 <= self.jitter <= 1, "jitter is a share of the interval"

    def first(self, u: float) -> float:
        """How long after the start the first run is due: spread, so that sweeps do not all begin at once."""
        return min(self.interval.total_seconds(), STAGGER_MAX) * u

    def after(self, passed: timedelta, u: float) -> float:
        """How long from now until the next run, when the last one began `passed` ago; never negative."""
        return max(0.0, self.interval.total_seconds() * (1 + self.jitter * u) - passed.total_seconds())

    def fresh(self, ran_at: datetime | None, at: datetime) -> bool:
        """Whether the last run, here or elsewhere, began less than an interval ago. One in the future does not count:
        the store's clock was set back, and a sweep must not wait for it to catch up."""
        return ran_at is not None and ran_at <= at < ran_at + self.interval


def backoff(failures: int, u: float) -> float:
    """How long to wait after so many outages in a row: doubling, capped, and never less than half."""
    assert failures >= 1, "a backoff follows a failure"
    longest = min(BACKOFF_FIRST * (1 << min(failures - 1, 16)), BACKOFF_MAX)
    return longest * (1 + u) / 2
