"""JobQueue: listings, numbers, workers and waiting. What can be seen of a queue, and when a worker wakes up."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, QueueClient
from conformance.stores import Store
from wrasse.ports.jobs import (
    Budget,
    Cancel,
    Complete,
    DeadLetterJob,
    Delete,
    Job,
    JobFilter,
    JobState,
    Reason,
    Requeue,
    WorkerInfo,
)

STEP = timedelta(milliseconds=20)
LONG = timedelta(seconds=30)
SOON = 10  # seconds of real time in which a woken taker must have its job; only ever reached by a failure


@pytest.fixture
def client(store: Store) -> QueueClient:
    return QueueClient(store.jobs)


async def finished(client: QueueClient, store: Store, *jobs: Job, reason: Reason | None = None) -> None:
    """Each job done, or dead for this reason, one after another."""
    for job in jobs:
        await client.enqueue(job)
        (claimed,) = await client.claim(queues=[job.queue])
        ending = (
            Complete(claimed.claim)
            if reason is None
            else DeadLetterJob(claimed.claim, reason, error=f"because of {job.id}")
        )
        await client.settle(ending)
        await store.pass_time(STEP)


# Listings


async def test_ready_jobs_are_listed_in_the_order_they_are_served(client: QueueClient, store: Store) -> None:
    rescued = await client.claimed("rescued")
    await store.pass_time(LONGER)
    await client.enqueue("a", "b", "c")
    await client.rescue(rescued)
    assert await client.ids(JobState.READY) == ["rescued", "a", "b", "c"]


async def test_a_listing_can_be_turned_round(client: QueueClient) -> None:
    await client.enqueue("a", Job("later", delay=LONG), "b", Job("soon", delay=HEARTBEAT_TIMEOUT), "c")
    forwards = await client.ids(JobState.READY)
    assert (forwards[:3], await client.ids(JobState.READY, newest=True)) == (["a", "b", "c"], forwards[::-1])


async def test_running_jobs_are_listed_by_deadline(client: QueueClient, store: Store) -> None:
    await client.enqueue("a", "b", "c")
    claims = []
    for _ in range(3):
        claims.append(await client.claim_one())
        await store.pass_time(STEP)
    await client.heartbeat(claims[0])
    assert await client.ids(JobState.RUNNING) == ["b", "c", "a"]


@pytest.mark.parametrize(("state", "reason"), [(JobState.DONE, None), (JobState.DEAD, Reason.FAILED)])
async def test_finished_jobs_are_listed_by_when_they_finished(
    client: QueueClient, store: Store, state: JobState, reason: Reason | None
) -> None:
    await finished(client, store, *map(Job, "cab"), reason=reason)
    assert (await client.ids(state), await client.ids(state, newest=True)) == (["c", "a", "b"], ["b", "a", "c"])


@pytest.mark.parametrize("newest", [False, True])
async def test_every_cursor_of_a_page_goes_on_exactly_there(client: QueueClient, newest: bool) -> None:
    await client.enqueue(*map(str, range(7)))
    whole = await client.jobs.page(JobState.READY, JobFilter(), None, 10, newest=newest)
    rests = [await client.jobs.page(JobState.READY, JobFilter(), cursor, 10, newest=newest) for cursor in whole.cursors]
    assert [[info.id for info in rest] for rest in rests] == [
        [info.id for info in whole.items[n:]] for n in range(1, 8)
    ]


async def test_a_page_says_whether_there_is_more(client: QueueClient) -> None:
    await client.enqueue("a", "b", "c")
    pages = [await client.jobs.page(JobState.READY, JobFilter(), None, limit) for limit in (2, 3, 4)]
    assert [(len(page), page.more) for page in pages] == [(2, True), (3, False), (3, False)]


async def test_a_listing_goes_on_after_what_it_showed_was_deleted(client: QueueClient, store: Store) -> None:
    await finished(client, store, *map(Job, "abcde"))
    first = await client.jobs.page(JobState.DONE, JobFilter(), None, 2)
    await client.jobs.delete([Delete(info.claim, JobState.DONE) for info in first])
    rest = await client.jobs.page(JobState.DONE, JobFilter(), first.cursor, 10)
    assert [info.id for info in rest] == ["c", "d", "e"]


async def test_a_listing_can_be_filtered(client: QueueClient, store: Store) -> None:
    await finished(client, store, Job("a"), Job("b", kind="mail"), reason=Reason.FAILED)
    await finished(client, store, Job("c", queue="other"), reason=Reason.TIMEOUT)
    found = [
        await client.ids(JobState.DEAD, where)
        for where in (
            JobFilter(queue="other"),
            JobFilter(kind="mail"),
            JobFilter(reason=Reason.TIMEOUT),
            JobFilter(error_contains="of b"),
            JobFilter(error_contains="%"),
            JobFilter(queue="low", kind=""),
        )
    ]
    assert found == [["c"], ["b"], ["c"], ["b"], [], ["a"]]


async def test_finished_jobs_can_be_listed_by_when(client: QueueClient, store: Store) -> None:
    await finished(client, store, *map(Job, "abcd"))
    b, c = [(await client.info(id)).finished_at for id in "bc"]
    before, after = JobFilter(finished_before=c), JobFilter(finished_after=b)
    between = JobFilter(finished_after=b, finished_before=c + STEP / 2)
    assert [await client.ids(JobState.DONE, where) for where in (before, after, between)] == [
        ["a", "b"],
        ["c", "d"],
        ["c"],
    ]
    assert await client.ids(JobState.DONE, before, newest=True) == ["b", "a"]


async def test_delayed_jobs_can_be_listed_apart(client: QueueClient, store: Store) -> None:
    await client.enqueue(Job("later", delay=4 * HEARTBEAT_TIMEOUT), Job("soon", delay=HEARTBEAT_TIMEOUT), Job("now"))
    early = [await client.ids(JobState.READY, JobFilter(scheduled=delayed)) for delayed in (True, False)]
    await store.pass_time(LONGER)
    late = [sorted(await client.ids(JobState.READY, JobFilter(scheduled=delayed))) for delayed in (True, False)]
    assert (early, late) == ([["soon", "later"], ["now"]], [["later"], ["now", "soon"]])


async def test_a_job_says_its_status_in_every_state(client: QueueClient, store: Store) -> None:
    await client.enqueue(Job("a", delay=HEARTBEAT_TIMEOUT))
    scheduled = (await client.info("a")).status
    await store.pass_time(LONGER)
    due = (await client.info("a")).status
    first = await client.claim_one()
    running = (await client.info("a")).status
    await client.settle(Requeue(first, Budget.FAILURES, Reason.FAILED, delay=HEARTBEAT_TIMEOUT))
    again = (await client.info("a")).status
    await store.pass_time(LONGER)
    await client.settle(Complete(await client.claim_one()))
    assert [scheduled, due, running, again, (await client.info("a")).status] == [
        "scheduled", "ready", "running", "scheduled", "done",
    ]  # fmt: skip
    await client.enqueue(Job("b", delay=LONG))
    await client.move(Cancel("b"))
    assert (await client.info("b")).status == "dead"


async def test_overdue_jobs_are_listed_longest_ago_first(client: QueueClient, store: Store) -> None:
    await client.enqueue("a", "b", "c", "d")
    for _ in range(3):
        await client.claim_one()
        await store.pass_time(STEP)
    await store.pass_time(LONGER)
    await client.claim_one()
    page = await client.jobs.overdue(None, 2)
    rest = await client.jobs.overdue(page.cursor, 2)
    assert ([info.id for info in page], [info.id for info in rest], rest.more) == (["a", "b"], ["c"], False)


async def test_one_stuck_job_is_found_at_once_among_many_others(client: QueueClient, store: Store) -> None:
    await client.enqueue("stuck")
    await client.claim_one()
    await client.enqueue(*(f"finished-{n}" for n in range(500)))
    await client.complete(*[claimed.claim for claimed in await client.claim(limit=500)])
    await client.enqueue(*(f"waiting-{n}" for n in range(500)))
    await store.pass_time(LONGER)
    await client.claim(limit=300)
    assert [info.id for info in await client.jobs.overdue(None, 1)] == ["stuck"]


async def test_a_job_is_overdue_on_the_backends_clock_which_the_page_carries(client: QueueClient, store: Store) -> None:
    await client.claimed("a")
    await store.pass_time(LONGER)
    page = await client.jobs.overdue(None, 10)
    (info,) = page
    assert info.deadline is not None
    assert info.deadline <= page.at <= info.deadline + LONG


# Numbers


async def test_counts_tell_how_many_jobs_are_where(client: QueueClient, store: Store) -> None:
    await finished(client, store, Job("done1"), Job("done2"))
    await finished(client, store, Job("dead"), reason=Reason.FAILED)
    await client.claimed("held")
    await client.enqueue("r1", "r2", "r3", Job("delayed", delay=LONG), Job("elsewhere", queue="other"))
    low, other = await client.count(), await client.count("other")
    assert (low.ready, low.scheduled, low.running, low.done, low.dead) == (3, 1, 1, 2, 1)
    assert (other.ready, other.running) == (1, 0)


async def test_counts_follow_every_move(client: QueueClient, store: Store) -> None:
    await client.enqueue("a", "b", "c", Job("d", delay=LONG))
    a, b, c = [claimed.claim for claimed in await client.claim()]
    await store.pass_time(LONGER)
    await client.rescue(a)
    await client.settle(Requeue(b, Budget.FAILURES, Reason.FAILED, delay=LONG), Complete(c))
    await client.move(Cancel("d"))
    low = await client.count()
    assert (low.ready, low.scheduled, low.running, low.done, low.dead) == (1, 1, 0, 1, 1)


async def test_counts_tell_since_when_the_oldest_job_is_ready(client: QueueClient, store: Store) -> None:
    empty = await client.count()
    await client.enqueue("a")
    await store.pass_time(STEP)
    await client.enqueue("b")
    full = await client.count()
    assert (empty.oldest_ready_at, full.oldest_ready_at) == (None, (await client.info("a")).created_at)


async def test_a_worker_is_listed_from_its_first_heartbeat_until_it_deregisters(client: QueueClient) -> None:
    worker = WorkerInfo("host-1", "host", 4711, slots=8)
    answer = await client.jobs.heartbeat(worker, [], heartbeat_timeout=HEARTBEAT_TIMEOUT)
    (listed,) = (await client.jobs.counts()).workers
    await client.jobs.heartbeat(worker, [], heartbeat_timeout=timedelta(0))
    assert (listed.info, listed.heartbeat_at, listed.deadline) == (worker, answer.at, answer.at + HEARTBEAT_TIMEOUT)
    assert (await client.jobs.counts()).workers == ()


async def test_deregistering_leaves_the_claims_alone(client: QueueClient) -> None:
    claim = await client.claimed("a")
    before = await client.info("a")
    mine = await client.heartbeat(claim, heartbeat_timeout=timedelta(0))
    assert (mine, await client.info("a")) == ([True], before)


async def test_a_dead_worker_stays_listed_for_an_hour(client: QueueClient, store: Store) -> None:
    await client.heartbeat()
    await store.pass_time(timedelta(minutes=59))
    listed = (await client.jobs.counts()).workers
    await store.pass_time(timedelta(minutes=2))
    assert ([each.info.id for each in listed], (await client.jobs.counts()).workers) == (["w1"], ())


# Waiting


async def waiting(client: QueueClient, *queues: str, wait: timedelta = LONG) -> asyncio.Task[list[str]]:
    """A taker that has begun to wait."""

    async def claim_next() -> list[str]:
        return [claimed.job.id for claimed in await client.claim(queues=queues or ["low"], wait=wait)]

    task = asyncio.create_task(claim_next())
    for _ in range(20):  # past the first look; where that takes longer, the test is easier, not wrong
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_waiting_worker_is_woken_by_an_enqueue(client: QueueClient) -> None:
    taker = await waiting(client)
    await client.enqueue("a")
    assert await asyncio.wait_for(taker, SOON) == ["a"]


async def test_a_waiting_worker_is_woken_by_an_enqueue_to_any_of_its_queues(client: QueueClient) -> None:
    taker = await waiting(client, "high", "low")
    await client.enqueue(Job("elsewhere", queue="other"))
    await client.enqueue("a")
    assert await asyncio.wait_for(taker, SOON) == ["a"]


async def test_a_waiting_worker_is_woken_by_a_released_job(client: QueueClient) -> None:
    claim = await client.claimed("a")
    taker = await waiting(client)
    await client.settle(Requeue(claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED))
    assert await asyncio.wait_for(taker, SOON) == ["a"]


async def test_a_waiting_worker_is_woken_by_an_enqueue_of_another_process(client: QueueClient, store: Store) -> None:
    other = await store.another()
    try:
        taker = await waiting(client)
        await QueueClient(other.jobs).enqueue("a")
        assert await asyncio.wait_for(taker, SOON) == ["a"]
    finally:
        await other.close()


async def test_a_waiting_taker_is_woken_when_a_delayed_job_is_due(live_store: Store) -> None:
    client = QueueClient(live_store.jobs)
    await client.enqueue(Job("a", delay=timedelta(milliseconds=150)))
    assert [claimed.job.id for claimed in await asyncio.wait_for(client.claim(wait=LONG), SOON)] == ["a"]


async def test_a_wait_ends_with_nothing_when_nothing_comes(client: QueueClient) -> None:
    assert await asyncio.wait_for(client.claim(wait=STEP), SOON) == []


async def test_two_waiting_takers_do_not_get_the_same_job(client: QueueClient) -> None:
    takers = [await waiting(client, wait=timedelta(milliseconds=300)) for _ in range(2)]
    await client.enqueue("a")
    assert sorted(await asyncio.wait_for(asyncio.gather(*takers), SOON)) == [[], ["a"]]


async def test_a_worker_that_gave_up_claims_nothing(client: QueueClient) -> None:
    taker = await waiting(client)
    taker.cancel()
    await asyncio.wait([taker], timeout=SOON)
    await client.enqueue("a")
    assert await client.state("a") is JobState.READY
