"""How often and how soon again."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, strategies as st

from wrasse.jobs.retry import RetryPolicy
from wrasse.ports.jobs import ERROR_CHARS_MAX, Budget, Claim, DeadLetterJob, Reason, Requeue

HOLD = Claim("a", 1, "n")
CHANCE = st.floats(0, 1)
DURATIONS = st.timedeltas(timedelta(0), timedelta(days=30))


@given(failure=st.integers(1, 200), u=CHANCE, base=DURATIONS, more=DURATIONS)
def test_the_nth_failure_waits_its_time_and_at_most_a_tenth_longer(
    failure: int, u: float, base: timedelta, more: timedelta
) -> None:
    policy = RetryPolicy(base=base, max=base + more)
    least = min(base.total_seconds() * 2.0 ** (failure - 1), (base + more).total_seconds())

    waited = policy.delay(failure, u).total_seconds()

    assert least - 1e-5 <= waited <= least * 1.1 + 1e-5


def test_the_hundredth_failure_waits_no_longer_than_the_cap_and_a_tenth() -> None:
    assert RetryPolicy().delay(100, 1.0) == timedelta(seconds=11)


@given(failures_max=st.integers(0, 50), u=CHANCE)
def test_a_job_that_always_fails_runs_once_more_than_its_failures_allow(failures_max: int, u: float) -> None:
    policy = RetryPolicy(failures_max=failures_max)
    runs, verdict = 0, None
    while not isinstance(verdict, DeadLetterJob):
        verdict = policy.after_failure(HOLD, runs, u)
        runs += 1
    assert runs == failures_max + 1


@given(failures=st.integers(0, 200), reason=st.sampled_from(Reason), error=st.text(max_size=3_000), u=CHANCE)
def test_a_failure_spends_the_failure_budget_and_says_why(failures: int, reason: Reason, error: str, u: float) -> None:
    verdict = RetryPolicy().after_failure(HOLD, failures, u, reason, error)
    assert isinstance(verdict, Requeue | DeadLetterJob)
    assert (verdict.claim, verdict.spends, verdict.reason) == (HOLD, Budget.FAILURES, reason)
    assert verdict.error == error[:ERROR_CHARS_MAX]
