"""Jobs in a storm: whatever happens, every job is in one state, every sweep keeps its contract, and all comes to rest.

The engine, its guards and the sweeps are the real ones; so is the memory backend. Laws are checked at every write
(laws.py), promises about the whole at the end (world.py). A bug planted on purpose (planted.py) must be noticed: a
simulation that finds nothing has proved nothing.
"""

from __future__ import annotations

import logging

import pytest

from seeds import stories
from simulation.planted import BUGS, Bug
from simulation.world import tell

SEEDS = 30
SEEDS_FULL = 2_000
NOTICED_WITHIN = 200


def batches(starts: range) -> list[range]:
    return [range(start, start + starts.step) for start in starts]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """In a storm the engine has much to say; what matters is in the story."""
    caplog.set_level(logging.CRITICAL, logger="wrasse")


@pytest.mark.parametrize("seeds", batches(range(0, SEEDS, 10)), ids=lambda seeds: f"from {seeds[0]}")
def test_every_law_holds_through_storm_and_calm(seeds: range) -> None:
    stories = [tell(seed) for seed in seeds]
    assert [(story.seed, story.broken) for story in stories] == [(seed, ()) for seed in seeds]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", batches(stories(SEEDS, SEEDS_FULL, 100)), ids=lambda seeds: f"from {seeds[0]}")
def test_every_law_holds_in_a_great_many_storms(seeds: range) -> None:
    broken = [(story.seed, story.broken[0]) for story in map(tell, seeds) if story.broken]
    assert broken == []


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_every_law_holds_for_many_jobs() -> None:
    broken = [(seed, story.broken[0]) for seed in range(30) if (story := tell(seed, jobs_each=200)).broken]
    assert broken == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug: Bug) -> None:
    noticed = next((seed for seed in range(NOTICED_WITHIN) if tell(seed, bug).broken), None)
    assert noticed is not None, f"{bug.name} went unnoticed in {NOTICED_WITHIN} storms"


def test_the_same_seed_tells_the_same_story() -> None:
    assert tell(7) == tell(7)


def test_different_seeds_tell_different_stories() -> None:
    assert tell(7).trace != tell(8).trace


def test_a_storm_is_a_storm() -> None:
    stories = [tell(seed) for seed in range(5)]
    assert min(story.rescues for story in stories) > 0, "no worker died while it held a job"
    assert max(story.doubled for story in stories) > 0, "no slow worker's job ran twice"
