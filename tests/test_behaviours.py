"""The table of behaviours is complete, and names tests that exist."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from behaviours import BEHAVIOURS

TESTS = Path(__file__).parent


@cache
def text_of(file: str) -> str:
    return (TESTS / file).read_text("utf-8")


def test_every_behaviour_of_jobs_has_its_place_in_the_table() -> None:
    assert list(BEHAVIOURS) == [*(str(n) for n in range(1, 71)), *(f"i{n}" for n in range(1, 13))]


@pytest.mark.parametrize("number", BEHAVIOURS)
def test_a_behaviour_is_held_by_tests_that_exist(number: str) -> None:
    missing = [name for name in BEHAVIOURS[number] if f"def {name.split('::')[1]}(" not in text_of(name.split("::")[0])]
    assert (missing, bool(BEHAVIOURS[number])) == ([], True)
