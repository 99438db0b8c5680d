"""How often and how soon again; pure.

A job that fails is tried again until it has failed more than `failures_max` times: with 3, it runs exactly four times
and is then dead. The nth failure waits at least min(base * 2^(n-1), max) and at most a tenth longer; the tenth is
chance, handed in, so that a thousand jobs that failed together do not come back together.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from wrasse.ports.jobs import ERROR_CHARS_MAX, Budget, Bury, Hold, Reason, Requeue

_SPREAD = 0.1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How many failures a job may have, and the waits between its attempts."""

    failures_max: int = 3
    base: timedelta = timedelta(milliseconds=500)
    max: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        assert self.failures_max >= 0, "a budget is not negative"
        assert timedelta(0) <= self.base <= self.max, "the first wait is at most the longest"

    def delay(self, failure: int, u: float) -> timedelta:
        """The wait after the nth failure, n from 1, where `u` is chance between 0 and 1."""
        assert failure >= 1, "failures are counted from one"
        assert 0 <= u <= 1, "chance lies between 0 and 1"
        wait = self.base
        # Doubling step by step stops at the cap, where 2**(n-1) at n = 100 would overflow a timedelta.
        for _ in range(failure - 1):
            if wait >= self.max:
                break
            wait *= 2
        return min(wait, self.max) * (1 + _SPREAD * u)

    def spent(self, failures: int) -> bool:
        """Is the budget used up once a job has failed this often?"""
        return failures > self.failures_max

    def after_failure(
        self, hold: Hold, failures: int, u: float, reason: Reason = Reason.FAILED, error: str = ""
    ) -> Requeue | Bury:
        """What becomes of a job that just failed, and had failed `failures` times before."""
        error = error[:ERROR_CHARS_MAX]
        if self.spent(failures + 1):
            return Bury(hold, reason, error=error, spends=Budget.FAILURES)
        return Requeue(hold, Budget.FAILURES, reason, error=error, delay=self.delay(failures + 1, u))
