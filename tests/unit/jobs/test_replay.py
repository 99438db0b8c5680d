"""Dead jobs made ready again, with canaries that are watched."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from unit.jobs.worker.scene import CLOCK, enqueue, eventually, handlers, memory, numbered, working
from wrasse.backends.memory.connect import Memory
from wrasse.jobs.replay import JobReplay, ReplayPlan, ReplayResult, Watched, verdict
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.ports.jobs import Cancel, JobFilter, JobState, Rate

SOON = timedelta(seconds=20)


async def with_dead(count: int) -> Memory:
    store = memory()
    await enqueue(store.jobs, *numbered(count, "x"))
    await store.jobs.move([Cancel(f"job {number}") for number in range(count)])
    return store


async def replayed(store: Memory, plan: ReplayPlan) -> ReplayResult:
    return await JobReplay(store.jobs, CLOCK, JobFilter(), (await store.health_sample()).at, plan).run(
        lambda count: None
    )


async def count_of(store: Memory, state: JobState) -> int:
    return len(await store.jobs.page(state, JobFilter(), None, 1_000))


@pytest.mark.parametrize(
    ("watched", "goes_on"),
    [
        (Watched(0, 0, 0), True),
        (Watched(10, 8, 2), True),
        (Watched(10, 7, 3), False),
        (Watched(10, 1, 0), True),
        (Watched(10, 0, 0), False),
    ],
)
def test_the_rest_follows_unless_too_many_fail_or_none_ends(watched: Watched, goes_on: bool) -> None:
    assert (verdict(watched, 0.2) == "") is goes_on


async def test_when_the_canaries_do_well_the_rest_follows() -> None:
    store = await with_dead(60)

    async def mended(job: RunningJob) -> None: ...

    async with working(store.jobs, handlers(x=mended)):
        done = await replayed(store, ReplayPlan(canaries=10, watch=SOON))
        await eventually(lambda: store_done(store))
    assert (done.requeued, done.canaries, done.why) == (60, Watched(10, 10, 0), "")


async def store_done(store: Memory) -> bool:
    return await count_of(store, JobState.DONE) == 60


async def test_when_the_canaries_fail_again_the_rest_stays_dead() -> None:
    store = await with_dead(60)

    async def broken(job: RunningJob) -> None:
        raise OSError("still down")

    async with working(store.jobs, handlers(x=broken)):
        done = await replayed(store, ReplayPlan(canaries=10, watch=SOON))
    assert (done.requeued, done.why) == (10, f"{done.canaries.failed} of 10 canaries failed again")
    assert await count_of(store, JobState.DEAD) >= 50


async def test_without_a_worker_the_rest_stays_dead() -> None:
    store = await with_dead(30)
    done = await replayed(store, ReplayPlan(canaries=5, watch=timedelta(milliseconds=20)))
    assert (done.requeued, done.why) == (5, "none of 5 canaries ended while they were watched")
    assert await count_of(store, JobState.DEAD) == 25


async def test_what_dies_again_is_not_replayed_twice() -> None:
    store = await with_dead(20)

    async def killer() -> None:
        while True:
            await store.jobs.move([Cancel(f"job {number}") for number in range(20)])
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        killing = group.create_task(killer())
        done = await replayed(store, ReplayPlan(canaries=0))
        killing.cancel()
    assert done.requeued == 20


async def test_a_rate_is_kept() -> None:
    store = await with_dead(12)
    began = CLOCK.monotonic()
    done = await replayed(store, ReplayPlan(canaries=0, rate=Rate("", 40, timedelta(seconds=1))))
    assert done.requeued == 12
    assert CLOCK.monotonic() - began >= 0.2
