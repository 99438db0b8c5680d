"""What people expect of a job queue beyond putting and taking: unique names, groups with a callback, limits of a queue,
results that stay, progress. One suite for every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from conformance.queue_client import HEARTBEAT_TIMEOUT, QueueClient, fresh
from conformance.stores import JOBS_BACKENDS, Store
from wrasse.clock import ManualClock
from wrasse.ports.jobs import (
    GROUP_DEAD_HEADER,
    GROUP_DONE_HEADER,
    GROUP_HEADER,
    Cancel,
    ClaimedJob,
    Complete,
    Delete,
    Enqueued,
    Job,
    JobFilter,
    JobGroup,
    JobState,
    Progress,
    Rate,
    RequeueDead,
)
from wrasse.ports.outcome import Outcome

WINDOW = timedelta(milliseconds=500)
TRIO = JobGroup("g", 3, Job("callback", headers={"mine": "kept"}))
MEMBERS = tuple(Job(id, group="g") for id in "abc")
NEXT = timedelta(seconds=1)
TWICE_A_SECOND = (Rate("low", 2, NEXT),)


@pytest.fixture
def client(store: Store) -> QueueClient:
    return QueueClient(store.jobs)


async def enqueue(
    client: QueueClient, *jobs: Job, groups: Sequence[JobGroup] = (), request: str = ""
) -> list[Enqueued]:
    return list(await client.jobs.enqueue(jobs, request=request or fresh(), groups=groups))


async def claim_limited(
    client: QueueClient, limit: int = 9, wait: float = 0, rates: Sequence[Rate] = TWICE_A_SECOND
) -> list[ClaimedJob]:
    """Claims under a limit."""
    waited = timedelta(seconds=wait)
    claimed = await client.jobs.claim(
        ["low"], limit, worker="w1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh(), wait=waited, rates=rates
    )
    return list(claimed.jobs)


# --- unique names


async def test_a_unique_job_is_refused_until_the_first_is_finished(client: QueueClient) -> None:
    await enqueue(client, Job("a", unique="report"))
    while_ready = await enqueue(client, Job("b", unique="report"))
    claim = await client.claim_one()
    while_held = await enqueue(client, Job("b", unique="report"))
    await client.complete(claim)
    after = await enqueue(client, Job("b", unique="report"))
    assert (while_ready, while_held, after) == ([Enqueued("a", False)], [Enqueued("a", False)], [Enqueued("b", True)])


async def test_a_unique_job_that_is_requeued_has_its_name_again(client: QueueClient) -> None:
    await enqueue(client, Job("a", unique="report"))
    await client.dead_letter(await client.claim_one())
    await client.move(RequeueDead((await client.info("a")).claim))
    assert await enqueue(client, Job("b", unique="report")) == [Enqueued("a", False)]


async def test_a_window_counts_from_the_enqueue_also_when_the_job_is_long_finished(
    store: Store, client: QueueClient
) -> None:
    await enqueue(client, Job("a", unique="report", window=WINDOW))
    await client.complete(await client.claim_one())
    inside = await enqueue(client, Job("b", unique="report", window=WINDOW))
    await store.pass_time(WINDOW)
    assert (inside, await enqueue(client, Job("c", unique="report", window=WINDOW))) == (
        [Enqueued("a", False)],
        [Enqueued("c", True)],
    )


async def test_of_one_batch_only_the_first_gets_the_name(client: QueueClient) -> None:
    puts = await enqueue(client, Job("a", unique="n"), Job("b", unique="n"), Job("c"), Job("d", unique="m"))
    assert puts == [Enqueued("a", True), Enqueued("a", False), Enqueued("c", True), Enqueued("d", True)]


async def test_a_known_id_does_not_take_a_name(client: QueueClient) -> None:
    await enqueue(client, Job("a"))
    again = await enqueue(client, Job("a", unique="n"))
    assert (again, await enqueue(client, Job("b", unique="n"))) == ([Enqueued("a", False)], [Enqueued("b", True)])


async def test_a_retried_enqueue_of_a_unique_job_gives_the_first_answer(client: QueueClient) -> None:
    first = await enqueue(client, Job("a", unique="n"), request="same")
    refused = await enqueue(client, Job("b", unique="n"), request="other")
    assert first == await enqueue(client, Job("a", unique="n"), request="same") == [Enqueued("a", True)]
    assert refused == await enqueue(client, Job("b", unique="n"), request="other") == [Enqueued("a", False)]


async def test_a_follow_up_with_a_name_in_use_is_not_enqueued(client: QueueClient) -> None:
    await enqueue(client, Job("a", unique="n", queue="other"))
    await client.settle(Complete(await client.claimed("b"), enqueues=(Job("c", unique="n"),)))
    assert await client.jobs.get("c") is None


async def test_of_many_enqueues_of_one_name_at_once_one_wins(store: Store, client: QueueClient) -> None:
    others = [await store.another() for _ in range(3)]
    try:
        tries = [QueueClient(other.jobs) for other in others for _ in range(5)]
        puts = await asyncio.gather(*(enqueue(each, Job(f"job-{n}", unique="n")) for n, each in enumerate(tries)))
    finally:
        if store.name != "memory":
            for other in others:
                await other.close()
    (winner,) = [one.id for (one,) in puts if one.new]
    assert {one.id for (one,) in puts} == {winner}


async def test_a_job_comes_back_with_all_that_it_was_enqueued_with(client: QueueClient) -> None:
    job = Job("a", unique="n", window=WINDOW, keep=NEXT, group="g")
    await enqueue(client, job)
    (claimed,) = await client.claim()
    assert (await client.record("a")).job == claimed.job == job


# --- groups


async def test_the_last_member_to_finish_makes_the_callback_ready(client: QueueClient) -> None:
    await enqueue(client, *MEMBERS, groups=[TRIO])
    a, b, c = (claimed.claim for claimed in await client.claim())
    await client.settle(Complete(a), Complete(b))
    early = await client.jobs.get("callback")
    await client.dead_letter(c)
    headers = (await client.record("callback")).job.headers
    told = {"mine": "kept", GROUP_HEADER: "g", GROUP_DONE_HEADER: "2", GROUP_DEAD_HEADER: "1"}
    assert (early, dict(headers), await client.state("callback")) == (None, told, JobState.READY)


async def test_members_may_come_before_their_group_and_in_several_enqueues(client: QueueClient) -> None:
    await enqueue(client, MEMBERS[0])
    await client.complete(await client.claim_one())
    await enqueue(client, MEMBERS[1], groups=[TRIO])
    await enqueue(client, MEMBERS[2])
    await client.complete(*(claimed.claim for claimed in await client.claim()))
    assert await client.state("callback") is JobState.READY


async def test_a_group_whose_members_have_all_finished_calls_back_when_it_is_opened(client: QueueClient) -> None:
    await enqueue(client, *MEMBERS)
    await client.complete(*(claimed.claim for claimed in await client.claim()))
    await enqueue(client, groups=[TRIO])
    assert await client.state("callback") is JobState.READY


async def test_cancelled_and_deleted_members_count_as_dead(client: QueueClient) -> None:
    await enqueue(client, *MEMBERS, groups=[TRIO])
    await client.move(Cancel("a"))
    await client.jobs.delete([Delete((await client.info("b")).claim, JobState.READY)])
    await client.complete(await client.claim_one())
    assert (await client.record("callback")).job.headers[GROUP_DEAD_HEADER] == "2"


async def test_a_stuck_member_that_is_dead_lettered_counts_as_dead(store: Store, client: QueueClient) -> None:
    await enqueue(client, Job("a", group="one"), groups=[JobGroup("one", 1, Job("callback"))])
    claim = await client.claim_one()
    await store.pass_time(2 * HEARTBEAT_TIMEOUT)
    await client.rescue(claim)
    rescued = await client.jobs.get("callback")
    await client.dead_letter(await client.claim_one())
    assert (rescued, await client.state("callback")) == (None, JobState.READY)


async def test_a_requeued_member_is_not_counted_again(client: QueueClient) -> None:
    await enqueue(client, *MEMBERS[:2], groups=[JobGroup("g", 2, Job("callback"))])
    a, _ = (claimed.claim for claimed in await client.claim())
    await client.dead_letter(a)
    await client.move(RequeueDead((await client.info("a")).claim))
    await client.complete(await client.claim_one())
    assert await client.jobs.get("callback") is None


async def test_a_callback_comes_once_whatever_is_asked_again(client: QueueClient) -> None:
    await enqueue(client, *MEMBERS, groups=[TRIO], request="same")
    await enqueue(client, *MEMBERS, groups=[TRIO], request="same")
    claims = [claimed.claim for claimed in await client.claim()]
    await client.complete(*claims)
    await client.complete(*claims)
    callback = await client.claim_one()
    await client.complete(callback)
    await client.jobs.delete([Delete((await client.info("callback")).claim, JobState.DONE)])
    await enqueue(client, Job("d", group="g"), groups=[JobGroup("g", 1, Job("callback"))])
    await client.complete(await client.claim_one())
    assert await client.jobs.get("callback") is None


# --- limits of a queue


async def test_no_more_are_claimed_than_the_limit_allows(store: Store, client: QueueClient) -> None:
    await client.enqueue("a", "b", "c", "d", "e")
    first = [claimed.job.id for claimed in await claim_limited(client)]
    none = await claim_limited(client)
    await store.pass_time(NEXT)
    second = [claimed.job.id for claimed in await claim_limited(client, 1)]
    third = [claimed.job.id for claimed in await claim_limited(client)]
    assert (first, none, second, third) == (["a", "b"], [], ["c"], ["d"])


async def test_another_queue_goes_on_while_one_is_at_its_limit(client: QueueClient) -> None:
    await client.enqueue("a", "b", "c", Job("other", queue="free"))
    claimed = await client.jobs.claim(
        ["low", "free"], 9, worker="w1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh(), rates=TWICE_A_SECOND
    )
    assert [each.job.id for each in claimed.jobs] == ["a", "b", "other"]


async def test_what_was_released_still_counts_as_claimed(client: QueueClient) -> None:
    await client.enqueue("a", "b", "c")
    for claimed in await claim_limited(client):
        await client.fail(claimed.claim)
    assert await claim_limited(client) == []


async def test_several_limits_of_one_queue_all_hold(store: Store, client: QueueClient) -> None:
    await client.enqueue("a", "b", "c", "d")
    rates = (*TWICE_A_SECOND, Rate("low", 3, 5 * NEXT))
    counts = [len(await claim_limited(client, rates=rates))]
    await store.pass_time(NEXT)
    counts.append(len(await claim_limited(client, rates=rates)))
    await store.pass_time(NEXT)
    counts.append(len(await claim_limited(client, rates=rates)))
    assert counts == [2, 1, 0]


async def test_a_worker_that_waits_at_a_limit_is_served_when_it_allows_more(store: Store, client: QueueClient) -> None:
    await client.enqueue("a", "b", "c")
    await claim_limited(client)
    waiting = asyncio.create_task(claim_limited(client, wait=20))
    await asyncio.sleep(0.05)
    early = waiting.done()
    await store.pass_time(NEXT)
    await client.enqueue(
        "ring"
    )  # where the clock is ours the memory backend hears of time passing with the next change
    async with asyncio.timeout(15):
        assert (early, [claimed.job.id for claimed in await waiting]) == (False, ["c", "ring"])


@settings(max_examples=30)
@given(steps=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 5)), max_size=25))
@pytest.mark.parametrize("backend", JOBS_BACKENDS)
def test_no_span_of_time_has_more_than_the_limit(
    backend: str, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    times = asyncio.run(_taken_at(Store(backend, tmp_path_factory.mktemp("rates"), clock=ManualClock()), steps))
    for start in times:
        assert sum(start <= at < start + NEXT for at in times) <= 2


async def _taken_at(store: Store, steps: list[tuple[int, int]]) -> list[datetime]:
    await store.open()
    try:
        client, times = QueueClient(store.jobs), []
        await client.enqueue(*(f"job-{n}" for n in range(60)))
        for pause, limit in steps:
            await store.pass_time(timedelta(milliseconds=pause))
            times += [store.clock.now() for _ in await claim_limited(client, limit)]
        return times
    finally:
        await store.close()


# --- results that stay, and progress


@pytest.mark.parametrize("backend", JOBS_BACKENDS)
async def test_a_result_outlives_the_bound_of_done_jobs_for_as_long_as_it_is_kept(backend: str, tmp_path: Path) -> None:
    store = Store(backend, tmp_path, done_max=1)
    await store.open()
    client = QueueClient(store.jobs)
    await client.enqueue(Job("kept", keep=2 * WINDOW), Job("too", keep=2 * WINDOW), "c")
    claims = [claimed.claim for claimed in await client.claim()]
    await client.settle(Complete(claims[0], b'"result"'), Complete(claims[1]), Complete(claims[2]))
    there = await client.ids(JobState.DONE)
    refused = await client.jobs.delete([Delete(claims[0], JobState.DONE)])
    await store.pass_time(2 * WINDOW)
    deleted = await client.jobs.delete([Delete(claims[0], JobState.DONE)])
    await store.close()
    assert (there, list(refused), list(deleted)) == (["kept", "too"], [Outcome.CONFLICT], [Outcome.DONE])


async def test_done_jobs_are_listed_by_when_they_may_go(store: Store, client: QueueClient) -> None:
    await client.enqueue(Job("kept", keep=2 * NEXT), "a", "b")
    kept, a, b = (claimed.claim for claimed in await client.claim())
    for claim in (kept, a, b):
        await client.complete(claim)
        await store.pass_time(timedelta(milliseconds=10))
    finished_at = (await client.info("kept")).finished_at
    assert finished_at is not None
    before = JobFilter(finished_before=finished_at + NEXT)
    assert (await client.ids(JobState.DONE), await client.ids(JobState.DONE, before)) == (
        ["a", "b", "kept"],
        ["a", "b"],
    )
    assert (await client.info("kept")).kept_until == finished_at + 2 * NEXT


async def test_progress_is_kept_under_the_token(client: QueueClient) -> None:
    claim = await client.claimed("a")
    await client.jobs.heartbeat(
        client.worker, [claim], heartbeat_timeout=HEARTBEAT_TIMEOUT, progress={"a": Progress(0.25, "a quarter")}
    )
    told = (await client.record("a")).progress
    await client.fail(claim)
    await client.claim_one()
    await client.jobs.heartbeat(
        client.worker, [claim], heartbeat_timeout=HEARTBEAT_TIMEOUT, progress={"a": Progress(0.9, "too late")}
    )
    still = (await client.record("a")).progress
    assert told is not None
    assert (told.fraction, told.note, told.at is not None, still) == (0.25, "a quarter", True, told)
