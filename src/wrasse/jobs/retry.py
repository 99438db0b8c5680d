"""Retry rules: how often a job is retried, and after which delay; pure.

A job that fails is retried until it has failed more than `failures_max` times: with 3, it runs exactly four times and
is then dead. The nth failure waits at least min(base * 2^(n-1), max) and at most a tenth longer; the tenth is random
and passed in, so that a thousand jobs that failed together do not come back together.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from wrasse.duration import parse_duration
from wrasse.errors import UsageError, WrasseError
from wrasse.ports.jobs import ERROR_CHARS_MAX, Budget, Claim, DeadLetterJob, Reason, Requeue

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
        """The wait after the nth failure, n from 1, where `u` is a random number from 0 to 1."""
        assert failure >= 1, "failures are counted from one"
        assert 0 <= u <= 1, "a random number lies between 0 and 1"
        wait = self.base
        # Doubling step by step stops at the cap, where 2**(n-1) at n = 100 would overflow a timedelta.
        for _ in range(failure - 1):
            if wait >= self.max:
                break
            wait *= 2
        return min(wait, self.max) * (1 + _SPREAD * u)

    def spent(self, failures: int) -> bool:
        """Whether this number of failures exceeds the budget."""
        return failures > self.failures_max

    def after_failure(
        self, claim: Claim, failures: int, u: float, reason: Reason = Reason.FAILED, error: str = ""
    ) -> Requeue | DeadLetterJob:
        """The settlement of a job that just failed, and had failed `failures` times before."""
        error = error[:ERROR_CHARS_MAX]
        if self.spent(failures + 1):
            return DeadLetterJob(claim, reason, error=error, spends=Budget.FAILURES)
        return Requeue(claim, Budget.FAILURES, reason, error=error, delay=self.delay(failures + 1, u))


@dataclass(frozen=True, slots=True)
class Retry:
    """How jobs of one kind are retried; unset fields are the worker's settings. With `only`, any other exception
    dead-letters the job at once, and so does one of `never`. Timeouts are retried in any case."""

    failures_max: int | None = None
    base: timedelta | str | None = None
    max: timedelta | str | None = None
    only: tuple[type[BaseException], ...] = ()
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.failures_max is not None and self.failures_max < 0:
            raise UsageError(f"a retry with failures_max={self.failures_max}", do="use 0 or more; 0 runs a job once")
        for kind in (*self.only, *self.never):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise UsageError(f"a retry for {kind!r}, which is no exception", do="give types such as OSError")
        self.over(RetryPolicy())

    def over(self, plain: RetryPolicy) -> RetryPolicy:
        """This rule, with the worker's policy for unset fields."""
        base, longest = _span(self.base, plain.base), _span(self.max, plain.max)
        if longest < base:
            # One of them is the worker's, and the one set here takes precedence.
            if self.base is not None and self.max is not None:
                raise UsageError("a retry whose max is shorter than its base", do="make max the longer one")
            base = longest = base if self.max is None else longest
        return RetryPolicy(plain.failures_max if self.failures_max is None else self.failures_max, base, longest)

    def again(self, error: BaseException) -> bool:
        """Whether a job that failed with this error is retried at all."""
        return not isinstance(error, self.never) and (not self.only or isinstance(error, self.only))


class RetryLater(WrasseError):
    """Raised by a handler: this attempt failed, and the next is not before `delay` from now."""

    def __init__(self, delay: timedelta | str, why: str = "the handler asked for a later attempt") -> None:
        super().__init__(why)
        self.delay = _span(delay, timedelta(0))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.delay, self.message))


class GiveUp(WrasseError):
    """Raised by a handler: a retry would not help, the job is dead-lettered."""


def _span(value: timedelta | str | None, plain: timedelta) -> timedelta:
    span = plain if value is None else parse_duration(value) if isinstance(value, str) else value
    if span < timedelta(0):
        raise UsageError("a delay of less than zero", do="give zero or more")
    return span
