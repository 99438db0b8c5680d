"""The table of behaviours of upkeep is complete, and names tests that exist."""

from __future__ import annotations

import pytest

from behaviours_upkeep import UPKEEP
from test_behaviours import text_of

NUMBERS = [95, *range(97, 109)]


def test_every_behaviour_of_upkeep_has_its_place_in_the_table() -> None:
    assert list(UPKEEP) == [str(number) for number in NUMBERS]


@pytest.mark.parametrize("number", UPKEEP)
def test_a_behaviour_of_upkeep_is_held_by_tests_that_exist(number: str) -> None:
    missing = [name for name in UPKEEP[number] if f"def {name.split('::')[1]}(" not in text_of(name.split("::")[0])]
    assert (missing, bool(UPKEEP[number])) == ([], True)
