"""The budget that memory, SQLite and records keep as one number: no second gets too much, and waiting as told pays."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, strategies as st

from wrasse.ports.limiter import SECOND, Spent

RATES = st.integers(1, 5_000).flatmap(lambda rate: st.tuples(st.just(rate), st.integers(1, rate)))
ASKS = st.lists(st.tuples(st.integers(0, SECOND), st.integers(1, 2_000)), max_size=60)


@given(RATES, ASKS)
def test_no_second_gets_more_than_the_rate_and_a_burst(rates: tuple[int, int], asks: list[tuple[int, int]]) -> None:
    (rate, burst), now, spent = rates, 10 * SECOND, Spent(0)
    granted = []
    for pause, count in asks:
        now += pause
        spent, allowance = spent.allow(now, count, rate=rate, burst=burst)
        granted.append((now, allowance.count))
    for begin, _ in granted:
        assert sum(count for at, count in granted if begin <= at <= begin + SECOND) <= rate + burst + 1


@given(RATES, st.integers(1, 2_000))
def test_waiting_as_told_gives_the_rest_or_a_burst_of_it(rates: tuple[int, int], count: int) -> None:
    (rate, burst), now = rates, 10 * SECOND
    spent, first = Spent(0).allow(now, count, rate=rate, burst=burst)
    later = now + 1_000 * (first.wait // timedelta(microseconds=1))
    _, second = spent.allow(later, count - first.count, rate=rate, burst=burst)
    assert second.count == min(count - first.count, burst)


@given(RATES, st.integers(2, 10**6))
def test_a_clock_that_was_set_back_stops_no_caller(rates: tuple[int, int], seconds: int) -> None:
    (rate, burst), now = rates, 10**7 * SECOND
    spent, _ = Spent(0).allow(now, burst, rate=rate, burst=burst)
    _, allowance = spent.allow(now - seconds * SECOND, 1, rate=rate, burst=burst)
    assert allowance.count == 1


@given(RATES, st.integers(0, 5_000))
def test_what_is_returned_is_there_again(rates: tuple[int, int], count: int) -> None:
    (rate, burst), now = rates, 10 * SECOND
    spent, _ = Spent(0).allow(now, burst, rate=rate, burst=burst)
    _, allowance = spent.give_back(now, count, rate=rate).allow(now, burst, rate=rate, burst=burst)
    assert allowance.count == min(count, burst)
