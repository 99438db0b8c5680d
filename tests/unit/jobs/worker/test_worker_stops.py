"""A worker that stops, waits for its heartbeats, or loses its backend for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from faults import LOST_REPLY, LOST_REQUEST, Fault, FaultyJobs, Network, Script
from unit.jobs.worker.scene import CLOCK, QUICK, enqueue, eventually, memory, numbered, record, until, working
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.errors import StoreBroken
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.worker.heartbeat import HeartbeatState, LoopHeartbeat
from wrasse.jobs.worker.heartbeat_table import HeartbeatTable
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.jobs.worker.worker import Worker
from wrasse.ports.jobs import Budget, Job, JobFilter, JobState, Reason, Requeue, WorkerInfo
from wrasse.ports.outcome import Outcome

ONE_SLOT = replace(QUICK, concurrency=1)
MINUTE = timedelta(minutes=1)
T = TypeVar("T")


async def ok(job: RunningJob) -> None: ...


def any_kind(function: object) -> Handlers:
    made = Handlers()
    made.add("*", function)  # type: ignore[arg-type]
    return made


async def test_a_stop_lets_running_handlers_finish_and_takes_nothing_new() -> None:
    store = memory()
    started, go_on = asyncio.Event(), asyncio.Event()

    async def waits(job: RunningJob) -> None:
        started.set()
        await go_on.wait()

    await enqueue(store.jobs, Job("running"))
    async with working(store.jobs, any_kind(waits), ONE_SLOT) as worker:
        await started.wait()
        worker.stop(MINUTE)
        await enqueue(store.jobs, Job("new"))
        go_on.set()
        await until(store.jobs, "running", JobState.DONE)
    assert (await record(store.jobs, "new")).info.attempts == 0


async def test_a_stop_in_the_middle_of_a_take_loses_nothing_and_takes_nothing_new() -> None:
    store, beats = memory(), Puppet()
    await enqueue(store.jobs, Job("taken"))
    # The answer to the first claim is on its way for longer than the worker lives.
    network = Network(Script({0: Fault(slow_reply=600)}, only="claim"))
    worker = Worker(FaultyJobs(store.jobs, network), any_kind(ok), CLOCK, beats, ONE_SLOT)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        beats.state.set_sending(True)
        await until(store.jobs, "taken", JobState.RUNNING)
        await enqueue(store.jobs, Job("new"))
        worker.stop(timedelta(0))
    infos = [(await record(store.jobs, id)).info for id in ("taken", "new")]
    assert [(info.state, info.attempts, info.interruptions) for info in infos] == [
        (JobState.READY, 1, 1),
        (JobState.READY, 0, 0),
    ]


async def test_a_stop_before_a_take_has_arrived_takes_nothing_after_all() -> None:
    store, beats, script = memory(), Puppet(), Script({0: Fault(slow_request=600)}, only="claim")
    await enqueue(store.jobs, Job("a"))
    worker = Worker(FaultyJobs(store.jobs, Network(script)), any_kind(ok), CLOCK, beats, ONE_SLOT)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        beats.state.set_sending(True)
        await eventually(lambda: len(script.calls) == 1)
        worker.stop(timedelta(0))
    assert (await record(store.jobs, "a")).info.attempts == 0


async def test_after_its_grace_a_worker_gives_back_what_is_unfinished_free_of_charge() -> None:
    store = memory()
    started = asyncio.Event()

    async def sleeps(job: RunningJob) -> None:
        started.set()
        await asyncio.sleep(600)

    await enqueue(store.jobs, Job("a"))
    async with working(store.jobs, any_kind(sleeps)) as worker:
        await started.wait()
        worker.stop(timedelta(milliseconds=10))
    info = (await record(store.jobs, "a")).info
    assert (info.state, info.not_before) == (JobState.READY, None)
    assert (info.failures, info.rescues, info.interruptions) == (0, 0, 1)
    assert worker.tally.interrupted.total() == 1


async def test_a_stopped_worker_is_listed_no_more() -> None:
    store = memory()

    async def listed() -> bool:
        return bool((await store.jobs.counts()).workers)

    async with working(store.jobs, any_kind(ok)):
        await eventually(listed)
    assert not await listed()


async def test_a_second_stop_shortens_the_grace() -> None:
    store = memory()
    started = asyncio.Event()

    async def sleeps(job: RunningJob) -> None:
        started.set()
        await asyncio.sleep(600)

    await enqueue(store.jobs, Job("a"))
    async with asyncio.timeout(30), working(store.jobs, any_kind(sleeps)) as worker:
        await started.wait()
        worker.stop(timedelta(hours=1))
        await asyncio.sleep(0)
        worker.stop(timedelta(0))
    assert (await record(store.jobs, "a")).info.interruptions == 1


async def test_a_thread_that_does_not_end_does_not_keep_a_worker_from_stopping() -> None:
    store = memory()
    started, go_on = threading.Event(), threading.Event()

    def blocks(job: RunningJob) -> None:
        started.set()
        go_on.wait(60)

    await enqueue(store.jobs, Job("a"))
    async with working(store.jobs, any_kind(blocks)) as worker:
        await eventually(started.is_set)
        worker.stop(timedelta(0))
    info = (await record(store.jobs, "a")).info
    go_on.set()
    assert (info.state, info.interruptions) == (JobState.READY, 1)


async def test_cancelling_a_worker_gives_its_jobs_back_too() -> None:
    store = memory()
    started = asyncio.Event()

    async def sleeps(job: RunningJob) -> None:
        started.set()
        await asyncio.sleep(600)

    await enqueue(store.jobs, Job("a"))
    worker = Worker(store.jobs, any_kind(sleeps), CLOCK, LoopHeartbeat(store.jobs, CLOCK), QUICK)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(worker.run())
        await started.wait()
        task.cancel()
    assert task.cancelled()
    assert (await record(store.jobs, "a")).info.state is JobState.READY


async def test_what_was_taken_ahead_and_not_started_is_given_back_in_its_order() -> None:
    store = memory()
    slow = asyncio.Event()

    async def turns_slow(job: RunningJob) -> None:
        if int(job.id.split()[1]) >= 3_000:
            slow.set()
            await asyncio.sleep(600)

    await enqueue(store.jobs, *numbered(4_000))
    async with working(store.jobs, any_kind(turns_slow), ONE_SLOT) as worker:
        await slow.wait()

        async def only_one_held() -> bool:
            return (await store.jobs.counts()).queues[0].running == 1

        await eventually(only_one_held)
        first = (await store.jobs.claim(["low"], 1, worker="w", heartbeat_timeout=MINUTE, request="r")).jobs[0]
        assert first.job.id == "job 3001"
        worker.stop(timedelta(0))
    assert worker.tally.interrupted.total() >= 1


async def test_a_slow_worker_holds_no_more_jobs_than_it_has_slots() -> None:
    store = memory()
    started = asyncio.Event()

    async def sleeps(job: RunningJob) -> None:
        started.set()
        await asyncio.sleep(600)

    await enqueue(store.jobs, *numbered(100))
    async with working(store.jobs, any_kind(sleeps)) as worker:
        await eventually(lambda: worker.tally.active == QUICK.concurrency)
        await asyncio.sleep(0.1)
        assert worker.tally.consumed.total() == QUICK.concurrency


class Puppet:
    """Beats that go out when the test says so."""

    def __init__(self) -> None:
        self.state = HeartbeatState()

    async def run(self, table: HeartbeatTable, worker: WorkerInfo, heartbeat_timeout: timedelta) -> None:
        await asyncio.Event().wait()


async def test_nothing_is_taken_before_the_first_beat_nor_while_beats_do_not_go_out() -> None:
    store = memory()
    beats = Puppet()
    script = Script({})
    worker = Worker(FaultyJobs(store.jobs, Network(script)), any_kind(ok), CLOCK, beats, replace(QUICK, wait=MINUTE))
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        await enqueue(store.jobs, Job("first"))
        await asyncio.sleep(0.05)
        before = list(script.calls)
        beats.state.set_sending(True)
        await until(store.jobs, "first", JobState.DONE)
        await eventually(lambda: script.calls.count("claim") == 2)
        beats.state.set_sending(False)
        await asyncio.sleep(0.05)
        await enqueue(store.jobs, Job("second"))
        await asyncio.sleep(0.05)
        between = (await record(store.jobs, "second")).info.attempts
        beats.state.set_sending(True)
        await until(store.jobs, "second", JobState.DONE)
        worker.stop(timedelta(0))
    assert before == []
    assert between == 0


async def test_a_backend_that_is_down_for_a_while_costs_no_job_and_no_restart() -> None:
    store = memory()
    network = Network(Script({}))
    runs: list[str] = []
    go_on = asyncio.Event()

    async def waits(job: RunningJob) -> None:
        runs.append(job.id)
        await go_on.wait()

    await enqueue(store.jobs, *numbered(8))
    async with working(FaultyJobs(store.jobs, network), any_kind(waits)) as worker:
        await eventually(lambda: len(runs) == QUICK.concurrency)
        network.down = True
        go_on.set()
        await eventually(lambda: worker.tally.unavailable >= 3)
        assert worker.tally.completed.total() == 0
        network.down = False
        await eventually(lambda: worker.tally.completed.total() == 8)
    assert sorted(runs) == [job.id for job in numbered(8)]


@pytest.mark.parametrize("call", ["claim", "settle", "heartbeat"])
@pytest.mark.parametrize("fault", [LOST_REPLY, LOST_REQUEST])
async def test_a_lost_reply_is_asked_for_again_and_nothing_runs_twice(call: str, fault: object) -> None:
    store = memory()
    runs: list[str] = []

    async def notes(job: RunningJob) -> None:
        runs.append(job.id)

    script = Script({0: fault, 2: fault, 3: fault}, only=call)  # type: ignore[dict-item]
    await enqueue(store.jobs, *numbered(50))
    settings = replace(QUICK, heartbeat_timeout=timedelta(milliseconds=600))
    async with working(FaultyJobs(store.jobs, Network(script)), any_kind(notes), settings) as worker:
        await eventually(lambda: worker.tally.completed.total() == 50)
        await eventually(lambda: len(script.calls) >= 4)
    assert sorted(runs) == sorted(job.id for job in numbered(50))
    assert worker.tally.lost.total() == 0


class Broken(Network):
    """To a backend that holds something else for the first three takes, until somebody mends it."""

    taken = 0

    async def call(self, name: str, act: Callable[[], Awaitable[T]]) -> T:
        if name == "claim":
            self.taken += 1
            if self.taken <= 3:
                raise StoreBroken("the token is no number", do="restore it")
        return await super().call(name, act)


async def test_a_damaged_backend_is_told_once_and_asked_again_until_it_is_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = memory()
    await enqueue(store.jobs, *numbered(3))
    async with working(FaultyJobs(store.jobs, Broken(Script({}))), any_kind(ok), QUICK) as worker:
        await eventually(lambda: worker.tally.completed.total() == 3)
    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert told == ["no jobs are claimed: the token is no number; restore it"]


async def test_a_damaged_backend_ends_a_run_of_what_is_pending() -> None:
    jobs = FaultyJobs(memory().jobs, Broken(Script({})))
    worker = Worker(jobs, any_kind(ok), CLOCK, LoopHeartbeat(jobs, CLOCK), QUICK)
    with pytest.raises(StoreBroken, match="the token is no number"):
        await worker.run_pending()


async def test_pending_jobs_run_until_none_is_ready_and_delayed_ones_stay() -> None:
    clock = ManualClock()
    store = Memory(clock)

    async def follows(job: RunningJob) -> None:
        if job.id == "a":
            job.follow_up(Job("b"))
        if job.id == "fails":
            raise ValueError

    made = any_kind(follows)
    worker = Worker(store.jobs, made, clock, LoopHeartbeat(store.jobs, clock), QUICK)
    await enqueue(store.jobs, Job("a"), Job("fails"), Job("later", delay=timedelta(hours=1)))
    assert await worker.run_pending() == 3
    assert [(await record(store.jobs, id)).info.state for id in ("a", "b", "fails", "later")] == [
        JobState.DONE,
        JobState.DONE,
        JobState.READY,
        JobState.READY,
    ]
    clock.advance(timedelta(hours=1))
    assert await worker.run_pending() == 2
    assert (await record(store.jobs, "later")).info.state is JobState.DONE


async def rescued(store: Memory, times: int, *ids: str) -> None:
    """Enqueues jobs that have been in so many deaths."""
    await enqueue(store.jobs, *(Job(id) for id in ids))
    for time in range(times):
        claimed = await store.jobs.claim(
            ["low"], len(ids), worker="dead", heartbeat_timeout=timedelta(microseconds=1), request=f"{ids} {time}"
        )
        await asyncio.sleep(0.001)
        moves = [Requeue(one.claim, Budget.RESCUES, Reason.WORKER_DIED) for one in claimed.jobs]
        assert await store.jobs.move(moves) == (Outcome.DONE,) * len(ids)


async def test_of_jobs_that_were_in_several_deaths_a_worker_holds_one_at_a_time() -> None:
    store = memory()
    await rescued(store, 2, "a", "b", "c")
    await enqueue(store.jobs, Job("fresh 1"), Job("fresh 2"))
    held_at_start: dict[str, set[str]] = {}

    async def looks(job: RunningJob) -> None:
        held_at_start[job.id] = {info.id for info in await store.jobs.page(JobState.RUNNING, JobFilter(), None, 10)}

    slow = Network(Script(dict.fromkeys(range(100), Fault(slow_request=0.05)), only="settle"))
    async with working(FaultyJobs(store.jobs, slow), any_kind(looks)) as worker:
        await eventually(lambda: worker.tally.completed.total() == 5)
    assert {id: held_at_start[id] & {"a", "b", "c"} for id in "abc"} == {id: {id} for id in "abc"}
    assert {(await record(store.jobs, id)).info.failures for id in "abc"} == {0}


async def test_jobs_that_were_in_one_death_run_side_by_side() -> None:
    store = memory()
    await rescued(store, 1, "a", "b", "c")
    together = asyncio.Barrier(3)

    async def meets(job: RunningJob) -> None:
        async with asyncio.timeout(30):
            await together.wait()

    async with working(store.jobs, any_kind(meets)) as worker:
        await eventually(lambda: worker.tally.completed.total() == 3)
    assert worker.tally.interrupted.total() == 0


async def test_a_stop_gives_back_also_what_waits_for_others_to_be_out_of_harms_way() -> None:
    store, beats = memory(), Puppet()
    network = Network(Script(dict.fromkeys(range(4), LOST_REQUEST), only="settle"))
    await rescued(store, 2, "a", "b")
    worker = Worker(FaultyJobs(store.jobs, network), any_kind(ok), CLOCK, beats, QUICK)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        beats.state.set_sending(True)
        await eventually(lambda: worker.tally.unavailable == 2)
        worker.stop(timedelta(0))
    assert [(await record(store.jobs, id)).info.state for id in "ab"] == [JobState.READY] * 2
