"""When runs are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from wrasse.engine.turn import BACKOFF_MAX, STAGGER_MAX, SweepSchedule, backoff

T0 = datetime(2026, 1, 1, tzinfo=UTC)
INTERVALS = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=2))
FRACTIONS = st.floats(min_value=0, max_value=1)


@given(INTERVALS, FRACTIONS, FRACTIONS)
def test_a_run_is_never_due_before_its_interval_nor_later_than_its_jitter(
    interval: timedelta, jitter: float, u: float
) -> None:
    due = SweepSchedule(interval, jitter).after(timedelta(0), u)
    assert interval.total_seconds() <= due <= interval.total_seconds() * (1 + jitter) + 1e-6


@given(INTERVALS, FRACTIONS)
def test_the_first_run_comes_within_one_interval_and_within_ten_seconds(interval: timedelta, u: float) -> None:
    assert 0 <= SweepSchedule(interval).first(u) <= min(interval.total_seconds(), STAGGER_MAX)


@given(INTERVALS, st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=4)), FRACTIONS)
def test_a_run_that_took_longer_than_its_interval_is_followed_at_once(
    interval: timedelta, took: timedelta, u: float
) -> None:
    due = SweepSchedule(interval, 0.0).after(took, u)
    assert due == max(0.0, interval.total_seconds() - took.total_seconds())


@given(INTERVALS, st.timedeltas(min_value=timedelta(-1), max_value=timedelta(days=4)))
def test_what_ran_less_than_an_interval_ago_is_fresh_and_nothing_else(interval: timedelta, ago: timedelta) -> None:
    assert SweepSchedule(interval).fresh(T0 - ago, T0) is (timedelta(0) <= ago < interval)


def test_what_never_ran_is_not_fresh() -> None:
    assert not SweepSchedule(timedelta(hours=1)).fresh(None, T0)


@given(st.integers(min_value=1, max_value=10_000), FRACTIONS)
def test_a_backend_that_stays_down_is_asked_ever_more_rarely_up_to_a_cap(failures: int, u: float) -> None:
    assert 0.5 <= backoff(failures, u) <= BACKOFF_MAX
    assert backoff(failures, u) <= backoff(failures + 1, u)
