"""The limiter on Redis beside the Go producer, which counts with INCR and EXPIRE under the same key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from servers.valkey import Valkey, oldest, valkey
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.limiter import RedisLimiter
from wrasse.backends.redis.options import RedisOptions
from wrasse.errors import ConfigError, StoreBroken


@pytest.fixture(scope="module")
def old_server() -> Iterator[Valkey]:
    with valkey(binary=oldest()) as server:
        yield server


@pytest.fixture(params=["redis_server", "old_server"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[OwnRedisClient]:
    client = await OwnRedisClient.open(RedisOptions.of(request.getfixturevalue(request.param).url))
    yield client
    await client.close()


@pytest.fixture
def key() -> str:
    return f"rate_limit:{uuid4().hex}"


async def go_producer(client: OwnRedisClient, key: str) -> int:
    """What the Go producer does for each file."""
    count = int(await client.ask("INCR", key))
    if count == 1:
        await client.ask("EXPIRE", key, 1)
    return count


async def test_a_go_producer_and_ours_count_into_one_budget(client: OwnRedisClient, key: str) -> None:
    for _ in range(4):
        await go_producer(client, key)
    assert (await RedisLimiter(client).allow(key, 10, rate=10, burst=10)).count == 6
    assert await go_producer(client, key) > 10  # it is over the limit, and waits
    assert 0 < await client.ask("PTTL", key) <= 1_000


async def test_a_counter_that_never_ends_is_mended_within_a_second(client: OwnRedisClient, key: str) -> None:
    await client.ask("SET", key, 1_000)  # its producer died between INCR and EXPIRE
    limiter = RedisLimiter(client)
    refused = await limiter.allow(key, 5, rate=10, burst=5)
    assert refused.count == 0
    await asyncio.sleep(refused.wait.total_seconds() + 0.05)
    assert (await limiter.allow(key, 5, rate=10, burst=5)).count == 5


async def test_our_own_counter_always_ends(client: OwnRedisClient, key: str) -> None:
    limiter = RedisLimiter(client)
    await limiter.allow(key, 2, rate=10, burst=5)
    assert 0 < await client.ask("PTTL", key) <= 1_000
    await limiter.give_back(key, 2, rate=10)
    assert await client.ask("PTTL", key) != -1


async def test_a_key_that_holds_something_else_is_said_and_left_alone(client: OwnRedisClient, key: str) -> None:
    await client.ask("SET", key, "a letter")
    with pytest.raises(StoreBroken):
        await RedisLimiter(client).allow(key, 1, rate=1, burst=1)
    assert await client.ask("GET", key) == b"a letter"


async def test_on_a_cluster_the_key_follows_the_root() -> None:
    clustered = OwnRedisClient(RedisOptions(cluster=True))
    assert RedisLimiter(clustered)._name("jobqueue:rate_limit:producer") == "{jobqueue}:rate_limit:producer"
    with pytest.raises(ConfigError, match="hash tag"):
        RedisLimiter(clustered)._name("elsewhere")
