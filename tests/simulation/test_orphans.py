"""Orphans in a storm: nothing needed is lost, and in the calm everything needed is back and all else is gone."""

from __future__ import annotations

import logging

import pytest

from seeds import stories
from simulation.orphans_bugs import BUGS
from simulation.orphans_world import SCENARIOS, OrphanBug, scenario_of, tell

SEEDS = 100
SEEDS_FULL = 1_000
NOTICED_WITHIN = 200
SAMPLE = ("references are read before the listing", "nobody asks again before a removal", "no grace",
          "no quarantine for late commits", "nothing comes back by itself")  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """In a storm there is much to say; what matters is in the story."""
    caplog.set_level(logging.CRITICAL, logger="wrasse")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, SEEDS, 25)], ids=str)
def test_nothing_needed_is_lost_and_nothing_else_is_kept(seeds: range) -> None:
    stories = [tell(seed) for seed in seeds]
    assert [(story.seed, story.scenario, story.broken) for story in stories if story.broken] == []
    assert all(story.left for story in stories), "a story in which nothing is taken away proves little"


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", [range(start, start + 50) for start in stories(SEEDS, SEEDS_FULL, 50)], ids=str)
def test_nothing_needed_is_lost_in_a_great_many_storms(seeds: range) -> None:
    broken = [(story.seed, story.scenario, story.broken) for story in map(tell, seeds) if story.broken]
    assert broken == []


def _noticed(bug: OrphanBug) -> int | None:
    """The first seed whose story tells which guard is missing."""
    seeds = [seed for seed in range(NOTICED_WITHIN) if bug.scenario in ("", scenario_of(seed).name)]
    return next((seed for seed in seeds if any(each.startswith(bug.law) for each in tell(seed, bug).broken)), None)


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name in SAMPLE], ids=lambda bug: bug.name)
def test_a_guard_that_is_taken_away_is_missed(bug: OrphanBug) -> None:
    assert _noticed(bug) is not None


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name not in SAMPLE], ids=lambda bug: bug.name)
def test_every_guard_that_is_taken_away_is_missed(bug: OrphanBug) -> None:
    assert _noticed(bug) is not None


def test_the_same_seed_tells_the_same_story_of_orphans() -> None:
    seed = next(seed for seed in range(len(SCENARIOS)) if scenario_of(seed).collectors == 2)
    assert tell(seed) == tell(seed)
