"""Jobs and tasks as one queue: each goes where its queue says, and whoever looks sees both."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.queue_client import QueueClient
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
def client(world: TaskWorld) -> QueueClient:
    async def tasks() -> JobQueue:
        return world.jobs

    return QueueClient(CompositeQueue(world.memory.jobs, tasks, [MAIL]))


async def test_a_job_whose_queue_is_a_type_is_a_task(client: QueueClient, world: TaskWorld) -> None:
    answers = await client.enqueue(Job("a", queue="plain"), Job("b"), Job("c", queue="plain"), Job("b"))

    assert answers == [True, True, True, False]
    assert [await world.jobs.get(id) is not None for id in "abc"] == [False, True, False]
    assert [await world.memory.jobs.get(id) is not None for id in "abc"] == [True, False, True]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
async def test_a_listing_shows_jobs_and_then_tasks_each_once(client: QueueClient, count: int) -> None:
    await client.enqueue(*(Job(f"j{n}", queue="plain") for n in range(count)), *(Job(f"t{n}") for n in range(3)))

    assert await client.ids(JobState.READY) == [*(f"j{n}" for n in range(count)), "t0", "t1", "t2"]
    assert await client.ids(JobState.READY, JobFilter(queue=MAIL)) == ["t0", "t1", "t2"]


async def test_both_are_held_settled_moved_and_deleted_by_their_ids(client: QueueClient, world: TaskWorld) -> None:
    await client.enqueue(Job("j", queue="plain"), Job("t"), Job("u"))
    (job,) = await client.claim(queues=["plain"])
    (task,) = await client.claim(limit=1)

    assert await client.heartbeat(job.claim, task.claim) == [True, True]
    assert await client.complete(task.claim, job.claim) == [Outcome.DONE] * 2
    assert await client.move(Cancel("u"), Cancel("j")) == [Outcome.DONE, Outcome.CONFLICT]
    deletes = [Delete((await client.info(id)).claim, JobState.DONE) for id in "jt"]
    assert list(await client.jobs.delete(deletes)) == [Outcome.DONE] * 2


async def test_what_is_overdue_is_found_in_both(client: QueueClient, world: TaskWorld) -> None:
    await client.enqueue(Job("j", queue="plain"), Job("t"))
    await client.claim(queues=["plain"])
    await client.claim()
    world.clock.advance(STEP)

    first = await client.jobs.overdue(None, 10)
    rest = await client.jobs.overdue(first.cursor, 10)

    assert ([info.id for info in first], [info.id for info in rest]) == (["j"], ["t"])


async def test_numbers_are_those_of_both(client: QueueClient) -> None:
    await client.enqueue(Job("j", queue="plain"), Job("t"))

    assert [(await client.count(queue)).ready for queue in ("plain", MAIL)] == [1, 1]


async def test_a_take_across_both_is_refused(client: QueueClient) -> None:
    with pytest.raises(UsageError, match="at once"):
        await client.claim(queues=["plain", MAIL])
