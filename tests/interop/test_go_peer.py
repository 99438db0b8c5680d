"""wrasse and the origin program on one Redis: nothing is lost, nothing doubled that both let live."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis as redis_sync
import redis.asyncio as aioredis

from cli.command_line import wrasse
from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, QueueClient
from interop.go_peer import (
    COMPLETED,
    DEAD,
    FIELDS,
    LIMITER,
    QUEUES,
    GoProducer,
    GoRecovery,
    GoWorker,
    go_dead,
    go_json,
    go_purge_all,
    go_stats,
)
from processes.daemons import running, until
from servers.valkey import Valkey, valkey
from wrasse import App, connect
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.options import RedisOptions
from wrasse.clock import ManualClock
from wrasse.ports.jobs import Job, JobFilter, JobState
from wrasse.sweeps.stuck_jobs import StuckJobs

HIGH, LOW = QUEUES["high"], QUEUES["low"]
SLOW = """
import asyncio
async def work(job):
    await asyncio.sleep(600)
async def quick(job):
    return "ran"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as own:
        yield own


@pytest.fixture
async def client(server: Valkey) -> AsyncIterator[aioredis.Redis]:
    own = aioredis.Redis(port=server.port, socket_timeout=60)
    await own.flushall()
    yield own
    await own.aclose()


class Here:
    """Our side, with a clock that the test moves."""

    def __init__(self, redis: Redis, clock: ManualClock) -> None:
        self.redis, self.clock, self.jobs_client = redis, clock, QueueClient(redis.jobs)

    async def sweep(self) -> list[str]:
        """A whole search for strays, and what the sweep then makes of those that are overdue."""
        cursor = "0"
        while True:
            found = await self.redis.strays.scan(cursor, 1_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
            cursor = found.cursor
            if found.ended:
                break
        self.clock.advance(LONGER)
        sweep = StuckJobs(self.redis.jobs, heartbeat_timeout=HEARTBEAT_TIMEOUT)
        page = await sweep.find(None, 1_000)
        return [*await sweep.apply([sweep.decide(info, page.at) for info in page])]


@pytest.fixture
async def here(client: aioredis.Redis, server: Valkey) -> AsyncIterator[Here]:
    clock = ManualClock()
    options = RedisOptions(nodes=(("127.0.0.1", server.port),), queues=QUEUES)
    redis = await Redis.open(options, clock, time=clock)
    yield Here(redis, clock)
    await redis.close()


async def test_a_job_of_ours_that_the_peer_does_is_in_its_list_of_done_ones_byte_for_byte(
    here: Here, client: aioredis.Redis
) -> None:
    await here.jobs_client.enqueue(Job("ours", queue=LOW, payload=b'{"filepath":"/data/a","filesize":7}'))
    before = await client.lrange(LOW, 0, -1)
    peer = GoWorker(client)
    raw = await peer.fetch()
    assert raw is not None
    await peer.finish(raw)
    assert await client.lrange(COMPLETED, 0, -1) == before
    assert list(json.loads(raw))[: len(FIELDS)] == list(FIELDS)


async def test_a_job_that_the_peer_retried_and_lost_goes_to_the_queue_of_its_priority(
    here: Here, client: aioredis.Redis
) -> None:
    """Its retry drops what it does not know, also where the job came from."""
    await here.jobs_client.enqueue(Job("ours", queue="reports", priority="high"))
    await client.rpoplpush("jobqueue:queue:reports", HIGH)
    first, second = GoWorker(client, "go-1"), GoWorker(client, "go-2")
    raw = await first.fetch()
    assert raw is not None
    assert b"origin_queue" in raw
    await first.retry(raw)
    again = await second.fetch()
    assert again is not None
    assert b"origin_queue" not in again
    await second.die()
    await here.sweep()
    assert [(claimed.job.id, claimed.job.queue) for claimed in await here.jobs_client.claim(queues=(HIGH, LOW))] == [
        ("ours", HIGH)
    ]


async def _beside_the_peers_recovery(client: aioredis.Redis, server: Valkey, jobs: int) -> None:
    app, ran, bare = _app(server), Counter[str](), 0

    @app.handler()
    async def work(job: object) -> None:
        ran[job.id] += 1  # type: ignore[attr-defined]

    async def watch() -> None:
        """No entry is ever seen without its heartbeat, in one look at both."""
        nonlocal bare
        while not working.done():
            async for key in client.scan_iter("jobqueue:worker:*:processing", count=100):
                worker = key.decode().split(":")[2]
                look = client.pipeline(transaction=True).llen(key).exists(f"jobqueue:processing:worker:{worker}")
                held, beats = await look.execute()
                bare += bool(held and not beats)
            await asyncio.sleep(0.001)

    recovery = GoRecovery(client)
    async with app:
        worker = app.worker(signals=False)
        async with asyncio.timeout(300), recovery.looping(), asyncio.TaskGroup() as group:
            working = group.create_task(worker.run())
            group.create_task(watch())
            for start in range(0, jobs, 500):
                await client.lpush(LOW, *(go_json(id=f"j{n}") for n in range(start, min(start + 500, jobs))))
            while len(ran) < jobs or await client.llen(COMPLETED) < jobs:  # noqa: ASYNC110  # who runs them is no task
                await asyncio.sleep(0.01)
            worker.stop("1s")
    assert recovery.rounds > 10, "it has looked while they ran"
    assert (recovery.moved, bare, set(ran.values()), len(ran)) == ([], 0, {1}, jobs)
    assert await client.llen(COMPLETED) == jobs


def _app(server: Valkey) -> App:
    return connect(f"redis://127.0.0.1:{server.port}/0")


async def test_beside_the_peers_recovery_every_millisecond_no_job_is_lost_or_run_twice(
    client: aioredis.Redis, server: Valkey
) -> None:
    await _beside_the_peers_recovery(client, server, 1_000)


@pytest.mark.full
async def test_beside_the_peers_recovery_ten_thousand_jobs_are_run_once_each(
    client: aioredis.Redis, server: Valkey
) -> None:
    await _beside_the_peers_recovery(client, server, 10_000)


@pytest.fixture
def shop(place: Path, server: Valkey) -> Path:
    with redis_sync.Redis(port=server.port) as client:
        client.flushall()
    (place / "shop.py").write_text(SLOW)
    (place / "wrasse.yaml").write_text(f"redis:\n  addr: 127.0.0.1:{server.port}\nworker:\n  heartbeat_ttl: 5s\n")
    return place


def test_what_a_killed_worker_of_ours_held_is_given_back_by_the_peer_within_the_heartbeat(
    shop: Path, server: Valkey
) -> None:
    raw, list_of_one = go_json(id="a", filesize=7), "jobqueue:worker:*:processing"
    with redis_sync.Redis(port=server.port) as client:
        client.lpush(LOW, raw)
        with running(shop, "--role=worker", "--handler=shop:work") as daemon:
            (key,) = until(lambda: client.keys(list_of_one) or None, "the job is held")
            heartbeat = f"jobqueue:processing:worker:{key.decode().split(':')[2]}"
            daemon.signal(signal.SIGKILL)
            daemon.end()
        left = client.pttl(heartbeat)
        assert 0 < left <= 5_000

        def recovered() -> bool:
            """One look of the peer's recovery at this worker, by the commands it sends."""
            if client.exists(heartbeat):
                return False
            while (popped := client.rpop(key)) is not None:
                client.lpush(LOW, popped)
            return True

        until(recovered, "the job is given back by the peer")
        assert (client.lrange(LOW, 0, -1), client.exists(key)) == ([raw], 0)
        with running(shop, "--role=worker", "--handler=shop:quick"):
            until(lambda: client.llen(COMPLETED) == 1, "the job done by the next worker")
        assert client.lrange(COMPLETED, 0, -1) == [raw]


async def test_of_our_rescue_and_the_peer_that_lets_go_of_the_same_entries_exactly_one_wins_each(
    here: Here, client: aioredis.Redis
) -> None:
    raws = [go_json(id=f"j{n}") for n in range(40)]
    peer = GoWorker(client, "go-1")
    await client.lpush(peer.processing, *raws)
    while not (await here.redis.strays.scan("0", 1_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)).ended:
        pass
    here.clock.advance(LONGER)
    sweep = StuckJobs(here.redis.jobs, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    page = await sweep.find(None, 100)

    async def rescue() -> int:
        outcomes = [await sweep.apply([sweep.decide(info, page.at)]) for info in page]
        return sum(outcome == ("done",) for outcome in outcomes)

    async def let_go() -> int:
        return sum([await client.lrem(peer.processing, 1, raw) for raw in reversed(raws)])

    rescued, removed = await asyncio.gather(rescue(), let_go())
    assert rescued + removed == len(raws)
    assert (await client.llen(LOW), await client.exists(peer.processing)) == (rescued, 0)
    assert rescued > 0
    assert removed > 0


def test_a_priority_that_the_peer_would_not_know_is_refused_with_those_it_knows(shop: Path) -> None:
    answer = wrasse("jobs", "enqueue", "--priority=urgent", "x")
    assert (answer.code, "use one of: high, low" in answer.err) == (2, True)


async def test_a_job_of_another_priority_that_the_peer_left_goes_to_the_default_queue(
    here: Here, client: aioredis.Redis
) -> None:
    await client.lpush(GoWorker(client, "go-1").processing, go_json(id="a", priority="urgent"))
    await here.sweep()
    assert await here.jobs_client.claim(queues=(HIGH,)) == []
    assert [claimed.job.id for claimed in await here.jobs_client.claim(queues=(LOW,))] == ["a"]


async def test_the_peers_producer_and_ours_share_one_limit(here: Here, client: aioredis.Redis) -> None:
    producer = GoProducer(client, limit=5)
    for _ in range(100):  # until all of it fell into one second, which a busy machine may need several tries for
        await client.delete(LIMITER)
        before = [await producer.put(go_json(id=f"j{n}")) for n in range(3)]
        ours = await here.redis.limiter.allow(LIMITER, 10, rate=5, burst=5)
        over = await producer.put(go_json(id="over"))
        if await client.get(LIMITER) == b"6":
            break
    assert (before, ours.count, over) == ([False] * 3, 2, True)


async def test_the_peers_stats_count_our_workers_and_nothing_else_of_ours(here: Here, client: aioredis.Redis) -> None:
    await here.jobs_client.enqueue(
        Job("a", queue=LOW), Job("b", queue=LOW), Job("c", queue=LOW, unique="name", delay=LONGER)
    )
    held = await here.jobs_client.claim(queues=(LOW,), limit=1)
    await here.jobs_client.heartbeat(held[0].claim)
    assert await go_stats(client) == {
        "queues": {f"high({HIGH})": 0, f"low({LOW})": 1, f"completed({COMPLETED})": 0, f"dead_letter({DEAD})": 0},
        "processing_lists": {"jobqueue:worker:w1:processing": 1},
        "heartbeats": 1,
    }


async def test_the_peers_list_of_dead_letters_shows_why_ours_died(here: Here, client: aioredis.Redis) -> None:
    await here.jobs_client.enqueue(Job("ours", queue=LOW))
    (claimed,) = await here.jobs_client.claim(queues=(LOW,))
    await here.jobs_client.dead_letter(claimed.claim)
    assert await go_dead(client) == [("ours", "it broke")]


async def test_what_the_peer_buried_is_a_dead_job_here_with_its_bytes(here: Here, client: aioredis.Redis) -> None:
    await GoProducer(client).put(go_json(id="theirs", retries=3))
    peer = GoWorker(client)
    raw = await peer.fetch()
    assert raw is not None
    await peer.bury(raw)
    (info,) = await here.redis.jobs.page(JobState.DEAD, JobFilter(), None, 10)
    assert (info.id, info.failures, await client.lrange(DEAD, 0, -1)) == ("theirs", 3, [raw])


async def test_after_the_peers_purge_of_all_a_repair_leaves_nothing_that_stands_in_the_way(
    here: Here, client: aioredis.Redis
) -> None:
    """It deletes lists under the hands of our workers. What they held is put back, since only they may drop it."""
    await here.jobs_client.enqueue(Job("held", queue=LOW), Job("waiting", queue=LOW, unique="name"))
    await here.jobs_client.claim(queues=(LOW,), limit=1)
    await go_purge_all(client)
    found = await here.redis.fsck.check(repair=True, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert [each.kind for each in found] == ["entry_lost", "id_left_over", "unique_left_over"]
    assert await here.redis.fsck.check(repair=False, heartbeat_timeout=HEARTBEAT_TIMEOUT) == ()
    assert await here.jobs_client.enqueue(Job("waiting", queue=LOW, unique="name")) == [True]
