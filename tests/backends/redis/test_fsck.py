"""Inconsistencies on Redis: no operation of ours leaves one, each kind is recognised, and a repair loses no job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.redis.interleaved import InterleavedClient
from backends.redis.peer import GoPeer, go_job
from backends.redis.scene import GROUP, HOUR, MEMBERS, Chance, Plant, Scene
from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, QueueClient
from conformance.stores import CLUSTER, Store
from wrasse.backends.redis.fsck_check import RedisFsck
from wrasse.backends.redis.fsck_suspects import FsckSuspect, Judge, Kind
from wrasse.ports.jobs import GROUP_DEAD_HEADER, Job, JobGroup, JobState
from wrasse.sweeps.stuck_jobs import StuckJobs


@pytest.fixture(params=["redis", *(pytest.param(name, marks=pytest.mark.full) for name in ("redis-6.2", CLUSTER))])
async def bare(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    store = Store(request.param, tmp_path)
    await store.open()
    yield Scene(store)
    await store.close()


@pytest.fixture
async def scene(bare: Scene) -> Scene:
    await bare.set_up()
    return bare


async def test_jobs_in_every_place_are_no_damage(scene: Scene) -> None:
    assert await scene.check() == []


@pytest.mark.parametrize("seed", range(6))
async def test_after_anything_that_the_port_allows_there_is_no_damage(bare: Scene, seed: int) -> None:
    chance = Chance(bare, seed)
    for _ in range(80):
        await chance.step()
    assert await bare.check() == []


async def _token(scene: Scene) -> None:
    await scene.do("DEL", scene.keys.token)


async def _requests(scene: Scene) -> None:
    for key in scene.keys.requests:
        await scene.do("PERSIST", key)


async def _worker(scene: Scene) -> None:
    await scene.do("ZREM", scene.keys.workers, "w1")


async def _heartbeat(scene: Scene) -> None:
    await scene.do("SET", scene.keys.heartbeat("w1"), "x")


async def _queue(scene: Scene) -> None:
    await scene.do("SREM", scene.keys.queues, "low")
    await scene.do("DEL", f"{scene.keys.root}:queue:low:wake")


async def _delayed(scene: Scene) -> None:
    await scene.do("ZADD", scene.keys.queue("low").delayed, 2**42, go_job("foreign"))


async def _invalid_entry(scene: Scene) -> None:
    await scene.do("ZADD", scene.keys.queue("low").delayed, 2**42, b'0000000000000001:{"id":"a","delay":1e300}')


async def _index_without_claim(scene: Scene) -> None:
    await scene.do("HDEL", scene.keys.holds, scene.claim_key_of("held-2"))


async def _claim_without_index(scene: Scene) -> None:
    await scene.do("ZREM", scene.keys.held, scene.claim_key_of("held-2"))


async def _entry_lost(scene: Scene) -> None:
    await scene.do("LREM", scene.keys.processing("w1"), 1, await scene.entry("held-2"))


async def _claim_left_over(scene: Scene) -> None:
    """What a peer's recovery does: it takes the entry out and pushes it to the queue."""
    await scene.do("LPUSH", scene.keys.queue("low").list, await scene.entry("held-2"))
    await scene.do("LREM", scene.keys.processing("w1"), 1, await scene.entry("held-2"))


async def _entry_without_claim(scene: Scene) -> None:
    await scene.do("LPUSH", scene.keys.processing("w1"), go_job("foreign"))


async def _finished_without_index(scene: Scene) -> None:
    await scene.do("ZREMRANGEBYRANK", scene.keys.done, 0, 0)


async def _dead_without_index(scene: Scene) -> None:
    await scene.do("ZREMRANGEBYRANK", scene.keys.dead, 0, 0)


async def _index_without_finished(scene: Scene) -> None:
    (take,) = await scene.do("ZRANGE", scene.keys.done, 0, 0)
    await scene.do("HDEL", scene.keys.finished, take)


async def _dead_index_without_finished(scene: Scene) -> None:
    (take,) = await scene.do("ZRANGE", scene.keys.dead, 0, 0)
    await scene.do("HDEL", scene.keys.finished, take)


async def _dead_without_entry(scene: Scene) -> None:
    await scene.do("RPOP", scene.keys.dead_letter)


async def _dead_entry_without_index(scene: Scene) -> None:
    await scene.do("LPUSH", scene.keys.dead_letter, go_job("foreign"))


async def _where_left_over(scene: Scene) -> None:
    await scene.do("HSET", scene.keys.where, "nobody", "7-abc")


async def _where_missing(scene: Scene) -> None:
    await scene.do("HDEL", scene.keys.where, "held-2")


async def _id_left_over(scene: Scene) -> None:
    await scene.do("HSET", scene.keys.ids, "nobody", "0")


async def _lasting_id_left_over(scene: Scene) -> None:
    await scene.do("HSET", scene.keys.ids, "nobody", "1")


async def _progress_left_over(scene: Scene) -> None:
    await scene.do("HSET", scene.keys.progress, "nobody", "1 0.5 half")


async def _unique_left_over(scene: Scene) -> None:
    await scene.do("HSET", scene.keys.uniques, "a name", "0 nobody")


async def _unique_of_a_finished_job(scene: Scene) -> None:
    await scene.do("HSET", scene.keys.uniques, "a name", "0 done-1")


async def _remembered_for_ever(scene: Scene) -> None:
    await scene.do("ZREM", scene.keys.uniques_expiry, "name-3")


async def _group_without_end(scene: Scene) -> None:
    await scene.do("ZREM", scene.keys.groups_expiry, GROUP)


async def _group_without_callback(scene: Scene) -> None:
    await scene.do("HDEL", scene.keys.groups, f"c:{GROUP}")


async def _group_cannot_fire(scene: Scene) -> None:
    """What a peer's worker does with one of ours: it finishes the job, and knows of no group."""
    scene.clock.advance(2 * HOUR)
    await scene.do("HINCRBY", scene.keys.groups, f"s:{GROUP}", 1)


async def _wrong_count(scene: Scene) -> None:
    await scene.do("HINCRBY", scene.keys.counts, "dead:low", 3)


async def _count_lost(scene: Scene) -> None:
    await scene.do("HDEL", scene.keys.counts, "held:low")


async def _unreadable(scene: Scene) -> None:
    await scene.do("HSET", scene.keys.uniques, "name-2", b"\xff another program's")


PLANTED: dict[Plant, Kind] = {
    _token: Kind.TOKEN_BEHIND,
    _requests: Kind.REQUESTS_WITHOUT_END,
    _worker: Kind.WORKER_LEFT_OVER,
    _heartbeat: Kind.HEARTBEAT_WITHOUT_END,
    _unreadable: Kind.UNREADABLE,
    _queue: Kind.QUEUE_NOT_LISTED,
    _delayed: Kind.SCHEDULED_WITHOUT_NUMBER,
    _invalid_entry: Kind.INVALID_ENTRY,
    _index_without_claim: Kind.INDEX_WITHOUT_CLAIM,
    _claim_without_index: Kind.CLAIM_WITHOUT_INDEX,
    _entry_lost: Kind.ENTRY_LOST,
    _claim_left_over: Kind.CLAIM_LEFT_OVER,
    _entry_without_claim: Kind.ENTRY_WITHOUT_CLAIM,
    _finished_without_index: Kind.FINISHED_WITHOUT_INDEX,
    _dead_without_index: Kind.FINISHED_WITHOUT_INDEX,
    _index_without_finished: Kind.INDEX_WITHOUT_FINISHED,
    _dead_index_without_finished: Kind.INDEX_WITHOUT_FINISHED,
    _dead_without_entry: Kind.DEAD_WITHOUT_ENTRY,
    _dead_entry_without_index: Kind.DEAD_ENTRY_WITHOUT_INDEX,
    _where_left_over: Kind.WHERE_LEFT_OVER,
    _where_missing: Kind.WHERE_MISSING,
    _id_left_over: Kind.ID_LEFT_OVER,
    _lasting_id_left_over: Kind.ID_LEFT_OVER,
    _progress_left_over: Kind.PROGRESS_LEFT_OVER,
    _unique_left_over: Kind.UNIQUE_LEFT_OVER,
    _unique_of_a_finished_job: Kind.UNIQUE_LEFT_OVER,
    _remembered_for_ever: Kind.REMEMBERED_FOR_EVER,
    _group_without_end: Kind.REMEMBERED_FOR_EVER,
    _group_without_callback: Kind.GROUP_WITHOUT_CALLBACK,
    _group_cannot_fire: Kind.GROUP_CANNOT_FIRE,
    _wrong_count: Kind.WRONG_COUNT,
    _count_lost: Kind.WRONG_COUNT,
}
# What nobody can bring back: the other program removed the dead job, or its description is gone with it.
GONE_WITH_IT = {_dead_without_entry: {"dead-1"}, _index_without_finished: {"done-1"}}


def test_every_kind_of_damage_is_planted_by_a_test() -> None:
    assert set(PLANTED.values()) == set(Kind) - {Kind.WRONG_TYPE}  # test_redis_wrong_types.py plants that one


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
async def test_a_check_tells_each_kind_of_damage_from_all_others(scene: Scene, plant: Plant) -> None:
    await plant(scene)
    assert await scene.check() == [PLANTED[plant].shown]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
async def test_a_repair_leaves_no_damage_and_loses_no_job(scene: Scene, plant: Plant) -> None:
    await plant(scene)
    repaired = (await scene.repair())[PLANTED[plant].shown]
    assert (repaired.repaired, await scene.check()) == (repaired.count, [])
    assert await scene.missing() == GONE_WITH_IT.get(plant, set())


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
async def test_a_check_without_repair_changes_nothing(scene: Scene, plant: Plant) -> None:
    await plant(scene)
    await scene.check()
    assert await scene.check() == [PLANTED[plant].shown]


async def test_what_was_mended_meanwhile_is_left_alone(scene: Scene) -> None:
    await _entry_lost(scene)
    entry = await scene.entry("held-2")
    mended = InterleavedClient(scene.client, "fsck", lambda: scene.do("LPUSH", scene.keys.processing("w1"), entry))
    found = await RedisFsck(mended).check(repair=True, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert mended.happened
    assert found == ()


async def test_a_lost_entry_that_was_put_back_is_finished_by_its_holder(scene: Scene) -> None:
    await _entry_lost(scene)
    await scene.repair()
    assert await scene.jobs_client.complete(scene.holds["held-2"]) == ["done"]


async def test_a_job_that_a_peer_requeued_is_not_put_back_a_second_time(scene: Scene) -> None:
    await _claim_left_over(scene)
    assert list(await scene.repair()) == [Kind.CLAIM_LEFT_OVER.shown]
    assert [await scene.jobs_client.state("held-2"), await scene.jobs_client.complete(scene.holds["held-2"])] == [
        JobState.READY,
        ["conflict"],
    ]


async def test_a_hold_whose_job_a_peer_finished_is_dropped_and_the_job_is_not_put_back(scene: Scene) -> None:
    await scene.do("LPUSH", scene.keys.completed, await scene.entry("held-2"))
    await _entry_lost(scene)
    assert await scene.check() == [Kind.CLAIM_LEFT_OVER.shown]
    await scene.repair()
    assert await scene.jobs_client.state("held-2") is None


async def test_what_a_live_worker_of_another_program_holds_is_no_damage(scene: Scene) -> None:
    peer = GoPeer(scene.client)
    await peer.push(go_job("theirs"))
    while await peer.fetch() != go_job("theirs"):
        pass  # it takes whatever is served before its own
    assert await scene.check() == []


async def test_equal_bytes_that_were_pushed_twice_are_no_damage_while_both_are_held(scene: Scene) -> None:
    peer = GoPeer(scene.client)
    await peer.push(go_job("twice"), "other")
    await peer.push(go_job("twice"), "other")
    assert len(await scene.jobs_client.claim(queues=("other",))) == 2
    assert await scene.check() == []


async def test_the_callback_of_a_group_whose_member_is_gone_runs_after_the_repair(scene: Scene) -> None:
    await _group_cannot_fire(scene)
    await scene.repair()
    for claimed in await scene.jobs_client.claim():
        if claimed.job.id in MEMBERS:
            await scene.jobs_client.complete(claimed.claim)
    assert await scene.jobs_client.state("callback") is JobState.READY


async def test_a_group_whose_last_member_is_gone_goes_on_with_the_repair(bare: Scene) -> None:
    await bare.jobs_client.jobs.enqueue(
        [Job("m1", group="g"), Job("m2", group="g")], request="r", groups=[JobGroup("g", 2, Job("after"))]
    )
    await bare.jobs_client.complete(await bare.jobs_client.claim_one())
    await bare.do("DEL", bare.keys.queue("low").list)
    bare.clock.advance(2 * HOUR)
    await bare.repair()
    (callback,) = await bare.jobs_client.claim()
    assert (callback.job.id, callback.job.headers[GROUP_DEAD_HEADER]) == ("after", "1")


async def test_a_group_that_was_just_opened_may_wait_for_its_members(bare: Scene) -> None:
    await bare.jobs_client.jobs.enqueue([Job("m1", group="g")], request="r", groups=[JobGroup("g", 2, Job("after"))])
    assert await bare.check() == []


async def test_an_id_whose_queue_was_deleted_can_be_put_again_after_the_repair(bare: Scene) -> None:
    await bare.jobs_client.enqueue("lost")
    await bare.do("DEL", bare.keys.queue("low").list)
    await bare.repair()
    assert await bare.jobs_client.enqueue("lost") == [True]


async def test_an_id_that_lasts_is_remembered_for_its_time_when_its_job_is_gone(bare: Scene) -> None:
    await bare.jobs_client.enqueue(Job("lost", lasting=True))
    await bare.do("DEL", bare.keys.queue("low").list)
    await bare.repair()
    assert await bare.jobs_client.enqueue(Job("lost", lasting=True)) == [False]


async def test_what_moved_on_after_it_was_looked_at_is_innocent(scene: Scene) -> None:
    """Takes and holds that a look did not meet, and letters that are gone since, are asked for by the script."""
    judge = Judge(scene.client, scene.keys, repair=False, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    raw = await scene.entry("held-1")
    entry = FsckSuspect(Kind.ENTRY_WITHOUT_CLAIM, "", ("w1", raw), worker="w1", raw=raw)
    name = FsckSuspect(Kind.UNIQUE_LEFT_OVER, "", ("name-1", "held-1"))
    way = FsckSuspect(Kind.WHERE_LEFT_OVER, "", ("held-1", scene.claim_key_of("held-1")))
    letter = FsckSuspect(Kind.DEAD_ENTRY_WITHOUT_INDEX, "", (go_job("gone"), 1, 1))
    assert await judge.confirmed([entry, name, way, letter]) == []


async def test_more_jobs_than_one_step_may_count_are_counted_all_the_same(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wrasse.backends.redis.fsck_check._COUNTED_MAX", 0)
    await _wrong_count(scene)
    found = [await scene.check(), list(await scene.repair()), await scene.check()]
    assert found == [["wrong_count"], ["wrong_count"], []]


async def test_checks_and_repairs_beside_busy_workers_find_nothing_and_break_nothing(bare: Scene) -> None:
    """Under way at the same time: what is half seen must never be taken for damage."""
    ids = [f"j{n}" for n in range(300)]
    finished: set[str] = set()
    await bare.jobs_client.enqueue(*ids)

    async def work(worker: str) -> None:
        jobs_client = QueueClient(bare.store.jobs, worker)
        while len(finished) < len(ids):
            for claimed in await jobs_client.claim(limit=7):
                if claimed.attempt == 1 and claimed.job.id.endswith(("1", "4")):
                    await jobs_client.fail(claimed.claim)
                elif await jobs_client.complete(claimed.claim) == ["done"]:
                    finished.add(claimed.job.id)

    found: list[str] = []

    async def check() -> None:
        while len(finished) < len(ids):
            found.extend(
                each.kind for each in await bare.redis.fsck.check(repair=True, heartbeat_timeout=HEARTBEAT_TIMEOUT)
            )

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for worker in ("w1", "w2", "w3"):
            group.create_task(work(worker))
        group.create_task(check())
    assert (found, len(await bare.jobs_client.ids(JobState.DONE))) == ([], len(ids))


async def test_with_nothing_left_but_the_lists_no_job_is_lost(scene: Scene) -> None:
    """Only the keys of the design document stay: ready jobs run, held ones are adopted, then rescued."""
    lists = (scene.keys.queue("low").list, scene.keys.processing("w1"), scene.keys.dead_letter, scene.keys.completed)
    cursor = b"0"
    while True:
        cursor, names = await scene.do("SCAN", cursor, "MATCH", f"{scene.keys.root}:*", "COUNT", 1000)
        for name in names:
            if name.decode() not in lists:
                await scene.do("DEL", name)
        if cursor == b"0":
            break
    await scene.repair()
    scene.clock.advance(LONGER)
    sweep = StuckJobs(scene.store.jobs, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    page = await sweep.find(None, 10)
    await sweep.apply([sweep.decide(info, page.at) for info in page])
    ran = {claimed.job.id for claimed in await scene.jobs_client.claim()}
    assert ran >= {"held-1", "held-2", "waiting", "given", "named", *MEMBERS}
    assert set(await scene.jobs_client.ids(JobState.DEAD)) == {"dead-1", "dead-2"}
    assert await scene.check() == []
