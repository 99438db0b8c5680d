"""Durations as people write them: a unit is required, and every text that we write is read back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.duration import format_duration, parse_duration
from wrasse.errors import BadDuration, ConfigError


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("1d2h3m4s5ms6us", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5, microseconds=6)),
        ("1.5s", timedelta(milliseconds=1500)),
        ("0.25h", timedelta(minutes=15)),
        ("  30s ", timedelta(seconds=30)),
        ("0", timedelta(0)),
        ("0s", timedelta(0)),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["30", "1.5", "-30", "007"])
def test_a_bare_number_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(BadDuration, match="has no unit") as refusal:
        parse_duration(text)
    assert f"{text}s" in refusal.value.do


@pytest.mark.parametrize("text", ["", "s", "thirty", "30 s", "30s5", "-30s", "1h-5m", "30S", "1w", "s30", "1..5s", "∞"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadDuration) as refusal:
        parse_duration(text)
    assert "1h30m" in refusal.value.do


@pytest.mark.parametrize("text", ["36501d", "99999999999h", "9" * 40 + "d", "9" * 400 + "d"])
def test_more_than_a_hundred_years_is_refused(text: str) -> None:
    with pytest.raises(BadDuration, match="100 years"):
        parse_duration(text)


def test_a_bad_duration_is_a_mistake_in_the_configuration() -> None:
    assert issubclass(BadDuration, ConfigError)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500)))
def test_what_we_write_is_read_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=5400), "1h30m"),
        (timedelta(days=7), "7d"),
        (timedelta(milliseconds=1500), "1s500ms"),
        (timedelta(seconds=-90), "-1m30s"),
    ],
)
def test_a_duration_is_written_as_short_as_it_is_exact(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text
