"""What the store refuses of one attempt, or can no longer read of one job, costs that job: the worker goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unit.jobs.stream_tasks.scene import MAIL, TaskWorld
from unit.jobs.worker.scene import CLOCK, enqueue, handlers, until, working
from wrasse.backends.memory.connect import Memory
from wrasse.jobs.record_queue.queue import RecordedJobs, RecordedOptions
from wrasse.jobs.stream_tasks.fields import TASKS
from wrasse.jobs.stream_tasks.queue import TaskPorts, TaskQueue, TaskType
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.ports.jobs import Complete, Job, JobQueue, JobState, Reason
from wrasse.ports.outcome import Outcome
from wrasse.runtime.stream_tasks import EnvelopeCodec


def recorded() -> JobQueue:
    store = Memory(CLOCK)
    return RecordedJobs(store.records, store.objects, CLOCK, RecordedOptions(done_max=10))


def tasks() -> JobQueue:
    store, types = Memory(CLOCK), [TaskType("low")]
    ports = TaskPorts(store.records, store.streams, store.groups, EnvelopeCodec(CLOCK), CLOCK, store.objects)
    return TaskQueue(ports, types)


def embedded() -> JobQueue:
    return Memory(CLOCK).jobs


@pytest.mark.parametrize("queue", [recorded, tasks])
@pytest.mark.parametrize(
    "follow",
    [Job("next", unique="one"), Job("next", payload=bytes(2 << 20))],
    ids=["a unique name", "more than a record holds"],
)
async def test_a_job_whose_follow_up_cannot_be_kept_is_dead_and_the_others_end(
    queue: Callable[[], JobQueue], follow: Job
) -> None:
    jobs = queue()
    await enqueue(jobs, *(Job(f"ok-{n}", kind="ok") for n in range(3)), Job("bad", kind="bad"))

    async def bad(job: RunningJob) -> None:
        job.follow_up(follow)

    async def ok(job: RunningJob) -> bytes:
        return b"well"

    async with working(jobs, handlers(ok=ok, bad=bad)) as worker:
        dead = await until(jobs, "bad", JobState.DEAD)
        assert [(await until(jobs, f"ok-{n}", JobState.DONE)).result for n in range(3)] == [b"well"] * 3
        await enqueue(jobs, Job("later", kind="ok"))
        await until(jobs, "later", JobState.DONE)
    assert (dead.info.reason, dead.info.attempts) == (Reason.FAILED, 1)
    assert dead.info.error.startswith("done, but its end was refused: ")
    assert (worker.tally.completed.total(), worker.tally.dead.total(), worker.tally.lost.total()) == (4, 1, 0)


@pytest.mark.parametrize("queue", [embedded, recorded, tasks])
async def test_an_error_or_note_that_is_no_text_is_kept_as_near_as_can_be(queue: Callable[[], JobQueue]) -> None:
    jobs = queue()
    await enqueue(jobs, Job("a", kind="fails"))

    async def fails(job: RunningJob) -> None:
        await job.progress(0.5, "reads caf\udce9")
        raise ValueError("cannot read caf\udce9")

    async with working(jobs, handlers(fails=fails)):
        dead = await until(jobs, "a", JobState.DEAD)
    assert "cannot read caf\\udce9" in dead.info.error


@pytest.mark.parametrize("found", [b"\xff", b"[]", b'{"state":"claimed"}'])
async def test_a_task_whose_record_is_overwritten_while_it_runs_costs_that_task(found: bytes) -> None:
    world = TaskWorld()
    await world.client.enqueue("a", "bad", "c")
    a, bad, c = [claimed.claim for claimed in await world.client.claim()]
    records = world.memory.records(TASKS)
    stored = await records.get(f"{MAIL}:bad")
    assert stored is not None
    await records.put(f"{MAIL}:bad", found, at=stored.version)
    assert await world.client.heartbeat(a, bad, c) == [True, False, True]
    assert await world.client.enqueue("a", "bad", "new") == [False, False, True]
    assert await world.client.settle(Complete(a), Complete(bad), Complete(c)) == [
        Outcome.DONE,
        Outcome.CONFLICT,
        Outcome.DONE,
    ]
