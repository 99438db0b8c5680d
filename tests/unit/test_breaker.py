"""The breaker of a queue: when it opens, what it lets through, and what decides."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wrasse.breaker import SLICES, Breaker, BreakerSettings, BreakerState

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN
SETTINGS = BreakerSettings(0.5, timedelta(seconds=60), timedelta(seconds=30), 20)
COOLED = 30.0


def run(breaker: Breaker, results: str, now: float = 0.0) -> BreakerState:
    """Lets one job after the other through: + goes well, - fails."""
    for result in results:
        ticket = breaker.admit(now)
        assert ticket is not None
        breaker.record(ticket, result == "+", now)
    return breaker.state(now)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(SETTINGS)
    assert run(breaker, "-" * 20, now) is OPEN
    return breaker


def test_it_stays_closed_while_there_are_too_few_results() -> None:
    assert run(Breaker(SETTINGS), "-" * 19) is CLOSED


def test_it_stays_closed_below_the_threshold() -> None:
    assert run(Breaker(SETTINGS), "+" * 100 + "-" * 99) is CLOSED


def test_it_opens_at_the_threshold() -> None:
    assert run(Breaker(SETTINGS), "+" * 10 + "-" * 10) is OPEN


@pytest.mark.parametrize(("share", "failed", "of"), [(0.28, 7, 25), (0.14, 7, 50), (0.55, 11, 20), (1.0, 20, 20)])
def test_a_threshold_that_is_reached_exactly_opens_it(share: float, failed: int, of: int) -> None:
    breaker = Breaker(BreakerSettings(share, min_samples=of))
    assert run(breaker, "+" * (of - failed) + "-" * failed) is OPEN


def test_a_success_that_makes_the_samples_enough_opens_it_too() -> None:
    assert run(Breaker(SETTINGS), "-" * 19 + "+") is OPEN


def test_open_it_lets_nothing_through() -> None:
    breaker = opened()
    assert [breaker.admit(now) for now in (0.0, 10.0, 29.9)] == [None] * 3


def test_after_the_cooldown_one_of_a_hundred_callers_may_probe() -> None:
    breaker = opened()
    tickets = [breaker.admit(COOLED) for _ in range(100)]
    assert len([ticket for ticket in tickets if ticket is not None]) == 1
    assert breaker.state(COOLED) is HALF_OPEN


def test_a_probe_that_is_given_back_goes_to_the_next_caller() -> None:
    breaker = opened()
    for _ in range(1_000):
        ticket = breaker.admit(COOLED)
        assert ticket is not None
        breaker.give_back(ticket)
    assert run(breaker, "+", COOLED) is CLOSED


def test_a_probe_given_back_late_does_not_free_the_next_one() -> None:
    breaker = opened()
    first = breaker.admit(COOLED)
    assert first is not None
    breaker.give_back(first)
    second = breaker.admit(COOLED)
    breaker.give_back(first)
    assert second is not None
    assert breaker.admit(COOLED) is None


def test_a_probe_that_goes_well_closes_it_with_an_empty_window() -> None:
    breaker = Breaker(SETTINGS)
    run(breaker, "-" * 20)
    assert run(breaker, "+", COOLED) is CLOSED
    assert run(breaker, "+" + "-" * 18, COOLED) is CLOSED, "nineteen results are too few again"


def test_a_probe_that_fails_opens_it_for_a_whole_cooldown() -> None:
    breaker = opened()
    assert run(breaker, "-", 45.0) is OPEN
    assert (breaker.state(45.0 + 29.9), breaker.state(45.0 + 30.0)) == (OPEN, HALF_OPEN)
    assert breaker.trips == 2


@pytest.mark.parametrize("ok", [False, True])
def test_a_job_from_before_the_opening_decides_nothing(ok: bool) -> None:
    breaker = Breaker(SETTINGS)
    late = breaker.admit(0.0)
    assert late is not None
    run(breaker, "-" * 20)
    probe = breaker.admit(COOLED)
    assert probe is not None
    assert breaker.record(late, ok, COOLED) is None
    assert breaker.state(COOLED) is HALF_OPEN
    breaker.record(probe, True, COOLED)
    breaker.record(late, ok, COOLED)
    assert run(breaker, "-" * 19, COOLED) is CLOSED, "nineteen results are too few"


def test_results_older_than_the_window_are_forgotten_by_themselves() -> None:
    breaker = Breaker(SETTINGS)
    run(breaker, "-" * 19, now=0.0)
    assert run(breaker, "-", now=60.0) is CLOSED


def test_each_opening_is_one_trip() -> None:
    breaker = opened()
    assert breaker.trips == 1
    run(breaker, "-", 30.0)
    assert breaker.shut_since == 0.0, "since the first of them"
    run(breaker, "+", 60.0)
    assert breaker.trips == 2


@given(
    st.lists(st.tuples(st.floats(0, 200), st.booleans()), max_size=80).map(sorted),
    st.sampled_from([0.1, 0.35, 0.5, 1.0]),
    st.integers(1, 30),
)
def test_it_opens_only_for_enough_failures_within_the_window(
    results: list[tuple[float, bool]], share: float, least: int
) -> None:
    breaker = Breaker(BreakerSettings(share, timedelta(seconds=60), timedelta(hours=1), least))
    for n, (now, ok) in enumerate(results):
        ticket = breaker.admit(now)
        assert ticket is not None
        if breaker.record(ticket, ok, now) is OPEN:
            lately = [each for at, each in results[: n + 1] if now - at <= 60]
            assert len(lately) >= least
            # Early by one slice at most: some suffix of what lies in the window has the share.
            certain = [each for at, each in results[: n + 1] if now - at < 60 - 60 / SLICES]
            shares = [
                part.count(False) / len(part)
                for part in (lately[start:] for start in range(len(lately) - len(certain) + 1))
                if len(part) >= least
            ]
            assert max(shares) >= share
            return
        lately = [each for at, each in results[: n + 1] if now - at < 60 - 60 / SLICES]
        everything = [each for at, each in results[: n + 1] if now - at <= 60]
        if len(lately) == len(everything) >= least:
            assert lately.count(False) / len(lately) < share


class BreakerLaws(RuleBasedStateMachine):
    """Whatever happens in whatever order: one probe at most, and never wedged."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = Breaker(BreakerSettings(0.5, timedelta(seconds=10), timedelta(seconds=5), 3))
        self.out: list[tuple[int, bool]] = []  # tickets, and whether they are probes

    @rule(by=st.floats(0, 8))
    def time_passes(self, by: float) -> None:
        self.now += by

    @rule()
    def a_job_asks(self) -> None:
        state = self.breaker.state(self.now)
        ticket = self.breaker.admit(self.now)
        if ticket is not None:
            assert state is not OPEN
            self.out.append((ticket, state is HALF_OPEN))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), ok=st.sampled_from([True, False, None]))
    def a_job_ends(self, data: st.DataObject, ok: bool | None) -> None:
        ticket, _ = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        if ok is None:
            self.breaker.give_back(ticket)
        else:
            before, trips = self.breaker.state(self.now), self.breaker.trips
            current = self.breaker.holds(ticket)
            changed = self.breaker.record(ticket, ok, self.now)
            assert (self.breaker.trips - trips) == (changed is OPEN)
            assert current or (changed is None and self.breaker.state(self.now) is before)

    @invariant()
    def one_probe_is_out_at_most(self) -> None:
        probes = [ticket for ticket, probe in self.out if probe and self.breaker.holds(ticket)]
        assert len(probes) <= 1
        if self.breaker.state(self.now) is HALF_OPEN:
            assert bool(probes) is not self.breaker.probe_free(self.now), "it is not wedged: out, or to be had"


TestBreakerLaws = BreakerLaws.TestCase
