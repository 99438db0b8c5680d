"""JobQueue under faults: lost replies, crashes between any two steps, restarts and races.

Whatever goes wrong, a job is in exactly one state, asking again changes nothing, and of two who race one wins.
"""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest

from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, QueueClient, fresh
from conformance.stores import Store
from faults import CRASH, LOST_REPLY, Crashed, FaultyJobs, Network, Script
from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import Cancel, Claim, Claimed, Complete, Job, JobQueue, JobState, RequeueDead
from wrasse.ports.outcome import Outcome


@pytest.fixture
def client(store: Store) -> QueueClient:
    return QueueClient(store.jobs)


def behind(jobs: JobQueue, script: Script) -> FaultyJobs:
    return FaultyJobs(jobs, Network(script))


async def claim_jobs(jobs: JobQueue, request: str) -> Claimed:
    return await jobs.claim(["low"], 10, worker="w1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=request)


async def everywhere(client: QueueClient) -> list[str]:
    """Every job there is, once for each state it is in."""
    return sorted([id for state in JobState for id in await client.ids(state)])


# A reply lost after the change was made


async def test_an_enqueue_retried_after_a_lost_reply_gives_the_first_answer(client: QueueClient) -> None:
    await client.enqueue("known")
    faulty = behind(client.jobs, Script({0: LOST_REPLY}))
    batch, request = [Job("a"), Job("known")], fresh()
    with pytest.raises(StoreUnavailable):
        await faulty.enqueue(batch, request=request)
    again = await faulty.enqueue(batch, request=request)
    assert ([put.new for put in again], await everywhere(client)) == ([True, False], ["a", "known"])


async def test_a_retried_enqueue_does_not_bring_back_a_finished_job(client: QueueClient) -> None:
    request = fresh()
    await client.jobs.enqueue([Job("a")], request=request)
    await client.complete(await client.claim_one())
    again = await client.jobs.enqueue([Job("a")], request=request)
    assert ([put.new for put in again], await client.state("a")) == ([True], JobState.DONE)


async def test_a_claim_retried_after_a_lost_reply_gives_the_same_jobs(client: QueueClient) -> None:
    await client.enqueue("a", "b")
    faulty = behind(client.jobs, Script({0: LOST_REPLY}))
    request = fresh()
    with pytest.raises(StoreUnavailable):
        await claim_jobs(faulty, request)
    await client.enqueue("c")
    again, third = await claim_jobs(faulty, request), await claim_jobs(faulty, request)
    assert ([each.job.id for each in again.jobs], third.jobs) == (["a", "b"], again.jobs)
    assert (await client.info("a")).attempts == 1


async def test_a_retried_claim_gives_only_what_is_still_running(client: QueueClient, store: Store) -> None:
    await client.enqueue("a", "b", "c")
    request = fresh()
    first = await claim_jobs(client.jobs, request)
    a, b, _ = [each.claim for each in first.jobs]
    await client.complete(a)
    await store.pass_time(LONGER)
    await client.rescue(b)
    again = await claim_jobs(client.jobs, request)
    assert [each.claim for each in again.jobs] == [first.jobs[2].claim]


async def test_a_settle_retried_after_a_lost_reply_gives_the_first_answer(client: QueueClient) -> None:
    claim = await client.claimed("a")
    settlements = [Complete(claim, enqueues=(Job("next"),)), Complete(Claim("b", 1, ""))]
    faulty = behind(client.jobs, Script({0: LOST_REPLY}))
    request = fresh()
    with pytest.raises(StoreUnavailable):
        await faulty.settle(settlements, request=request)
    again = await faulty.settle(settlements, request=request)
    assert (list(again), await everywhere(client)) == ([Outcome.DONE, Outcome.CONFLICT], ["a", "next"])


async def test_a_settle_asked_again_does_not_touch_the_next_attempt(client: QueueClient) -> None:
    claim = await client.claimed("a")
    request = fresh()
    await client.jobs.settle([Complete(claim)], request=request)
    await client.dead_letter(await client.claimed("b"))
    again = await client.jobs.settle([Complete(claim)], request=request)
    assert (list(again), await client.ids(JobState.DONE), await client.ids(JobState.DEAD)) == (
        [Outcome.DONE],
        ["a"],
        ["b"],
    )


async def test_a_rescue_retried_after_a_lost_reply_rescues_once(client: QueueClient, store: Store) -> None:
    claim = await client.claimed("a")
    await store.pass_time(LONGER)
    faulty = QueueClient(behind(client.jobs, Script({0: LOST_REPLY})))
    with pytest.raises(StoreUnavailable):
        await faulty.rescue(claim)
    assert (await faulty.rescue(claim), (await client.info("a")).rescues) == ([Outcome.CONFLICT], 1)


async def test_a_request_is_remembered_across_a_restart(store: Store) -> None:
    request = fresh()
    first = await store.jobs.enqueue([Job("a")], request=request)
    claimed = await claim_jobs(store.jobs, request)
    outcomes = await store.jobs.settle([Complete(claimed.jobs[0].claim)], request=request)
    await store.reopen()
    again = await store.jobs.enqueue([Job("a")], request=request)
    settled = await store.jobs.settle([Complete(claimed.jobs[0].claim)], request=request)
    assert (list(again), list(settled)) == (list(first), list(outcomes))


async def test_one_request_id_may_name_an_enqueue_a_claim_and_a_settle(client: QueueClient) -> None:
    await client.jobs.enqueue([Job("a")], request="the same")
    claimed = await claim_jobs(client.jobs, "the same")
    outcomes = await client.jobs.settle([Complete(each.claim) for each in claimed.jobs], request="the same")
    assert list(outcomes) == [Outcome.DONE]


# A crash between any two steps


@pytest.mark.parametrize("step", range(5))
async def test_a_job_survives_a_crash_of_its_worker_before_any_step(
    client: QueueClient, store: Store, step: int
) -> None:
    faulty = QueueClient(behind(client.jobs, Script({step: CRASH})), worker="mortal")

    async def live() -> None:
        await faulty.enqueue("a")
        (claimed,) = await faulty.claim()
        await faulty.heartbeat(claimed.claim)
        await faulty.fail(claimed.claim)
        (claimed,) = await faulty.claim()

    if step == 0:
        await client.enqueue("a")
    with pytest.raises(Crashed):
        await live()
    await store.pass_time(LONGER)
    for suspect in await client.jobs.overdue(None, 10):
        await client.rescue(suspect.claim)
    assert (await everywhere(client), await client.complete(await client.claim_one())) == (["a"], [Outcome.DONE])


async def test_everything_is_still_there_after_a_restart(store: Store) -> None:
    client = QueueClient(store.jobs)
    await client.complete(await client.claimed("done"))
    await client.dead_letter(await client.claimed("dead"))
    await client.claimed("held")
    await client.enqueue(Job("ready", payload=bytes(range(256))), Job("delayed", delay=LONGER))
    await client.heartbeat()
    before = [await client.record(id) for id in ("done", "dead", "held", "ready", "delayed")]
    counts = await client.jobs.counts()
    await store.reopen()
    client = QueueClient(store.jobs)
    after = [await client.record(id) for id in ("done", "dead", "held", "ready", "delayed")]
    assert (after, (await client.jobs.counts()).workers) == (before, counts.workers)
    assert [each for each in (await client.jobs.counts()).queues if each.ready] == [
        each for each in counts.queues if each.ready
    ]


async def test_a_claim_outlives_a_restart(store: Store) -> None:
    claim = await QueueClient(store.jobs).claimed("a")
    await store.reopen()
    client = QueueClient(store.jobs)
    assert (await client.heartbeat(claim), await client.complete(claim)) == ([True], [Outcome.DONE])


# Races


async def test_of_many_takers_each_job_has_one(store: Store) -> None:
    other = await store.another()
    try:
        desks = [QueueClient(jobs, worker=f"w{n}") for n in range(10) for jobs in (store.jobs, other.jobs)]
        await desks[0].enqueue(*(str(n) for n in range(100)))
        rounds = await asyncio.gather(*(client.claim(limit=7) for client in desks for _ in range(2)))
        assert sorted(int(claimed.job.id) for claimed in chain.from_iterable(rounds)) == list(range(100))
    finally:
        await other.close()


async def test_of_fifty_producers_of_one_id_one_wins(store: Store) -> None:
    other = await store.another()
    try:
        desks = [QueueClient(jobs) for _ in range(25) for jobs in (store.jobs, other.jobs)]
        answers = await asyncio.gather(*(client.enqueue(Job("a", payload=b"%d" % n)) for n, client in enumerate(desks)))
        (winner,) = [n for n, answer in enumerate(answers) if answer == [True]]
        assert (await desks[0].record("a")).job.payload == b"%d" % winner
    finally:
        await other.close()


async def test_of_a_rescue_and_a_finish_that_race_one_wins(store: Store) -> None:
    other = await store.another()
    try:
        client, rescuer = QueueClient(store.jobs), QueueClient(other.jobs)
        await client.enqueue(*(str(n) for n in range(20)))
        claims = [claimed.claim for claimed in await client.claim()]
        await store.pass_time(LONGER)
        racers = [side for claim in claims for side in (client.complete(claim), rescuer.rescue(claim))]
        outcomes = await asyncio.gather(*racers)
        pairs = [set(first + second) for first, second in zip(outcomes[::2], outcomes[1::2], strict=True)]
        low = await client.count()
        assert (pairs, low.done + low.ready, low.running) == ([{Outcome.DONE, Outcome.CONFLICT}] * 20, 20, 0)
    finally:
        await other.close()


async def test_of_two_rescuers_that_race_one_wins(store: Store) -> None:
    other = await store.another()
    try:
        client, rescuer = QueueClient(store.jobs), QueueClient(other.jobs)
        await client.enqueue(*(str(n) for n in range(20)))
        claims = [claimed.claim for claimed in await client.claim()]
        await store.pass_time(LONGER)
        await asyncio.gather(*(side.rescue(claim) for claim in claims for side in (client, rescuer)))
        assert [(await client.info(str(n))).rescues for n in range(20)] == [1] * 20
    finally:
        await other.close()


async def test_of_a_cancel_and_a_revival_that_race_the_job_is_in_one_place(store: Store) -> None:
    client = QueueClient(store.jobs)
    await client.dead_letter(await client.claimed("a"))
    dead = (await client.info("a")).claim
    await asyncio.gather(client.move(RequeueDead(dead)), client.move(Cancel("a")), client.move(RequeueDead(dead)))
    assert await everywhere(client) == ["a"]
