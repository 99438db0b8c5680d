"""Strays: jobs that a worker holds and no hold names. Who is left alone, who is adopted, where the job then goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from backends.redis.interleaved import InterleavedClient
from backends.redis.peer import GoPeer, go_job, go_recovery
from conformance.desk import HEARTBEAT_TIMEOUT, LONGER, Desk
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


class Yard:
    """A job queue that another program works on too."""

    def __init__(self, store: Store) -> None:
        assert isinstance(store.backend, Redis)
        self.store, self.client, self.strays = store, store.backend.client, store.backend.strays
        self.desk, self.peer = Desk(store.jobs), GoPeer(store.backend.client)
        self.sweep = StuckJobs(store.jobs, heartbeat_timeout=HEARTBEAT_TIMEOUT)

    async def left(self, raw: bytes, worker: str = "dead-1") -> GoPeer:
        """A worker of the other program that died with this job in its hands."""
        peer = GoPeer(self.client, worker)
        await peer.push(raw)
        await peer.fetch()
        await peer.die()
        return peer

    async def look(self, *, dry: bool = False) -> StrayScan:
        """A whole round."""
        cursor, seen, adopted, holders = "0", 0, 0, 0
        while True:
            looked = await self.strays.look(cursor, 1_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=dry)
            seen, adopted, holders = seen + looked.seen, adopted + looked.adopted, holders + looked.holders
            cursor = looked.cursor
            if looked.ended:
                return StrayScan(holders, seen, adopted, cursor, ended=True)

    async def rescue(self) -> list[Outcome]:
        """What the sweep does about those that are overdue."""
        page = await self.sweep.find(None, 100)
        actions = [verdict for suspect in page if isinstance(verdict := self.sweep.decide(suspect, page.at), Action)]
        return list(await self.sweep.apply(actions))

    async def adopt_and_rescue(self) -> list[Outcome]:
        await self.look()
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
async def yard(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Yard]:
    store = Store(request.param, tmp_path)
    await store.open()
    yield Yard(store)
    await store.close()


async def test_a_job_whose_worker_has_no_heartbeat_is_rescued_one_silence_later(yard: Yard) -> None:
    peer = await yard.left(go_job("a"))
    looked = await yard.look()
    early = await yard.rescue()
    await yard.store.pass_time(LONGER)
    late = await yard.rescue()
    info = await yard.desk.state("a")
    assert ((looked.seen, looked.adopted), early, late) == ((1, 1), [], [Outcome.DONE])
    assert (info.state, info.queue, info.rescues, await peer.holds()) == (JobState.READY, "low", 1, [])


async def test_an_adopted_job_is_a_held_job_like_any_other(yard: Yard) -> None:
    await yard.left(go_job("a"), worker="dead-1")
    await yard.look()
    info = await yard.desk.state("a")
    assert (info.state, info.worker, info.reason, (await yard.desk.count()).running) == (
        JobState.RUNNING,
        "dead-1",
        None,
        1,
    )
    assert info.deadline == info.heartbeat_at + HEARTBEAT_TIMEOUT


async def test_what_a_live_worker_of_another_program_holds_is_left_alone(yard: Yard) -> None:
    await yard.peer.push(go_job("a"))
    await yard.peer.fetch()
    looked = await yard.look()
    assert ((looked.seen, looked.adopted), await yard.peer.holds()) == ((0, 0), [go_job("a")])


async def test_a_heartbeat_that_comes_back_keeps_the_job(yard: Yard) -> None:
    peer = await yard.left(go_job("a"))
    await yard.look()
    await yard.store.pass_time(LONGER)
    await yard.client.ask("SET", peer.heartbeat, "alive", "EX", 30)
    assert (await yard.rescue(), await peer.holds()) == ([Outcome.CONFLICT], [go_job("a")])
    assert ((await yard.desk.count()).running, await yard.desk.ids(JobState.READY)) == (0, [])


async def test_a_job_that_its_worker_finished_after_all_is_not_pushed_again(yard: Yard) -> None:
    peer = await yard.left(go_job("a"))
    await yard.look()
    await peer.finish(go_job("a"))
    await yard.store.pass_time(LONGER)
    count = await yard.desk.count()
    assert (await yard.rescue(), count.ready) == ([Outcome.CONFLICT], 0)
    assert (await yard.desk.count()).running == 0


async def test_a_job_is_adopted_once_however_often_it_is_seen(yard: Yard) -> None:
    await yard.left(go_job("a"))
    both = await asyncio.gather(yard.look(), yard.look())
    again = await yard.look()
    assert (sum(looked.adopted for looked in both), again.adopted, (await yard.desk.count()).running) == (1, 0, 1)


async def test_our_own_holds_are_never_taken_for_strays(yard: Yard) -> None:
    await yard.peer.push(go_job("a"))
    await yard.peer.push(go_job("a", retries=1))  # the same id twice
    await yard.desk.enqueue("b")
    claims = [claimed.claim for claimed in await yard.desk.claim()]
    await yard.desk.heartbeat(*claims)
    looked = await yard.look()
    await yard.client.ask("DEL", GoPeer(yard.client, "w1").heartbeat)
    assert (len(claims), looked.seen, looked.holders, (await yard.desk.count()).running) == (3, 0, 1, 3)


async def test_what_a_fault_left_under_a_live_worker_of_ours_is_adopted(yard: Yard) -> None:
    await yard.desk.heartbeat(await yard.desk.held("a"))
    await yard.client.ask("LPUSH", yard.peer.keys.processing("w1"), go_job("left"))
    looked = await yard.look()
    await yard.store.pass_time(LONGER)
    await yard.desk.heartbeat((await yard.desk.state("a")).claim)
    outcomes = await yard.rescue()
    assert (looked.adopted, outcomes, await yard.desk.place("left")) == (1, [Outcome.DONE], JobState.READY)
    assert await yard.desk.place("a") is JobState.RUNNING


@pytest.mark.parametrize(
    ("raw", "queue"),
    [
        (go_job("a", more=',"origin_queue":"other"'), "other"),
        (go_job("a", priority="high"), "high"),
        (go_job("a", priority="no such"), "low"),
        (b'{"id":"a"}', "low"),
    ],
)
async def test_a_job_goes_back_to_where_it_came_from(yard: Yard, raw: bytes, queue: str) -> None:
    for name in ("high", "other"):
        await yard.client.ask("SADD", yard.peer.keys.queues, name)
    await yard.left(raw)
    outcomes = await yard.adopt_and_rescue()
    info = await yard.desk.state("a")
    assert (outcomes, info.state, info.queue) == ([Outcome.DONE], JobState.READY, queue)


async def test_a_job_from_a_queue_that_nobody_knows_is_buried_as_unroutable(yard: Yard) -> None:
    await yard.left(go_job("a", more=',"origin_queue":"no such"'))
    outcomes = await yard.adopt_and_rescue()
    info = await yard.desk.state("a")
    assert (outcomes, info.state, info.reason) == ([Outcome.DONE], JobState.DEAD, Reason.UNROUTABLE)


@pytest.mark.parametrize("raw", [b"null", b"[]", b"\xff\xfe", b'{"id":{}}'])
async def test_bytes_that_are_no_job_are_buried_as_they_are(yard: Yard, raw: bytes) -> None:
    await yard.left(raw)
    outcomes = await yard.adopt_and_rescue()
    (dead,) = await yard.store.jobs.page(JobState.DEAD, JobFilter(), None, 10)
    letters = await yard.client.ask("LRANGE", yard.peer.keys.dead_letter, 0, -1)
    assert (outcomes, dead.reason, letters) == ([Outcome.DONE], Reason.INVALID_PAYLOAD, [raw])


async def test_a_job_that_kills_every_worker_is_buried_in_the_end(yard: Yard) -> None:
    await yard.peer.push(go_job("a"))
    for n in range(4):
        peer = GoPeer(yard.client, f"dead-{n}")
        await peer.fetch()
        await peer.die()
        await yard.adopt_and_rescue()
    info = await yard.desk.state("a")
    assert (info.state, info.reason, info.rescues) == (JobState.DEAD, Reason.WORKER_DIED, 4)


async def test_two_rescuers_and_the_owner_make_one_copy(yard: Yard) -> None:
    other = await yard.store.another()
    try:
        for n in range(20):
            raw = go_job(f"job-{n}")
            peer = await yard.left(raw, worker=f"dead-{n}")
            await yard.look()
            await yard.store.pass_time(LONGER)
            requeue = Requeue((await yard.desk.state(f"job-{n}")).claim, Budget.RESCUES, Reason.WORKER_DIED)
            first, second, removed = await asyncio.gather(
                yard.store.jobs.move([requeue]),
                other.jobs.move([requeue]),
                yard.client.ask("LREM", peer.processing, 1, raw),
            )
            assert [*first, *second].count(Outcome.DONE) + removed == 1
            copies = await yard.client.ask("LLEN", yard.peer.keys.queue("low").list)
            assert copies == [*first, *second].count(Outcome.DONE)
            await yard.desk.claim()
    finally:
        await other.close()


async def test_a_name_of_another_kind_is_no_trouble(yard: Yard) -> None:
    await yard.client.ask("SET", yard.peer.keys.processing("text"), "no list")
    await yard.client.ask("SADD", yard.peer.keys.processing("set"), "no list")
    await yard.left(go_job("a"))
    looked = await yard.look()
    assert (looked.holders, looked.adopted) == (1, 1)


async def test_nothing_is_left_of_the_list_of_a_dead_worker(yard: Yard) -> None:
    peer = await yard.left(go_job("a"))
    await yard.adopt_and_rescue()
    assert await yard.client.ask("EXISTS", peer.processing, peer.heartbeat) == 0


async def test_a_dry_look_sees_the_same_and_changes_nothing(yard: Yard) -> None:
    await yard.left(go_job("a"))
    before = await yard.everything()
    dry = await yard.look(dry=True)
    after = await yard.everything()
    wet = await yard.look()
    assert (dry.seen, dry.adopted, after) == (wet.seen, 0, before)


async def test_a_server_that_does_not_answer_moves_nothing(yard: Yard) -> None:
    peer = await yard.left(go_job("a"))
    other = await yard.store.another()
    assert isinstance(other, Redis)
    await other.client.close()
    with pytest.raises(StoreUnavailable):
        await other.strays.look(None, 100, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    assert (await peer.holds(), (await yard.desk.count()).running) == ([go_job("a")], 0)


async def test_the_next_search_goes_on_where_the_last_one_stopped(yard: Yard) -> None:
    for n in range(60):
        await yard.client.ask("LPUSH", yard.peer.keys.processing(f"dead-{n}"), go_job(f"job-{n}"))
    looks, adopted = 0, 0
    while adopted < 60 and looks < MANY:
        other = await yard.store.another() if looks % 50 == 0 else None  # as after a restart
        strays = yard.strays if other is None else other.strays
        adopted += (await strays.look(None, 10, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)).adopted
        looks += 1
        if other is not None:
            await other.close()
    assert adopted == 60


async def test_a_look_at_nothing_is_refused(yard: Yard) -> None:
    with pytest.raises(UsageError):
        await yard.strays.look(None, 0, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)


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
        alive = await redis.strays.look("0", 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
        await peer.die()
        silent = await redis.strays.look("0", 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
        info = await Desk(redis.jobs).state("a")
    finally:
        await forget(redis, root)
        await redis.close()
    names = (peer.processing, peer.heartbeat)
    assert names == (f"{root}[1]*/odd:id/1/at work", f"{root} alive odd:id/1")
    assert (alive.seen, silent.adopted, info.worker) == (0, 1, "odd:id/1")


async def test_a_worker_that_was_seen_once_is_looked_at_first(yard: Yard) -> None:
    await yard.peer.push(go_job("a"))
    await yard.peer.fetch()
    await yard.look()
    await yard.peer.die()
    noise = [f"{yard.client.options.root}:noise:{n}" for n in range(500)]
    await yard.client.ask("MSET", yard.peer.keys.strays, "0", *(word for name in noise for word in (name, "")))
    looked = await yard.strays.look(
        None, 1, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False
    )  # far too few names to come across it
    assert (looked.ended, looked.adopted) == (False, 1)


async def test_what_a_silent_worker_of_ours_holds_is_not_adopted_beside_its_hold(yard: Yard) -> None:
    await yard.desk.held("a")
    await yard.client.ask("DEL", yard.peer.keys.heartbeat("w1"))
    looked = await yard.look()
    assert (looked.seen, (await yard.desk.count()).running) == (0, 1)


async def test_a_worker_that_comes_to_life_during_a_look_keeps_its_job(yard: Yard) -> None:
    peer = await yard.left(go_job("a"))
    between = InterleavedClient(yard.client, "adopt", lambda: yard.client.ask("SET", peer.heartbeat, "alive", "EX", 30))
    looked = await RedisStrays(between).look("0", 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    assert (between.happened, looked.seen, looked.adopted) == (True, 1, 0)


async def test_a_job_that_is_finished_during_a_look_is_not_adopted(yard: Yard) -> None:
    peer = await yard.left(go_job("a"))
    between = InterleavedClient(yard.client, "adopt", lambda: peer.finish(go_job("a")))
    looked = await RedisStrays(between).look("0", 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    assert (between.happened, looked.adopted, (await yard.desk.count()).running) == (True, 0, 0)


async def test_a_worker_with_nothing_in_its_hands_is_not_counted_among_the_holders(yard: Yard) -> None:
    await yard.peer.push(go_job("a"))
    await yard.peer.fetch()
    busy = await yard.strays.look(None, 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    await yard.peer.finish(go_job("a"))
    idle = await yard.strays.look(None, 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    assert (busy.holders, idle.holders) == (1, 0)


async def test_the_other_programs_own_recovery_takes_nothing_from_a_live_worker_of_ours(yard: Yard) -> None:
    await yard.desk.enqueue(*"abc")
    for claimed in await yard.desk.claim(limit=2):
        assert await go_recovery(yard.client) == 0
        await yard.desk.heartbeat(claimed.claim)
        assert await go_recovery(yard.client) == 0
        assert await yard.desk.finish(claimed.claim) == [Outcome.DONE]
    assert (await yard.desk.ids(JobState.READY), await yard.desk.place("a")) == (["c"], JobState.DONE)


async def test_what_the_other_programs_recovery_gave_back_is_not_given_back_again(yard: Yard) -> None:
    await yard.left(go_job("theirs"))
    await yard.desk.enqueue("ours")
    await yard.desk.claim()
    await yard.look()
    await yard.client.ask("DEL", yard.peer.keys.heartbeat("w1"))
    moved = await go_recovery(yard.client)
    await yard.store.pass_time(LONGER)
    assert (moved, await yard.rescue()) == (2, [Outcome.CONFLICT, Outcome.CONFLICT])
    count = await yard.desk.count()
    assert (sorted(await yard.desk.ids(JobState.READY)), count.ready, count.running) == (["ours", "theirs"], 2, 0)
