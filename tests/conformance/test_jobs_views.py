"""JobQueue: listings, numbers, workers and waiting. What can be seen of a queue, and when a worker wakes up."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conformance.desk import HEARTBEAT_TIMEOUT, LONGER, Desk
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
def desk(store: Store) -> Desk:
    return Desk(store.jobs)


async def finished(desk: Desk, store: Store, *jobs: Job, reason: Reason | None = None) -> None:
    """Each job done, or dead for this reason, one after another."""
    for job in jobs:
        await desk.enqueue(job)
        (claimed,) = await desk.claim(queues=[job.queue])
        ending = (
            Complete(claimed.claim)
            if reason is None
            else DeadLetterJob(claimed.claim, reason, error=f"because of {job.id}")
        )
        await desk.settle(ending)
        await store.pass_time(STEP)


# Listings


async def test_ready_jobs_are_listed_in_the_order_they_are_served(desk: Desk, store: Store) -> None:
    rescued = await desk.held("rescued")
    await store.pass_time(LONGER)
    await desk.enqueue("a", "b", "c")
    await desk.rescue(rescued)
    assert await desk.ids(JobState.READY) == ["rescued", "a", "b", "c"]


async def test_a_listing_can_be_turned_round(desk: Desk) -> None:
    await desk.enqueue("a", Job("later", delay=LONG), "b", Job("soon", delay=HEARTBEAT_TIMEOUT), "c")
    forwards = await desk.ids(JobState.READY)
    assert (forwards[:3], await desk.ids(JobState.READY, newest=True)) == (["a", "b", "c"], forwards[::-1])


async def test_running_jobs_are_listed_by_deadline(desk: Desk, store: Store) -> None:
    await desk.enqueue("a", "b", "c")
    claims = []
    for _ in range(3):
        claims.append(await desk.take_one())
        await store.pass_time(STEP)
    await desk.heartbeat(claims[0])
    assert await desk.ids(JobState.RUNNING) == ["b", "c", "a"]


@pytest.mark.parametrize(("state", "reason"), [(JobState.DONE, None), (JobState.DEAD, Reason.FAILED)])
async def test_finished_jobs_are_listed_by_when_they_finished(
    desk: Desk, store: Store, state: JobState, reason: Reason | None
) -> None:
    await finished(desk, store, *map(Job, "cab"), reason=reason)
    assert (await desk.ids(state), await desk.ids(state, newest=True)) == (["c", "a", "b"], ["b", "a", "c"])


@pytest.mark.parametrize("newest", [False, True])
async def test_every_cursor_of_a_page_goes_on_exactly_there(desk: Desk, newest: bool) -> None:
    await desk.enqueue(*map(str, range(7)))
    whole = await desk.jobs.page(JobState.READY, JobFilter(), None, 10, newest=newest)
    rests = [await desk.jobs.page(JobState.READY, JobFilter(), cursor, 10, newest=newest) for cursor in whole.cursors]
    assert [[info.id for info in rest] for rest in rests] == [
        [info.id for info in whole.items[n:]] for n in range(1, 8)
    ]


async def test_a_page_says_whether_there_is_more(desk: Desk) -> None:
    await desk.enqueue("a", "b", "c")
    pages = [await desk.jobs.page(JobState.READY, JobFilter(), None, limit) for limit in (2, 3, 4)]
    assert [(len(page), page.more) for page in pages] == [(2, True), (3, False), (3, False)]


async def test_a_listing_goes_on_after_what_it_showed_was_deleted(desk: Desk, store: Store) -> None:
    await finished(desk, store, *map(Job, "abcde"))
    first = await desk.jobs.page(JobState.DONE, JobFilter(), None, 2)
    await desk.jobs.delete([Delete(info.claim, JobState.DONE) for info in first])
    rest = await desk.jobs.page(JobState.DONE, JobFilter(), first.cursor, 10)
    assert [info.id for info in rest] == ["c", "d", "e"]


async def test_a_listing_can_be_filtered(desk: Desk, store: Store) -> None:
    await finished(desk, store, Job("a"), Job("b", kind="mail"), reason=Reason.FAILED)
    await finished(desk, store, Job("c", queue="other"), reason=Reason.TIMEOUT)
    found = [
        await desk.ids(JobState.DEAD, where)
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


async def test_finished_jobs_can_be_listed_by_when(desk: Desk, store: Store) -> None:
    await finished(desk, store, *map(Job, "abcd"))
    b, c = [(await desk.state(id)).finished_at for id in "bc"]
    before, after = JobFilter(finished_before=c), JobFilter(finished_after=b)
    between = JobFilter(finished_after=b, finished_before=c + STEP / 2)
    assert [await desk.ids(JobState.DONE, where) for where in (before, after, between)] == [
        ["a", "b"],
        ["c", "d"],
        ["c"],
    ]
    assert await desk.ids(JobState.DONE, before, newest=True) == ["b", "a"]


async def test_delayed_jobs_can_be_listed_apart(desk: Desk, store: Store) -> None:
    await desk.enqueue(Job("later", delay=4 * HEARTBEAT_TIMEOUT), Job("soon", delay=HEARTBEAT_TIMEOUT), Job("now"))
    early = [await desk.ids(JobState.READY, JobFilter(scheduled=delayed)) for delayed in (True, False)]
    await store.pass_time(LONGER)
    late = [sorted(await desk.ids(JobState.READY, JobFilter(scheduled=delayed))) for delayed in (True, False)]
    assert (early, late) == ([["soon", "later"], ["now"]], [["later"], ["now", "soon"]])


async def test_a_job_says_its_status_in_every_state(desk: Desk, store: Store) -> None:
    await desk.enqueue(Job("a", delay=HEARTBEAT_TIMEOUT))
    scheduled = (await desk.state("a")).status
    await store.pass_time(LONGER)
    due = (await desk.state("a")).status
    first = await desk.take_one()
    running = (await desk.state("a")).status
    await desk.settle(Requeue(first, Budget.FAILURES, Reason.FAILED, delay=HEARTBEAT_TIMEOUT))
    again = (await desk.state("a")).status
    await store.pass_time(LONGER)
    await desk.settle(Complete(await desk.take_one()))
    assert [scheduled, due, running, again, (await desk.state("a")).status] == [
        "scheduled", "ready", "running", "scheduled", "done",
    ]  # fmt: skip
    await desk.enqueue(Job("b", delay=LONG))
    await desk.move(Cancel("b"))
    assert (await desk.state("b")).status == "dead"


async def test_overdue_jobs_are_listed_longest_ago_first(desk: Desk, store: Store) -> None:
    await desk.enqueue("a", "b", "c", "d")
    for _ in range(3):
        await desk.take_one()
        await store.pass_time(STEP)
    await store.pass_time(LONGER)
    await desk.take_one()
    page = await desk.jobs.overdue(None, 2)
    rest = await desk.jobs.overdue(page.cursor, 2)
    assert ([info.id for info in page], [info.id for info in rest], rest.more) == (["a", "b"], ["c"], False)


async def test_one_stuck_job_is_found_at_once_among_many_others(desk: Desk, store: Store) -> None:
    await desk.enqueue("stuck")
    await desk.take_one()
    await desk.enqueue(*(f"finished-{n}" for n in range(500)))
    await desk.finish(*[claimed.claim for claimed in await desk.claim(limit=500)])
    await desk.enqueue(*(f"waiting-{n}" for n in range(500)))
    await store.pass_time(LONGER)
    await desk.claim(limit=300)
    assert [info.id for info in await desk.jobs.overdue(None, 1)] == ["stuck"]


async def test_a_job_is_overdue_on_the_backends_clock_which_the_page_carries(desk: Desk, store: Store) -> None:
    await desk.held("a")
    await store.pass_time(LONGER)
    page = await desk.jobs.overdue(None, 10)
    (info,) = page
    assert info.deadline is not None
    assert info.deadline <= page.at <= info.deadline + LONG


# Numbers


async def test_counts_tell_how_many_jobs_are_where(desk: Desk, store: Store) -> None:
    await finished(desk, store, Job("done1"), Job("done2"))
    await finished(desk, store, Job("dead"), reason=Reason.FAILED)
    await desk.held("held")
    await desk.enqueue("r1", "r2", "r3", Job("delayed", delay=LONG), Job("elsewhere", queue="other"))
    low, other = await desk.count(), await desk.count("other")
    assert (low.ready, low.scheduled, low.running, low.done, low.dead) == (3, 1, 1, 2, 1)
    assert (other.ready, other.running) == (1, 0)


async def test_counts_follow_every_move(desk: Desk, store: Store) -> None:
    await desk.enqueue("a", "b", "c", Job("d", delay=LONG))
    a, b, c = [claimed.claim for claimed in await desk.claim()]
    await store.pass_time(LONGER)
    await desk.rescue(a)
    await desk.settle(Requeue(b, Budget.FAILURES, Reason.FAILED, delay=LONG), Complete(c))
    await desk.move(Cancel("d"))
    low = await desk.count()
    assert (low.ready, low.scheduled, low.running, low.done, low.dead) == (1, 1, 0, 1, 1)


async def test_counts_tell_since_when_the_oldest_job_is_ready(desk: Desk, store: Store) -> None:
    empty = await desk.count()
    await desk.enqueue("a")
    await store.pass_time(STEP)
    await desk.enqueue("b")
    full = await desk.count()
    assert (empty.oldest_ready_at, full.oldest_ready_at) == (None, (await desk.state("a")).created_at)


async def test_a_worker_is_listed_from_its_first_heartbeat_until_it_deregisters(desk: Desk) -> None:
    worker = WorkerInfo("host-1", "host", 4711, slots=8)
    answer = await desk.jobs.heartbeat(worker, [], heartbeat_timeout=HEARTBEAT_TIMEOUT)
    (listed,) = (await desk.jobs.counts()).workers
    await desk.jobs.heartbeat(worker, [], heartbeat_timeout=timedelta(0))
    assert (listed.info, listed.heartbeat_at, listed.deadline) == (worker, answer.at, answer.at + HEARTBEAT_TIMEOUT)
    assert (await desk.jobs.counts()).workers == ()


async def test_deregistering_leaves_the_claims_alone(desk: Desk) -> None:
    claim = await desk.held("a")
    before = await desk.state("a")
    mine = await desk.heartbeat(claim, heartbeat_timeout=timedelta(0))
    assert (mine, await desk.state("a")) == ([True], before)


async def test_a_dead_worker_stays_listed_for_an_hour(desk: Desk, store: Store) -> None:
    await desk.heartbeat()
    await store.pass_time(timedelta(minutes=59))
    listed = (await desk.jobs.counts()).workers
    await store.pass_time(timedelta(minutes=2))
    assert ([each.info.id for each in listed], (await desk.jobs.counts()).workers) == (["w1"], ())


# Waiting


async def waiting(desk: Desk, *queues: str, wait: timedelta = LONG) -> asyncio.Task[list[str]]:
    """A taker that has begun to wait."""

    async def take() -> list[str]:
        return [claimed.job.id for claimed in await desk.claim(queues=queues or ["low"], wait=wait)]

    task = asyncio.create_task(take())
    for _ in range(20):  # past the first look; where that takes longer, the test is easier, not wrong
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_waiting_worker_is_woken_by_an_enqueue(desk: Desk) -> None:
    taker = await waiting(desk)
    await desk.enqueue("a")
    assert await asyncio.wait_for(taker, SOON) == ["a"]


async def test_a_waiting_worker_is_woken_by_an_enqueue_to_any_of_its_queues(desk: Desk) -> None:
    taker = await waiting(desk, "high", "low")
    await desk.enqueue(Job("elsewhere", queue="other"))
    await desk.enqueue("a")
    assert await asyncio.wait_for(taker, SOON) == ["a"]


async def test_a_waiting_worker_is_woken_by_a_released_job(desk: Desk) -> None:
    claim = await desk.held("a")
    taker = await waiting(desk)
    await desk.settle(Requeue(claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED))
    assert await asyncio.wait_for(taker, SOON) == ["a"]


async def test_a_waiting_worker_is_woken_by_an_enqueue_of_another_process(desk: Desk, store: Store) -> None:
    other = await store.another()
    try:
        taker = await waiting(desk)
        await Desk(other.jobs).enqueue("a")
        assert await asyncio.wait_for(taker, SOON) == ["a"]
    finally:
        await other.close()


async def test_a_waiting_taker_is_woken_when_a_delayed_job_is_due(live_store: Store) -> None:
    desk = Desk(live_store.jobs)
    await desk.enqueue(Job("a", delay=timedelta(milliseconds=150)))
    assert [claimed.job.id for claimed in await asyncio.wait_for(desk.claim(wait=LONG), SOON)] == ["a"]


async def test_a_wait_ends_with_nothing_when_nothing_comes(desk: Desk) -> None:
    assert await asyncio.wait_for(desk.claim(wait=STEP), SOON) == []


async def test_two_waiting_takers_do_not_get_the_same_job(desk: Desk) -> None:
    takers = [await waiting(desk, wait=timedelta(milliseconds=300)) for _ in range(2)]
    await desk.enqueue("a")
    assert sorted(await asyncio.wait_for(asyncio.gather(*takers), SOON)) == [[], ["a"]]


async def test_a_worker_that_gave_up_claims_nothing(desk: Desk) -> None:
    taker = await waiting(desk)
    taker.cancel()
    await asyncio.wait([taker], timeout=SOON)
    await desk.enqueue("a")
    assert await desk.place("a") is JobState.READY
