"""wrasse demo: everything it promises happens, and it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.typed import typed

pytestmark = pytest.mark.timeout(1_000)  # however busy the machine is: the demo gives up by itself

@pytest.mark.full
def test_everything_the_demo_promises_happens(place: Path) -> None:
    answer = typed("demo", "--json", cwd=place, within=900)
    assert answer.code == 0, answer.out + answer.err
    steps = answer.json["steps"]
    assert len(steps) == 9
    assert [step["ok"] for step in steps] == [True] * 9
    assert list(place.iterdir()) == [], "it leaves nothing behind"


def test_the_demo_is_told_without_a_terminal(place: Path) -> None:
    answer = typed("demo", cwd=place, within=900)
    assert answer.code == 0, answer.out + answer.err
    assert "\x1b" not in answer.out
    for words in ("SIGKILL", "silent for", "rescued 1 times already", "WOULD", "in 3 archives", "All of it happened"):
        assert words in answer.out
