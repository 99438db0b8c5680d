"""What people expect of a job queue, in a storm: slots once, callbacks once and last, limits, names and results kept.

The repeater, the producer that puts slots, the engine and its sweeps are the real ones; so is the memory backend.
"""

from __future__ import annotations

import logging

import pytest

from seeds import stories
from simulation.comfort_bugs import BUGS, ComfortBug
from simulation.comfort_world import tell

SEEDS = 8
SEEDS_FULL = 500
NOTICED_WITHIN = 200


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """In a storm there is much to say; what matters is in the story."""
    caplog.set_level(logging.CRITICAL, logger="wrasse")


@pytest.mark.parametrize("seeds", [range(start, start + 4) for start in range(0, SEEDS, 4)], ids=str)
def test_every_comfort_is_kept_through_storm_and_calm(seeds: range) -> None:
    stories = [tell(seed) for seed in seeds]
    assert [(story.seed, story.broken) for story in stories] == [(seed, ()) for seed in seeds]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", [range(start, start + 50) for start in stories(SEEDS, SEEDS_FULL, 50)], ids=str)
def test_every_comfort_is_kept_in_a_great_many_storms(seeds: range) -> None:
    broken = [(story.seed, story.broken[0]) for story in map(tell, seeds) if story.broken]
    assert broken == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_planted_in_a_comfort_is_noticed(bug: ComfortBug) -> None:
    noticed = next((seed for seed in range(NOTICED_WITHIN) if tell(seed, bug).broken), None)
    assert noticed is not None, f"{bug.name} went unnoticed in {NOTICED_WITHIN} storms"


def test_the_same_seed_tells_the_same_story_of_comforts() -> None:
    assert tell(3) == tell(3)
