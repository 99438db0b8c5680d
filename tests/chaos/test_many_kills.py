"""Workers and rescuers die by the thousand, and at every moment each job is in exactly one list of the server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

from chaos.fork_actor import KEEP_ALL
from conformance.stores import forget
from servers.valkey import Valkey
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.scripts import Script
from wrasse.ports.jobs import Job, JobFilter, JobState

ACTOR = Path(__file__).with_name("fork_actor.py")
# One moment of all lists, as another program sees them.
EVERYTHING = Script.of(
    "everything",
    """
    local found, lists = {}, redis.call('KEYS', KEYS[1] .. ':worker:*:processing')
    for _, name in ipairs({':queue:low', ':completed', ':dead_letter'}) do lists[#lists + 1] = KEYS[1] .. name end
    for _, list in ipairs(lists) do
      for _, bytes in ipairs(redis.call('LRANGE', list, 0, -1)) do found[#found + 1] = bytes end
    end
    for _, member in ipairs(redis.call('ZRANGE', KEYS[1] .. ':queue:low:delayed', 0, -1)) do
      found[#found + 1] = string.sub(member, 18)
    end
    return found
    """,
)


async def everything(link: OwnRedisClient) -> Counter[str]:
    return Counter(json.loads(raw)["id"] for raw in await link.run(EVERYTHING, (link.options.root,)))


async def kill(server: Valkey, kills: int) -> tuple[Counter[str], int]:
    """Puts jobs while others die over them, and looks; gives all that was put, and how often one was rescued."""
    url = f"{server.url}?root=t{uuid4().hex}"
    redis = await Redis.open(url, done_max=KEEP_ALL)
    numbers, put = count(), Counter[str]()
    actor = await asyncio.create_subprocess_exec(sys.executable, str(ACTOR), url, str(kills))
    dying = asyncio.ensure_future(actor.wait())
    try:
        while not dying.done():
            if sum(each.ready for each in (await redis.jobs.counts()).queues) < 100:
                batch = [Job(str(next(numbers)), minted=bool(n % 2)) for n in range(50)]
                await redis.jobs.enqueue(batch, request=uuid4().hex)
                put.update(job.id for job in batch)
            assert await everything(redis.client) == put
            await asyncio.wait((dying,), timeout=0.2)
        assert dying.result() == 0
        assert await everything(redis.client) == put
        rescued = sum([info.rescues for info in await redis.jobs.page(JobState.DONE, JobFilter(), None, 1_000)])
        return put, rescued
    finally:
        if actor.returncode is None:
            actor.kill()
        await dying
        await forget(redis, redis.client.options.root)
        await redis.close()


async def test_at_every_moment_of_many_kills_each_job_is_in_one_list(redis_server: Valkey) -> None:
    put, rescued = await kill(redis_server, kills=300)
    assert rescued > 0
    print(f"300 kills over {put.total()} jobs, {rescued} rescues")


@pytest.mark.full
@pytest.mark.timeout(1_800)
async def test_at_every_moment_of_ten_thousand_kills_each_job_is_in_one_list(redis_server: Valkey) -> None:
    put, rescued = await kill(redis_server, kills=10_000)
    assert rescued > 0
    print(f"10,000 kills over {put.total()} jobs, {rescued} rescues in the first thousand")
