"""Strays: jobs that a worker holds and no hold names. Who is left alone, who is adopted, where the job then goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from backends.redis.interleaved import InterleavedClient
from backends.redis.peer import GoPeer, go_job, go_recovery
from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, QueueClient
from conformance.stores import REDIS_SERVERS, Store, forget
from servers.valkey import SHARED
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.jobs.lists import RedisStrays
from wrasse.backends.redis.options import RedisOptions
from wrasse.clock import ManualClock
from wrasse.engine.sweep import Action
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.ports.inconsistency import StrayScan
from wrasse.ports.jobs import Budget, JobFilter, JobState, Reason, Requeue
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.stuck_jobs import StuckJobs

MANY = 10_000


class StrayScene:
    """A job queue that another program works on too."""

    def __init__(self, store: Store) -> None:
        assert isinstance(store.backend, Redis)
        self.store, self.client, self.strays = store, store.backend.client, store.backend.strays
        self.jobs_client, self.peer = QueueClient(store.jobs), GoPeer(store.backend.client)
        self.sweep = StuckJobs(store.jobs, heartbeat_timeout=HEARTBEAT_TIMEOUT)

    async def left(self, raw: bytes, worker: str = "dead-1") -> GoPeer:
        """A worker of the other program that died with this job in its hands."""
        peer = GoPeer(self.client, worker)
        await peer.push(raw)
        await peer.fetch()
        await peer.die()
        return peer

    async def scan(self, *, dry: bool = False) -> StrayScan:
        """A whole round."""
        cursor, seen, adopted, holders = "0", 0, 0, 0
        while True:
            found = await self.strays.scan(cursor, 1_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=dry)
            seen, adopted, holders = seen + found.seen, adopted + found.adopted, holders + found.holders
            cursor = found.cursor
            if found.ended:
                return StrayScan(holders, seen, adopted, cursor, ended=True)

    async def rescue(self) -> list[Outcome]:
        """What the sweep does about those that are overdue."""
        page = await self.sweep.find(None, 100)
        actions = [verdict for suspect in page if isinstance(verdict := self.sweep.decide(suspect, page.at), Action)]
        return list(await self.sweep.apply(actions))

    async def adopt_and_rescue(self) -> list[Outcome]:
        await self.scan()
        await self.store.pass_time(LONGER)
        return await self.rescue()

    async def everything(self) -> dict[bytes, bytes]:
        """All keys of this root and what they hold."""
        found, cursor = {}, b"0"
        while True:
            pattern = f"*{self.client.options.root}*"
            cursor, keys = await self.client.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000)
            for key in keys:
                found[key] = await self.client.ask("DUMP", key)
            if cursor == b"0":
                return found


@pytest.fixture(params=REDIS_SERVERS)
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StrayScene]:
    store = Store(request.param, tmp_path)
    await store.open()
    yield StrayScene(store)
    await store.close()


async def test_a_job_whose_worker_has_no_heartbeat_is_rescued_one_timeout_later(scene: StrayScene) -> None:
    peer = await scene.left(go_job("a"))
    found = await scene.scan()
    early = await scene.rescue()
    await scene.store.pass_time(LONGER)
    late = await scene.rescue()
    info = await scene.jobs_client.info("a")
    assert ((found.seen, found.adopted), early, late) == ((1, 1), [], [Outcome.DONE])
    assert (info.state, info.queue, info.rescues, await peer.holds()) == (JobState.READY, "low", 1, [])


async def test_an_adopted_job_is_a_running_job_like_any_other(scene: StrayScene) -> None:
    await scene.left(go_job("a"), worker="dead-1")
    await scene.scan()
    info = await scene.jobs_client.info("a")
    assert (info.state, info.worker, info.reason, (await scene.jobs_client.count()).running) == (
        JobState.RUNNING,
        "dead-1",
        None,
        1,
    )
    assert info.deadline == info.heartbeat_at + HEARTBEAT_TIMEOUT


async def test_the_jobs_of_a_live_worker_of_another_program_are_left_alone(scene: StrayScene) -> None:
    await scene.peer.push(go_job("a"))
    await scene.peer.fetch()
    found = await scene.scan()
    assert ((found.seen, found.adopted), await scene.peer.holds()) == ((0, 0), [go_job("a")])


async def test_a_heartbeat_that_comes_back_keeps_the_job(scene: StrayScene) -> None:
    peer = await scene.left(go_job("a"))
    await scene.scan()
    await scene.store.pass_time(LONGER)
    await scene.client.ask("SET", peer.heartbeat, "alive", "EX", 30)
    assert (await scene.rescue(), await peer.holds()) == ([Outcome.CONFLICT], [go_job("a")])
    assert ((await scene.jobs_client.count()).running, await scene.jobs_client.ids(JobState.READY)) == (0, [])


async def test_a_job_that_its_worker_finished_after_all_is_not_pushed_again(scene: StrayScene) -> None:
    peer = await scene.left(go_job("a"))
    await scene.scan()
    await peer.finish(go_job("a"))
    await scene.store.pass_time(LONGER)
    count = await scene.jobs_client.count()
    assert (await scene.rescue(), count.ready) == ([Outcome.CONFLICT], 0)
    assert (await scene.jobs_client.count()).running == 0


async def test_a_job_is_adopted_once_however_often_it_is_seen(scene: StrayScene) -> None:
    await scene.left(go_job("a"))
    both = await asyncio.gather(scene.scan(), scene.scan())
    again = await scene.scan()
    assert (sum(found.adopted for found in both), again.adopted, (await scene.jobs_client.count()).running) == (1, 0, 1)


async def test_our_own_claims_are_never_strays(scene: StrayScene) -> None:
    await scene.peer.push(go_job("a"))
    await scene.peer.push(go_job("a", retries=1))  # the same id twice
    await scene.jobs_client.enqueue("b")
    claims = [claimed.claim for claimed in await scene.jobs_client.claim()]
    await scene.jobs_client.heartbeat(*claims)
    found = await scene.scan()
    await scene.client.ask("DEL", GoPeer(scene.client, "w1").heartbeat)
    assert (len(claims), found.seen, found.holders, (await scene.jobs_client.count()).running) == (3, 0, 1, 3)


async def test_what_a_fault_left_under_a_live_worker_of_ours_is_adopted(scene: StrayScene) -> None:
    await scene.jobs_client.heartbeat(await scene.jobs_client.claimed("a"))
    await scene.client.ask("LPUSH", scene.peer.keys.processing("w1"), go_job("left"))
    found = await scene.scan()
    await scene.store.pass_time(LONGER)
    await scene.jobs_client.heartbeat((await scene.jobs_client.info("a")).claim)
    outcomes = await scene.rescue()
    assert (found.adopted, outcomes, await scene.jobs_client.state("left")) == (1, [Outcome.DONE], JobState.READY)
    assert await scene.jobs_client.state("a") is JobState.RUNNING


@pytest.mark.parametrize(
    ("raw", "queue"),
    [
        (go_job("a", more=',"origin_queue":"other"'), "other"),
        (go_job("a", priority="high"), "high"),
        (go_job("a", priority="no such"), "low"),
        (b'{"id":"a"}', "low"),
    ],
)
async def test_a_job_goes_back_to_where_it_came_from(scene: StrayScene, raw: bytes, queue: str) -> None:
    for name in ("high", "other"):
        await scene.client.ask("SADD", scene.peer.keys.queues, name)
    await scene.left(raw)
    outcomes = await scene.adopt_and_rescue()
    info = await scene.jobs_client.info("a")
    assert (outcomes, info.state, info.queue) == ([Outcome.DONE], JobState.READY, queue)


async def test_a_job_from_an_unknown_queue_is_dead_lettered_as_unroutable(scene: StrayScene) -> None:
    await scene.left(go_job("a", more=',"origin_queue":"no such"'))
    outcomes = await scene.adopt_and_rescue()
    info = await scene.jobs_client.info("a")
    assert (outcomes, info.state, info.reason) == ([Outcome.DONE], JobState.DEAD, Reason.UNROUTABLE)


@pytest.mark.parametrize("raw", [b"null", b"[]", b"\xff\xfe", b'{"id":{}}'])
async def test_bytes_that_are_no_job_are_dead_lettered_as_they_are(scene: StrayScene, raw: bytes) -> None:
    await scene.left(raw)
    outcomes = await scene.adopt_and_rescue()
    (dead,) = await scene.store.jobs.page(JobState.DEAD, JobFilter(), None, 10)
    letters = await scene.client.ask("LRANGE", scene.peer.keys.dead_letter, 0, -1)
    assert (outcomes, dead.reason, letters) == ([Outcome.DONE], Reason.INVALID_PAYLOAD, [raw])


async def test_a_job_that_kills_every_worker_is_dead_lettered_in_the_end(scene: StrayScene) -> None:
    await scene.peer.push(go_job("a"))
    for n in range(4):
        peer = GoPeer(scene.client, f"dead-{n}")
        await peer.fetch()
        await peer.die()
        await scene.adopt_and_rescue()
    info = await scene.jobs_client.info("a")
    assert (info.state, info.reason, info.rescues) == (JobState.DEAD, Reason.WORKER_DIED, 4)


async def test_two_rescuers_and_the_owner_make_one_copy(scene: StrayScene) -> None:
    other = await scene.store.another()
    try:
        for n in range(20):
            raw = go_job(f"job-{n}")
            peer = await scene.left(raw, worker=f"dead-{n}")
            await scene.scan()
            await scene.store.pass_time(LONGER)
            requeue = Requeue((await scene.jobs_client.info(f"job-{n}")).claim, Budget.RESCUES, Reason.WORKER_DIED)
            first, second, removed = await asyncio.gather(
                scene.store.jobs.move([requeue]),
                other.jobs.move([requeue]),
                scene.client.ask("LREM", peer.processing, 1, raw),
            )
            assert [*first, *second].count(Outcome.DONE) + removed == 1
            copies = await scene.client.ask("LLEN", scene.peer.keys.queue("low").list)
            assert copies == [*first, *second].count(Outcome.DONE)
            await scene.jobs_client.claim()
    finally:
        await other.close()


async def test_a_name_of_another_kind_is_no_trouble(scene: StrayScene) -> None:
    await scene.client.ask("SET", scene.peer.keys.processing("text"), "no list")
    await scene.client.ask("SADD", scene.peer.keys.processing("set"), "no list")
    await scene.left(go_job("a"))
    found = await scene.scan()
    assert (found.holders, found.adopted) == (1, 1)


async def test_nothing_is_left_of_the_list_of_a_dead_worker(scene: StrayScene) -> None:
    peer = await scene.left(go_job("a"))
    await scene.adopt_and_rescue()
    assert await scene.client.ask("EXISTS", peer.processing, peer.heartbeat) == 0


async def test_a_dry_scan_sees_the_same_and_changes_nothing(scene: StrayScene) -> None:
    await scene.left(go_job("a"))
    before = await scene.everything()
    dry = await scene.scan(dry=True)
    after = await scene.everything()
    wet = await scene.scan()
    assert (dry.seen, dry.adopted, after) == (wet.seen, 0, before)


async def test_a_server_that_does_not_answer_moves_nothing(scene: StrayScene) -> None:
    peer = await scene.left(go_job("a"))
    other = await scene.store.another()
    assert isinstance(other, Redis)
    await other.client.close()
    with pytest.raises(StoreUnavailable):
        await other.strays.scan(None, 100, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    assert (await peer.holds(), (await scene.jobs_client.count()).running) == ([go_job("a")], 0)


async def test_the_next_search_goes_on_where_the_last_one_stopped(scene: StrayScene) -> None:
    for n in range(60):
        await scene.client.ask("LPUSH", scene.peer.keys.processing(f"dead-{n}"), go_job(f"job-{n}"))
    scans, adopted = 0, 0
    while adopted < 60 and scans < MANY:
        other = await scene.store.another() if scans % 50 == 0 else None  # as after a restart
        strays = scene.strays if other is None else other.strays
        adopted += (await strays.scan(None, 10, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)).adopted
        scans += 1
        if other is not None:
            await other.close()
    assert adopted == 60


async def test_a_scan_of_nothing_is_refused(scene: StrayScene) -> None:
    with pytest.raises(UsageError):
        await scene.strays.scan(None, 0, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)


async def test_names_follow_the_configured_patterns() -> None:
    root = f"t{uuid4().hex}"
    clock = ManualClock()
    options = RedisOptions(
        nodes=(("127.0.0.1", SHARED.at(REDIS_SERVERS["redis"]()).port),),
        root=root,
        processing_list_pattern=f"{root}[1]*/%s/at work",
        heartbeat_key_pattern=f"{root} alive %s",
    )
    redis = await Redis.open(options, clock, time=clock)
    try:
        peer = GoPeer(redis.client, "odd:id/1")
        await peer.push(go_job("a"))
        await peer.fetch()
        alive = await redis.strays.scan("0", 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
        await peer.die()
        silent = await redis.strays.scan("0", 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
        info = await QueueClient(redis.jobs).info("a")
    finally:
        await forget(redis, root)
        await redis.close()
    names = (peer.processing, peer.heartbeat)
    assert names == (f"{root}[1]*/odd:id/1/at work", f"{root} alive odd:id/1")
    assert (alive.seen, silent.adopted, info.worker) == (0, 1, "odd:id/1")


async def test_a_worker_that_was_seen_once_is_scanned_first(scene: StrayScene) -> None:
    await scene.peer.push(go_job("a"))
    await scene.peer.fetch()
    await scene.scan()
    await scene.peer.die()
    noise = [f"{scene.client.options.root}:noise:{n}" for n in range(500)]
    await scene.client.ask("MSET", scene.peer.keys.strays, "0", *(word for name in noise for word in (name, "")))
    found = await scene.strays.scan(
        None, 1, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False
    )  # far too few names to come across it
    assert (found.ended, found.adopted) == (False, 1)


async def test_a_job_of_a_dead_worker_of_ours_is_not_adopted_beside_its_claim(scene: StrayScene) -> None:
    await scene.jobs_client.claimed("a")
    await scene.client.ask("DEL", scene.peer.keys.heartbeat("w1"))
    found = await scene.scan()
    assert (found.seen, (await scene.jobs_client.count()).running) == (0, 1)


async def test_a_worker_that_comes_to_life_during_a_scan_keeps_its_job(scene: StrayScene) -> None:
    peer = await scene.left(go_job("a"))
    between = InterleavedClient(
        scene.client, "adopt", lambda: scene.client.ask("SET", peer.heartbeat, "alive", "EX", 30)
    )
    found = await RedisStrays(between).scan("0", 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    assert (between.happened, found.seen, found.adopted) == (True, 1, 0)


async def test_a_job_that_is_finished_during_a_scan_is_not_adopted(scene: StrayScene) -> None:
    peer = await scene.left(go_job("a"))
    between = InterleavedClient(scene.client, "adopt", lambda: peer.finish(go_job("a")))
    found = await RedisStrays(between).scan("0", 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    assert (between.happened, found.adopted, (await scene.jobs_client.count()).running) == (True, 0, 0)


async def test_a_worker_with_nothing_in_its_hands_is_not_counted_among_the_holders(scene: StrayScene) -> None:
    await scene.peer.push(go_job("a"))
    await scene.peer.fetch()
    busy = await scene.strays.scan(None, 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    await scene.peer.finish(go_job("a"))
    idle = await scene.strays.scan(None, 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    assert (busy.holders, idle.holders) == (1, 0)


async def test_the_other_programs_own_recovery_leaves_a_live_worker_of_ours_its_jobs(scene: StrayScene) -> None:
    await scene.jobs_client.enqueue(*"abc")
    for claimed in await scene.jobs_client.claim(limit=2):
        assert await go_recovery(scene.client) == 0
        await scene.jobs_client.heartbeat(claimed.claim)
        assert await go_recovery(scene.client) == 0
        assert await scene.jobs_client.complete(claimed.claim) == [Outcome.DONE]
    assert (await scene.jobs_client.ids(JobState.READY), await scene.jobs_client.state("a")) == (["c"], JobState.DONE)


async def test_what_the_other_programs_recovery_released_is_not_released_again(scene: StrayScene) -> None:
    await scene.left(go_job("theirs"))
    await scene.jobs_client.enqueue("ours")
    await scene.jobs_client.claim()
    await scene.scan()
    await scene.client.ask("DEL", scene.peer.keys.heartbeat("w1"))
    moved = await go_recovery(scene.client)
    await scene.store.pass_time(LONGER)
    assert (moved, await scene.rescue()) == (2, [Outcome.CONFLICT, Outcome.CONFLICT])
    count = await scene.jobs_client.count()
    assert (sorted(await scene.jobs_client.ids(JobState.READY)), count.ready, count.running) == (
        ["ours", "theirs"],
        2,
        0,
    )
