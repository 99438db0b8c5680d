"""Limits and weights as people write them, and which queue comes first."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.errors import ConfigError
from wrasse.jobs.worker.queue_selector import QueueSelector, parse_rate, parse_weight
from wrasse.ports.jobs import Rate


@pytest.mark.parametrize(
    ("text", "limit", "seconds"), [("10/s", 10, 1), ("100/h", 100, 3600), ("5/10s", 5, 10), (" 1 / 2m ", 1, 120)]
)
def test_a_limit_is_jobs_per_time(text: str, limit: int, seconds: int) -> None:
    assert parse_rate("mail", text) == Rate("mail", limit, timedelta(seconds=seconds))


@pytest.mark.parametrize("text", ["", "10", "ten/s", "0/s", "10/", "10/0s", "-1/s", "10/fortnight", "1000000/s"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_rate("mail", text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1001", "x"])
def test_what_is_no_weight_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_weight(text)


def test_without_weights_the_order_is_strict() -> None:
    turns = QueueSelector(("high", "low"), {})
    assert {turns.following() for _ in range(10)} == {("high", "low")}


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 20), min_size=1))
def test_each_queue_comes_first_in_proportion_to_its_weight(weights: dict[str, int]) -> None:
    turns = QueueSelector(tuple(weights), weights)
    rounds = [turns.following() for _ in range(sum(weights.values()))]
    assert Counter(order[0] for order in rounds) == Counter(weights)
    assert all(sorted(order) == sorted(weights) for order in rounds)
