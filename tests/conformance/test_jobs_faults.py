"""JobQueue under faults: lost replies, crashes between any two steps, restarts and races.

Whatever goes wrong, a job is in exactly one state, asking again changes nothing, and of two who race one wins.
"""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest

from conformance.desk import HEARTBEAT_TIMEOUT, LONGER, Desk, fresh
from conformance.stores import Store
from faults import CRASH, LOST_REPLY, Crashed, FaultyJobs, Network, Script
from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import Cancel, Claim, Claimed, Complete, Job, JobQueue, JobState, RequeueDead
from wrasse.ports.outcome import Outcome


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store.jobs)


def behind(jobs: JobQueue, script: Script) -> FaultyJobs:
    return FaultyJobs(jobs, Network(script))


async def take(jobs: JobQueue, request: str) -> Claimed:
    return await jobs.claim(["low"], 10, worker="w1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=request)


async def everywhere(desk: Desk) -> list[str]:
    """Every job there is, once for each state it is in."""
    return sorted([id for state in JobState for id in await desk.ids(state)])


# A reply lost after the change was made


async def test_an_enqueue_retried_after_a_lost_reply_gives_the_first_answer(desk: Desk) -> None:
    await desk.enqueue("known")
    faulty = behind(desk.jobs, Script({0: LOST_REPLY}))
    batch, request = [Job("a"), Job("known")], fresh()
    with pytest.raises(StoreUnavailable):
        await faulty.enqueue(batch, request=request)
    again = await faulty.enqueue(batch, request=request)
    assert ([put.new for put in again], await everywhere(desk)) == ([True, False], ["a", "known"])


async def test_a_retried_enqueue_does_not_bring_back_a_finished_job(desk: Desk) -> None:
    request = fresh()
    await desk.jobs.enqueue([Job("a")], request=request)
    await desk.finish(await desk.take_one())
    again = await desk.jobs.enqueue([Job("a")], request=request)
    assert ([put.new for put in again], await desk.place("a")) == ([True], JobState.DONE)


async def test_a_claim_retried_after_a_lost_reply_gives_the_same_jobs(desk: Desk) -> None:
    await desk.enqueue("a", "b")
    faulty = behind(desk.jobs, Script({0: LOST_REPLY}))
    request = fresh()
    with pytest.raises(StoreUnavailable):
        await take(faulty, request)
    await desk.enqueue("c")
    again, third = await take(faulty, request), await take(faulty, request)
    assert ([each.job.id for each in again.jobs], third.jobs) == (["a", "b"], again.jobs)
    assert (await desk.state("a")).attempts == 1


async def test_a_retried_claim_gives_only_what_is_still_running(desk: Desk, store: Store) -> None:
    await desk.enqueue("a", "b", "c")
    request = fresh()
    first = await take(desk.jobs, request)
    a, b, _ = [each.claim for each in first.jobs]
    await desk.finish(a)
    await store.pass_time(LONGER)
    await desk.rescue(b)
    again = await take(desk.jobs, request)
    assert [each.claim for each in again.jobs] == [first.jobs[2].claim]


async def test_a_settle_retried_after_a_lost_reply_gives_the_first_answer(desk: Desk) -> None:
    claim = await desk.held("a")
    settlements = [Complete(claim, enqueues=(Job("next"),)), Complete(Claim("b", 1, ""))]
    faulty = behind(desk.jobs, Script({0: LOST_REPLY}))
    request = fresh()
    with pytest.raises(StoreUnavailable):
        await faulty.settle(settlements, request=request)
    again = await faulty.settle(settlements, request=request)
    assert (list(again), await everywhere(desk)) == ([Outcome.DONE, Outcome.CONFLICT], ["a", "next"])


async def test_a_settle_asked_again_does_not_touch_the_next_attempt(desk: Desk) -> None:
    claim = await desk.held("a")
    request = fresh()
    await desk.jobs.settle([Complete(claim)], request=request)
    await desk.bury(await desk.held("b"))
    again = await desk.jobs.settle([Complete(claim)], request=request)
    assert (list(again), await desk.ids(JobState.DONE), await desk.ids(JobState.DEAD)) == ([Outcome.DONE], ["a"], ["b"])


async def test_a_rescue_retried_after_a_lost_reply_rescues_once(desk: Desk, store: Store) -> None:
    claim = await desk.held("a")
    await store.pass_time(LONGER)
    faulty = Desk(behind(desk.jobs, Script({0: LOST_REPLY})))
    with pytest.raises(StoreUnavailable):
        await faulty.rescue(claim)
    assert (await faulty.rescue(claim), (await desk.state("a")).rescues) == ([Outcome.CONFLICT], 1)


async def test_a_request_is_remembered_across_a_restart(store: Store) -> None:
    request = fresh()
    first = await store.jobs.enqueue([Job("a")], request=request)
    claimed = await take(store.jobs, request)
    outcomes = await store.jobs.settle([Complete(claimed.jobs[0].claim)], request=request)
    await store.reopen()
    again = await store.jobs.enqueue([Job("a")], request=request)
    settled = await store.jobs.settle([Complete(claimed.jobs[0].claim)], request=request)
    assert (list(again), list(settled)) == (list(first), list(outcomes))


async def test_one_request_id_may_name_an_enqueue_a_claim_and_a_settle(desk: Desk) -> None:
    await desk.jobs.enqueue([Job("a")], request="the same")
    claimed = await take(desk.jobs, "the same")
    outcomes = await desk.jobs.settle([Complete(each.claim) for each in claimed.jobs], request="the same")
    assert list(outcomes) == [Outcome.DONE]


# A crash between any two steps


@pytest.mark.parametrize("step", range(5))
async def test_a_job_survives_a_crash_of_its_worker_before_any_step(desk: Desk, store: Store, step: int) -> None:
    faulty = Desk(behind(desk.jobs, Script({step: CRASH})), worker="mortal")

    async def live() -> None:
        await faulty.enqueue("a")
        (claimed,) = await faulty.claim()
        await faulty.heartbeat(claimed.claim)
        await faulty.fail(claimed.claim)
        (claimed,) = await faulty.claim()

    if step == 0:
        await desk.enqueue("a")
    with pytest.raises(Crashed):
        await live()
    await store.pass_time(LONGER)
    for suspect in await desk.jobs.overdue(None, 10):
        await desk.rescue(suspect.claim)
    assert (await everywhere(desk), await desk.finish(await desk.take_one())) == (["a"], [Outcome.DONE])


async def test_everything_is_still_there_after_a_restart(store: Store) -> None:
    desk = Desk(store.jobs)
    await desk.finish(await desk.held("done"))
    await desk.bury(await desk.held("dead"))
    await desk.held("held")
    await desk.enqueue(Job("ready", payload=bytes(range(256))), Job("delayed", delay=LONGER))
    await desk.heartbeat()
    before = [await desk.record(id) for id in ("done", "dead", "held", "ready", "delayed")]
    counts = await desk.jobs.counts()
    await store.reopen()
    desk = Desk(store.jobs)
    after = [await desk.record(id) for id in ("done", "dead", "held", "ready", "delayed")]
    assert (after, (await desk.jobs.counts()).workers) == (before, counts.workers)
    assert [each for each in (await desk.jobs.counts()).queues if each.ready] == [
        each for each in counts.queues if each.ready
    ]


async def test_a_claim_outlives_a_restart(store: Store) -> None:
    claim = await Desk(store.jobs).held("a")
    await store.reopen()
    desk = Desk(store.jobs)
    assert (await desk.heartbeat(claim), await desk.finish(claim)) == ([True], [Outcome.DONE])


# Races


async def test_of_many_takers_each_job_has_one(store: Store) -> None:
    other = await store.another()
    try:
        desks = [Desk(jobs, worker=f"w{n}") for n in range(10) for jobs in (store.jobs, other.jobs)]
        await desks[0].enqueue(*(str(n) for n in range(100)))
        rounds = await asyncio.gather(*(desk.claim(limit=7) for desk in desks for _ in range(2)))
        assert sorted(int(claimed.job.id) for claimed in chain.from_iterable(rounds)) == list(range(100))
    finally:
        await other.close()


async def test_of_fifty_producers_of_one_id_one_wins(store: Store) -> None:
    other = await store.another()
    try:
        desks = [Desk(jobs) for _ in range(25) for jobs in (store.jobs, other.jobs)]
        answers = await asyncio.gather(*(desk.enqueue(Job("a", payload=b"%d" % n)) for n, desk in enumerate(desks)))
        (winner,) = [n for n, answer in enumerate(answers) if answer == [True]]
        assert (await desks[0].record("a")).job.payload == b"%d" % winner
    finally:
        await other.close()


async def test_of_a_rescue_and_a_finish_that_race_one_wins(store: Store) -> None:
    other = await store.another()
    try:
        desk, rescuer = Desk(store.jobs), Desk(other.jobs)
        await desk.enqueue(*(str(n) for n in range(20)))
        claims = [claimed.claim for claimed in await desk.claim()]
        await store.pass_time(LONGER)
        racers = [side for claim in claims for side in (desk.finish(claim), rescuer.rescue(claim))]
        outcomes = await asyncio.gather(*racers)
        pairs = [set(first + second) for first, second in zip(outcomes[::2], outcomes[1::2], strict=True)]
        low = await desk.count()
        assert (pairs, low.done + low.ready, low.running) == ([{Outcome.DONE, Outcome.CONFLICT}] * 20, 20, 0)
    finally:
        await other.close()


async def test_of_two_rescuers_that_race_one_wins(store: Store) -> None:
    other = await store.another()
    try:
        desk, rescuer = Desk(store.jobs), Desk(other.jobs)
        await desk.enqueue(*(str(n) for n in range(20)))
        claims = [claimed.claim for claimed in await desk.claim()]
        await store.pass_time(LONGER)
        await asyncio.gather(*(side.rescue(claim) for claim in claims for side in (desk, rescuer)))
        assert [(await desk.state(str(n))).rescues for n in range(20)] == [1] * 20
    finally:
        await other.close()


async def test_of_a_cancel_and_a_revival_that_race_the_job_is_in_one_place(store: Store) -> None:
    desk = Desk(store.jobs)
    await desk.bury(await desk.held("a"))
    dead = (await desk.state("a")).claim
    await asyncio.gather(desk.move(RequeueDead(dead)), desk.move(Cancel("a")), desk.move(RequeueDead(dead)))
    assert await everywhere(desk) == ["a"]
