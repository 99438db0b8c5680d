"""What people read: ages, tables, glimpses of payloads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.cli.output import printable, show_table
from wrasse.observability.json_format import ago, glimpse

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (0.4, "now"), (5, "5s ago"), (65, "1m5s ago"), (3_725, "1h2m ago"), (93_784, "1d2h ago"),
     (-5, "in 5s"), (-3_600, "in 1h")],
)  # fmt: skip
def test_an_age_is_told_to_the_precision_it_needs(seconds: float, text: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text


@given(st.text())
def test_what_is_printed_stays_on_its_line(text: str) -> None:
    assert printable(text).isprintable()


@given(st.binary(max_size=500))
def test_a_glimpse_is_short_and_on_one_line(data: bytes) -> None:
    assert len(glimpse(data)) <= 61
    assert glimpse(data).isprintable()


def test_a_table_for_a_program_has_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("id", "why"), [("a", "[red]x[/red]"), ("long", None)])
    assert capsys.readouterr().out == "ID    WHY\na     [red]x[/red]\nlong\n"
