"""SIGKILL at any moment, on every transport and store, with a store that fails at random and trimming that never waits:
no message is lost, none is archived twice, none is trimmed unarchived.

And SIGSTOP at the worst moment. Three planted bugs show that the law has teeth: the guard of the design document, which
counts pending entries; a name of its own for every put; and a put that overwrites.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from archives.archiver_story import Pairs, killed, stood_still

TRANSPORTS = ["sqlite", "redis", "nats"]
STORES = ["directory", "s3"]


@pytest.fixture
def pairs(tmp_path: Path, request: pytest.FixtureRequest) -> Pairs:
    return Pairs(tmp_path, request)


@pytest.mark.parametrize(
    ("transport", "store", "rounds", "at_once"),
    [
        ("sqlite", "directory", 40, 1),
        ("redis", "directory", 25, 1),
        ("nats", "directory", 14, 1),
        ("sqlite", "s3", 2, 3),
        ("redis", "s3", 3, 3),
        ("nats", "s3", 2, 3),
    ],
)
async def test_a_hundred_kills_lose_nothing_and_double_nothing(
    pairs: Pairs, transport: str, store: str, rounds: int, at_once: int
) -> None:
    story = await killed(await pairs.make(transport, store), rounds=rounds, at_once=at_once)
    assert (story.kills, story.broken) == (rounds * at_once, "")


async def test_an_archiver_that_stood_still_before_its_put_changes_nothing(pairs: Pairs) -> None:
    story = await stood_still(await pairs.make("redis", "directory"))
    assert (story.trimmed, story.broken) == (story.messages, "")


@pytest.mark.parametrize(
    ("planted", "shows"), [("random", "twice"), ("overwrite", "lost"), ("pending guard", "trimmed unarchived")]
)
async def test_a_planted_bug_does_not_survive_an_archiver_that_stood_still(
    pairs: Pairs, planted: str, shows: str
) -> None:
    with planted_at(pairs, planted) as (store, client):
        story = await stood_still(await pairs.make("redis", "directory"), store, client)
    assert shows in story.broken


@contextlib.contextmanager
def planted_at(pairs: Pairs, planted: str) -> Iterator[tuple[str, redis.Redis | None]]:
    """A store with this bug, or the client of a trim with it."""
    if planted != "pending guard":
        yield planted, None
        return
    with redis.Redis.from_url(pairs.redis.url) as client:
        every = client.keys
        client.keys = lambda pattern="*": every(f"{pairs.prefix}{pattern}")  # type: ignore[method-assign]
        yield "true", client


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("transport", "store", "planted", "rounds", "at_once", "shows"),
    [
        *(("redis", store, "pending guard", 5, 1, "trimmed unarchived") for store in STORES),
        *((transport, store, "random", 20, 1, "twice") for transport in TRANSPORTS for store in STORES),
        # It takes two at the same moment to overwrite: beside a store as slow as a bucket that is left to chance.
        *((transport, "directory", "overwrite", 60, 3, "lost|twice") for transport in TRANSPORTS),
    ],
)
async def test_a_planted_bug_does_not_survive_the_kills(
    pairs: Pairs, transport: str, store: str, planted: str, rounds: int, at_once: int, shows: str
) -> None:
    with planted_at(pairs, planted) as (faulty, client):
        pair = await pairs.make(transport, store)
        story = await killed(pair, rounds=rounds, at_once=at_once, store=faulty, planted=client, seed=2)
    assert re.search(shows, story.broken)


@pytest.mark.full
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_archiver_that_stood_still_changes_nothing_anywhere(pairs: Pairs, transport: str, store: str) -> None:
    story = await stood_still(await pairs.make(transport, store))
    assert (story.trimmed, story.broken) == (story.messages, "")


@pytest.mark.full
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("planted", "shows"), [("random", "twice"), ("overwrite", "lost")])
async def test_an_archiver_that_stood_still_shows_a_planted_bug_everywhere(
    pairs: Pairs, transport: str, store: str, planted: str, shows: str
) -> None:
    story = await stood_still(await pairs.make(transport, store), planted)
    assert shows in story.broken


@pytest.mark.full
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("seed", "rounds", "at_once"), [(2, 400, 1), (3, 200, 3)])
async def test_a_thousand_kills_of_each_kind_lose_nothing_and_double_nothing(
    pairs: Pairs, transport: str, store: str, seed: int, rounds: int, at_once: int
) -> None:
    story = await killed(await pairs.make(transport, store), rounds=rounds, at_once=at_once, seed=seed)
    print(f"\n{transport} to {store}, {at_once} at once: {story}")
    assert (story.kills, story.broken) == (rounds * at_once, "")
