"""What people expect of a job queue beyond putting and taking: unique names, groups with a callback, limits of a queue,
results that stay, progress. One suite for every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from conformance.desk import HEARTBEAT_TIMEOUT, Desk, fresh
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
def desk(store: Store) -> Desk:
    return Desk(store.jobs)


async def put(desk: Desk, *jobs: Job, groups: Sequence[JobGroup] = (), request: str = "") -> list[Enqueued]:
    return list(await desk.jobs.enqueue(jobs, request=request or fresh(), groups=groups))


async def take(desk: Desk, limit: int = 9, wait: float = 0, rates: Sequence[Rate] = TWICE_A_SECOND) -> list[ClaimedJob]:
    """Takes under a limit."""
    waited = timedelta(seconds=wait)
    claimed = await desk.jobs.claim(
        ["low"], limit, worker="w1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh(), wait=waited, rates=rates
    )
    return list(claimed.jobs)


# --- unique names


async def test_a_unique_job_is_refused_until_the_first_is_finished(desk: Desk) -> None:
    await put(desk, Job("a", unique="report"))
    while_ready = await put(desk, Job("b", unique="report"))
    claim = await desk.take_one()
    while_held = await put(desk, Job("b", unique="report"))
    await desk.finish(claim)
    after = await put(desk, Job("b", unique="report"))
    assert (while_ready, while_held, after) == ([Enqueued("a", False)], [Enqueued("a", False)], [Enqueued("b", True)])


async def test_a_unique_job_that_is_requeued_has_its_name_again(desk: Desk) -> None:
    await put(desk, Job("a", unique="report"))
    await desk.bury(await desk.take_one())
    await desk.move(RequeueDead((await desk.state("a")).claim))
    assert await put(desk, Job("b", unique="report")) == [Enqueued("a", False)]


async def test_a_window_counts_from_the_enqueue_also_when_the_job_is_long_finished(store: Store, desk: Desk) -> None:
    await put(desk, Job("a", unique="report", window=WINDOW))
    await desk.finish(await desk.take_one())
    inside = await put(desk, Job("b", unique="report", window=WINDOW))
    await store.pass_time(WINDOW)
    assert (inside, await put(desk, Job("c", unique="report", window=WINDOW))) == (
        [Enqueued("a", False)],
        [Enqueued("c", True)],
    )


async def test_of_one_batch_only_the_first_gets_the_name(desk: Desk) -> None:
    puts = await put(desk, Job("a", unique="n"), Job("b", unique="n"), Job("c"), Job("d", unique="m"))
    assert puts == [Enqueued("a", True), Enqueued("a", False), Enqueued("c", True), Enqueued("d", True)]


async def test_a_known_id_does_not_take_a_name(desk: Desk) -> None:
    await put(desk, Job("a"))
    again = await put(desk, Job("a", unique="n"))
    assert (again, await put(desk, Job("b", unique="n"))) == ([Enqueued("a", False)], [Enqueued("b", True)])


async def test_a_retried_enqueue_of_a_unique_job_gives_the_first_answer(desk: Desk) -> None:
    first = await put(desk, Job("a", unique="n"), request="same")
    refused = await put(desk, Job("b", unique="n"), request="other")
    assert first == await put(desk, Job("a", unique="n"), request="same") == [Enqueued("a", True)]
    assert refused == await put(desk, Job("b", unique="n"), request="other") == [Enqueued("a", False)]


async def test_a_follow_up_with_a_name_in_use_is_not_enqueued(desk: Desk) -> None:
    await put(desk, Job("a", unique="n", queue="other"))
    await desk.settle(Complete(await desk.held("b"), enqueues=(Job("c", unique="n"),)))
    assert await desk.jobs.get("c") is None


async def test_of_many_enqueues_of_one_name_at_once_one_wins(store: Store, desk: Desk) -> None:
    others = [await store.another() for _ in range(3)]
    try:
        tries = [Desk(other.jobs) for other in others for _ in range(5)]
        puts = await asyncio.gather(*(put(each, Job(f"job-{n}", unique="n")) for n, each in enumerate(tries)))
    finally:
        if store.name != "memory":
            for other in others:
                await other.close()
    (winner,) = [one.id for (one,) in puts if one.new]
    assert {one.id for (one,) in puts} == {winner}


async def test_a_job_comes_back_with_all_that_it_was_enqueued_with(desk: Desk) -> None:
    job = Job("a", unique="n", window=WINDOW, keep=NEXT, group="g")
    await put(desk, job)
    (claimed,) = await desk.claim()
    assert (await desk.record("a")).job == claimed.job == job


# --- groups


async def test_the_last_member_to_finish_makes_the_callback_ready(desk: Desk) -> None:
    await put(desk, *MEMBERS, groups=[TRIO])
    a, b, c = (claimed.claim for claimed in await desk.claim())
    await desk.settle(Complete(a), Complete(b))
    early = await desk.jobs.get("callback")
    await desk.bury(c)
    headers = (await desk.record("callback")).job.headers
    told = {"mine": "kept", GROUP_HEADER: "g", GROUP_DONE_HEADER: "2", GROUP_DEAD_HEADER: "1"}
    assert (early, dict(headers), await desk.place("callback")) == (None, told, JobState.READY)


async def test_members_may_come_before_their_group_and_in_several_enqueues(desk: Desk) -> None:
    await put(desk, MEMBERS[0])
    await desk.finish(await desk.take_one())
    await put(desk, MEMBERS[1], groups=[TRIO])
    await put(desk, MEMBERS[2])
    await desk.finish(*(claimed.claim for claimed in await desk.claim()))
    assert await desk.place("callback") is JobState.READY


async def test_a_group_whose_members_have_all_finished_calls_back_when_it_is_opened(desk: Desk) -> None:
    await put(desk, *MEMBERS)
    await desk.finish(*(claimed.claim for claimed in await desk.claim()))
    await put(desk, groups=[TRIO])
    assert await desk.place("callback") is JobState.READY


async def test_cancelled_and_deleted_members_count_as_dead(desk: Desk) -> None:
    await put(desk, *MEMBERS, groups=[TRIO])
    await desk.move(Cancel("a"))
    await desk.jobs.delete([Delete((await desk.state("b")).claim, JobState.READY)])
    await desk.finish(await desk.take_one())
    assert (await desk.record("callback")).job.headers[GROUP_DEAD_HEADER] == "2"


async def test_a_stuck_member_that_is_dead_lettered_counts_as_dead(store: Store, desk: Desk) -> None:
    await put(desk, Job("a", group="one"), groups=[JobGroup("one", 1, Job("callback"))])
    claim = await desk.take_one()
    await store.pass_time(2 * HEARTBEAT_TIMEOUT)
    await desk.rescue(claim)
    rescued = await desk.jobs.get("callback")
    await desk.bury(await desk.take_one())
    assert (rescued, await desk.place("callback")) == (None, JobState.READY)


async def test_a_requeued_member_is_not_counted_again(desk: Desk) -> None:
    await put(desk, *MEMBERS[:2], groups=[JobGroup("g", 2, Job("callback"))])
    a, _ = (claimed.claim for claimed in await desk.claim())
    await desk.bury(a)
    await desk.move(RequeueDead((await desk.state("a")).claim))
    await desk.finish(await desk.take_one())
    assert await desk.jobs.get("callback") is None


async def test_a_callback_comes_once_whatever_is_asked_again(desk: Desk) -> None:
    await put(desk, *MEMBERS, groups=[TRIO], request="same")
    await put(desk, *MEMBERS, groups=[TRIO], request="same")
    claims = [claimed.claim for claimed in await desk.claim()]
    await desk.finish(*claims)
    await desk.finish(*claims)
    callback = await desk.take_one()
    await desk.finish(callback)
    await desk.jobs.delete([Delete((await desk.state("callback")).claim, JobState.DONE)])
    await put(desk, Job("d", group="g"), groups=[JobGroup("g", 1, Job("callback"))])
    await desk.finish(await desk.take_one())
    assert await desk.jobs.get("callback") is None


# --- limits of a queue


async def test_no_more_are_claimed_than_the_limit_allows(store: Store, desk: Desk) -> None:
    await desk.enqueue("a", "b", "c", "d", "e")
    first = [claimed.job.id for claimed in await take(desk)]
    none = await take(desk)
    await store.pass_time(NEXT)
    second = [claimed.job.id for claimed in await take(desk, 1)]
    third = [claimed.job.id for claimed in await take(desk)]
    assert (first, none, second, third) == (["a", "b"], [], ["c"], ["d"])


async def test_another_queue_goes_on_while_one_is_at_its_limit(desk: Desk) -> None:
    await desk.enqueue("a", "b", "c", Job("other", queue="free"))
    claimed = await desk.jobs.claim(
        ["low", "free"], 9, worker="w1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh(), rates=TWICE_A_SECOND
    )
    assert [each.job.id for each in claimed.jobs] == ["a", "b", "other"]


async def test_what_was_released_still_counts_as_claimed(desk: Desk) -> None:
    await desk.enqueue("a", "b", "c")
    for claimed in await take(desk):
        await desk.fail(claimed.claim)
    assert await take(desk) == []


async def test_several_limits_of_one_queue_all_hold(store: Store, desk: Desk) -> None:
    await desk.enqueue("a", "b", "c", "d")
    rates = (*TWICE_A_SECOND, Rate("low", 3, 5 * NEXT))
    counts = [len(await take(desk, rates=rates))]
    await store.pass_time(NEXT)
    counts.append(len(await take(desk, rates=rates)))
    await store.pass_time(NEXT)
    counts.append(len(await take(desk, rates=rates)))
    assert counts == [2, 1, 0]


async def test_a_worker_that_waits_at_a_limit_is_served_when_it_allows_more(store: Store, desk: Desk) -> None:
    await desk.enqueue("a", "b", "c")
    await take(desk)
    waiting = asyncio.create_task(take(desk, wait=20))
    await asyncio.sleep(0.05)
    early = waiting.done()
    await store.pass_time(NEXT)
    await desk.enqueue("ring")  # where the clock is ours the memory backend hears of time passing with the next change
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
        desk, times = Desk(store.jobs), []
        await desk.enqueue(*(f"job-{n}" for n in range(60)))
        for pause, limit in steps:
            await store.pass_time(timedelta(milliseconds=pause))
            times += [store.clock.now() for _ in await take(desk, limit)]
        return times
    finally:
        await store.close()


# --- results that stay, and progress


@pytest.mark.parametrize("backend", JOBS_BACKENDS)
async def test_a_result_outlives_the_bound_of_done_jobs_for_as_long_as_it_is_kept(backend: str, tmp_path: Path) -> None:
    store = Store(backend, tmp_path, done_max=1)
    await store.open()
    desk = Desk(store.jobs)
    await desk.enqueue(Job("kept", keep=2 * WINDOW), Job("too", keep=2 * WINDOW), "c")
    claims = [claimed.claim for claimed in await desk.claim()]
    await desk.settle(Complete(claims[0], b'"result"'), Complete(claims[1]), Complete(claims[2]))
    there = await desk.ids(JobState.DONE)
    refused = await desk.jobs.delete([Delete(claims[0], JobState.DONE)])
    await store.pass_time(2 * WINDOW)
    deleted = await desk.jobs.delete([Delete(claims[0], JobState.DONE)])
    await store.close()
    assert (there, list(refused), list(deleted)) == (["kept", "too"], [Outcome.CONFLICT], [Outcome.DONE])


async def test_done_jobs_are_listed_by_when_they_may_go(store: Store, desk: Desk) -> None:
    await desk.enqueue(Job("kept", keep=2 * NEXT), "a", "b")
    kept, a, b = (claimed.claim for claimed in await desk.claim())
    for claim in (kept, a, b):
        await desk.finish(claim)
        await store.pass_time(timedelta(milliseconds=10))
    finished_at = (await desk.state("kept")).finished_at
    assert finished_at is not None
    before = JobFilter(finished_before=finished_at + NEXT)
    assert (await desk.ids(JobState.DONE), await desk.ids(JobState.DONE, before)) == (["a", "b", "kept"], ["a", "b"])
    assert (await desk.state("kept")).kept_until == finished_at + 2 * NEXT


async def test_progress_is_kept_under_the_token(desk: Desk) -> None:
    claim = await desk.held("a")
    await desk.jobs.heartbeat(
        desk.worker, [claim], heartbeat_timeout=HEARTBEAT_TIMEOUT, progress={"a": Progress(0.25, "a quarter")}
    )
    told = (await desk.record("a")).progress
    await desk.fail(claim)
    await desk.take_one()
    await desk.jobs.heartbeat(
        desk.worker, [claim], heartbeat_timeout=HEARTBEAT_TIMEOUT, progress={"a": Progress(0.9, "too late")}
    )
    still = (await desk.record("a")).progress
    assert told is not None
    assert (told.fraction, told.note, told.at is not None, still) == (0.25, "a quarter", True, told)
