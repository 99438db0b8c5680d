"""The table of behaviours of streams and tasks is complete with those beside it, and names tests that exist."""

from __future__ import annotations

import pytest

from behaviours_archives import BEHAVIOURS
from behaviours_streams import STREAMED
from behaviours_upkeep import UPKEEP
from test_behaviours import text_of

OTHERWISE = {96}  # why is said in behaviours_upkeep.py


def test_every_behaviour_of_streams_tasks_and_archives_has_its_place_in_one_table() -> None:
    numbers = [int(number) for table in (STREAMED, UPKEEP, BEHAVIOURS) for number in table]
    assert sorted(numbers) == [number for number in range(71, 151) if number not in OTHERWISE]


@pytest.mark.parametrize("number", STREAMED)
def test_a_behaviour_of_streams_is_held_by_tests_that_exist(number: str) -> None:
    missing = [name for name in STREAMED[number] if f"def {name.split('::')[1]}(" not in text_of(name.split("::")[0])]
    assert (missing, bool(STREAMED[number])) == ([], True)
