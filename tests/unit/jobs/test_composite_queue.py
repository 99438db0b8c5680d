"""Jobs and tasks as one queue: each goes where its queue says, and whoever looks sees both."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.desk import Desk
from unit.jobs.stream_tasks.scene import MAIL, TaskWorld
from wrasse.errors import UsageError
from wrasse.jobs.composite_queue import CompositeQueue
from wrasse.ports.jobs import Cancel, Delete, Job, JobFilter, JobQueue, JobState
from wrasse.ports.outcome import Outcome

STEP = timedelta(seconds=30)


@pytest.fixture
def world() -> TaskWorld:
    return TaskWorld()


@pytest.fixture
def desk(world: TaskWorld) -> Desk:
    async def tasks() -> JobQueue:
        return world.jobs

    return Desk(CompositeQueue(world.memory.jobs, tasks, [MAIL]))


async def test_a_job_whose_queue_is_a_type_is_a_task(desk: Desk, world: TaskWorld) -> None:
    answers = await desk.enqueue(Job("a", queue="plain"), Job("b"), Job("c", queue="plain"), Job("b"))

    assert answers == [True, True, True, False]
    assert [await world.jobs.get(id) is not None for id in "abc"] == [False, True, False]
    assert [await world.memory.jobs.get(id) is not None for id in "abc"] == [True, False, True]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
async def test_a_listing_shows_jobs_and_then_tasks_each_once(desk: Desk, count: int) -> None:
    await desk.enqueue(*(Job(f"j{n}", queue="plain") for n in range(count)), *(Job(f"t{n}") for n in range(3)))

    assert await desk.ids(JobState.READY) == [*(f"j{n}" for n in range(count)), "t0", "t1", "t2"]
    assert await desk.ids(JobState.READY, JobFilter(queue=MAIL)) == ["t0", "t1", "t2"]


async def test_both_are_held_settled_moved_and_deleted_by_their_ids(desk: Desk, world: TaskWorld) -> None:
    await desk.enqueue(Job("j", queue="plain"), Job("t"), Job("u"))
    (job,) = await desk.claim(queues=["plain"])
    (task,) = await desk.claim(limit=1)

    assert await desk.heartbeat(job.claim, task.claim) == [True, True]
    assert await desk.finish(task.claim, job.claim) == [Outcome.DONE] * 2
    assert await desk.move(Cancel("u"), Cancel("j")) == [Outcome.DONE, Outcome.CONFLICT]
    deletes = [Delete((await desk.state(id)).claim, JobState.DONE) for id in "jt"]
    assert list(await desk.jobs.delete(deletes)) == [Outcome.DONE] * 2


async def test_what_is_overdue_is_found_in_both(desk: Desk, world: TaskWorld) -> None:
    await desk.enqueue(Job("j", queue="plain"), Job("t"))
    await desk.claim(queues=["plain"])
    await desk.claim()
    world.clock.advance(STEP)

    first = await desk.jobs.overdue(None, 10)
    rest = await desk.jobs.overdue(first.cursor, 10)

    assert ([info.id for info in first], [info.id for info in rest]) == (["j"], ["t"])


async def test_numbers_are_those_of_both(desk: Desk) -> None:
    await desk.enqueue(Job("j", queue="plain"), Job("t"))

    assert [(await desk.count(queue)).ready for queue in ("plain", MAIL)] == [1, 1]


async def test_a_take_across_both_is_refused(desk: Desk) -> None:
    with pytest.raises(UsageError, match="at once"):
        await desk.claim(queues=["plain", MAIL])
