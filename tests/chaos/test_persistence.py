"""What a killed server still has when it is started again, by how it writes to disk."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from chaos.test_cluster import stored
from servers.valkey import Valkey, valkey
from wrasse.backends.redis.connect import Redis
from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import Job

PUTS = 1_000


async def killed_in_the_middle(server: Valkey) -> tuple[set[str], set[str]]:
    """Eight producers put until the server is killed: what they were told is stored, and what is there afterwards."""
    redis = await Redis.open(server.url)
    told: set[str] = set()
    enough = asyncio.Event()

    async def produce(name: int) -> None:
        number = 0
        while True:
            id = f"{name}-{number}"
            await redis.jobs.enqueue([Job(id, minted=number % 2 == 0)], request=uuid4().hex)
            told.add(id)
            number += 1
            if len(told) >= PUTS:
                enough.set()

    try:
        producing = [asyncio.ensure_future(produce(name)) for name in range(8)]
        async with asyncio.timeout(60):
            await enough.wait()
        await asyncio.to_thread(server.kill)
        ends = await asyncio.gather(*producing, return_exceptions=True)
        assert {type(end) for end in ends} == {StoreUnavailable}
        await asyncio.to_thread(server.start)
        return told, await stored(redis)
    finally:
        await redis.close()


async def test_a_server_that_writes_every_command_to_disk_loses_nothing_that_it_answered() -> None:
    with valkey(durable=True) as server:
        told, found = await killed_in_the_middle(server)
    assert told - found == set()


@pytest.mark.full
async def test_a_server_that_writes_once_a_second_loses_its_last_moments_at_most() -> None:
    with valkey("--appendonly", "yes", "--appendfsync", "everysec") as server:
        told, found = await killed_in_the_middle(server)
    print(f"everysec: {len(told - found)} of {len(told)} lost by a kill of the server alone")
    assert len(told - found) <= len(told) // 2


async def test_a_server_without_persistence_loses_everything() -> None:
    with valkey() as server:
        told, found = await killed_in_the_middle(server)
    assert (len(told) >= PUTS, found) == (True, set())
