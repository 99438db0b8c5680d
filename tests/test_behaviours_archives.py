"""The table of behaviours of trimming and archives is complete, and names tests that exist."""

from __future__ import annotations

import pytest

from behaviours_archives import BEHAVIOURS
from test_behaviours import text_of


def test_every_behaviour_of_archives_has_its_place_in_the_table() -> None:
    assert list(BEHAVIOURS) == [str(number) for number in range(123, 151)]


@pytest.mark.parametrize("number", BEHAVIOURS)
def test_a_behaviour_of_archives_is_held_by_tests_that_exist(number: str) -> None:
    missing = [name for name in BEHAVIOURS[number] if f"def {name.split('::')[1]}(" not in text_of(name.split("::")[0])]
    assert (missing, bool(BEHAVIOURS[number])) == ([], True)
