"""Counters that metrics read."""

from __future__ import annotations

from hypothesis import given, strategies as st

from wrasse.jobs.tally import BOUNDS, OTHER, QUEUES_MAX, Tally
from wrasse.ports.jobs import Reason


def test_more_queues_than_fit_share_one_label_and_nothing_is_uncounted() -> None:
    tally = Tally()
    for number in range(QUEUES_MAX + 10):
        tally.consumed.add(f"queue {number}")
    assert len(dict(tally.consumed.items())) == QUEUES_MAX + 1
    assert (tally.consumed[OTHER], tally.consumed.total()) == (10, QUEUES_MAX + 10)


def test_a_queue_has_the_same_label_in_every_counter() -> None:
    tally = Tally()
    for number in range(QUEUES_MAX + 1):
        tally.consumed.add(f"queue {number}")
    tally.fail(f"queue {QUEUES_MAX}", Reason.FAILED)
    assert dict(tally.failed[Reason.FAILED].items()) == {OTHER: 1}


@given(seconds=st.lists(st.floats(0, 10_000), max_size=50))
def test_every_duration_is_in_the_first_bucket_that_is_wide_enough(seconds: list[float]) -> None:
    histogram = Tally().durations.of("low")
    for one in seconds:
        histogram.observe(one)
    at_most = [sum(one <= bound for one in seconds) for bound in BOUNDS]
    assert [sum(histogram.counts[: i + 1]) for i in range(len(BOUNDS))] == at_most
    assert sum(histogram.counts) == len(seconds)
