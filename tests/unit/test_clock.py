"""Clocks: aware, never mixed, and exact to the microsecond when stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.clock import EPOCH, ManualClock, SystemClock, from_micros, to_micros

instants = st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC))


@given(instants)
def test_an_instant_comes_back_from_its_microseconds(instant: datetime) -> None:
    assert from_micros(to_micros(instant)) == instant


@given(instants, instants)
def test_microseconds_keep_the_order_of_instants(one: datetime, other: datetime) -> None:
    assert (to_micros(one) < to_micros(other)) is (one < other)


def test_the_epoch_is_zero() -> None:
    assert (to_micros(EPOCH), from_micros(0)) == (0, EPOCH)


def test_the_systems_wall_time_is_utc_and_aware() -> None:
    assert SystemClock().now().utcoffset() == timedelta(0)


def test_the_systems_monotonic_time_never_steps_back() -> None:
    clock = SystemClock()
    looks = [clock.monotonic() for _ in range(100)]
    assert looks == sorted(looks)


def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock()
    assert (clock.now(), clock.monotonic()) == (clock.now(), clock.monotonic())


def test_advancing_moves_both_times() -> None:
    clock = ManualClock()
    before = clock.now()
    clock.advance(timedelta(seconds=90))
    assert (clock.now() - before, clock.monotonic()) == (timedelta(seconds=90), 90.0)


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_step_moves_the_wall_time_alone(by: timedelta) -> None:
    clock = ManualClock()
    before = clock.now()
    clock.step(by)
    assert (clock.now() - before, clock.monotonic()) == (by, 0.0)


def test_a_manual_clock_does_not_advance_backwards() -> None:
    with pytest.raises(AssertionError, match="step"):
        ManualClock().advance(timedelta(seconds=-1))


def test_a_manual_clock_wants_an_aware_instant() -> None:
    with pytest.raises(AssertionError, match="aware"):
        ManualClock(datetime(2026, 1, 1))
