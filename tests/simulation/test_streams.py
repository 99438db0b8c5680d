"""Messages in a storm: none is lost, none comes back after its ack, none is trimmed unacked, and all comes to rest.

A bug planted on purpose (stream_bugs.py) must be noticed: a simulation that finds nothing has proved nothing.
"""

from __future__ import annotations

import pytest

from seeds import stories
from simulation.stream_bugs import BUGS
from simulation.stream_world import Broken, Bug, World
from virtual_time import Stuck, run_virtual

SEEDS, SEEDS_FULL = 20, 1_000
NOTICED_WITHIN = 60


NO_BUG = Bug()


def tell(seed: int, bug: Bug = NO_BUG) -> str:
    """What went wrong in this story; nothing, if all is well."""

    async def story() -> None:
        await World(seed, bug).run()

    try:
        run_virtual(story())
    except (Broken, Stuck) as broken:
        return str(broken)
    except BaseExceptionGroup as group:
        found = group.subgroup((Broken, Stuck))
        if found is None:
            raise
        return str(found.exceptions[0])
    return ""


@pytest.mark.parametrize("seeds", [range(start, start + 10) for start in range(0, SEEDS, 10)], ids=str)
def test_every_law_of_messages_holds_through_storm_and_calm(seeds: range) -> None:
    assert {seed: tell(seed) for seed in seeds} == dict.fromkeys(seeds, "")


def test_a_storm_of_messages_is_a_storm() -> None:
    async def story(seed: int) -> World:
        world = World(seed, NO_BUG)
        await world.run()
        return world

    worlds = [run_virtual(story(seed)) for seed in range(5)]
    again = [max(number for _, number, _ in world.account.held.values()) for world in worlds]
    assert min(again) > 1, "no message came a second time"
    assert max(world.account.doubled for world in worlds) > 0, "no slow consumer's message ran twice"
    assert max(len(world.account.letters) for world in worlds) > 0, "nothing was set aside"


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_every_law_of_messages_holds_in_a_great_many_storms() -> None:
    assert [(seed, broken) for seed in stories(SEEDS, SEEDS_FULL) if (broken := tell(seed))] == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_in_streams_is_noticed(bug: Bug) -> None:
    assert any(tell(seed, bug) for seed in range(NOTICED_WITHIN)), f"{bug.name} went unnoticed"
