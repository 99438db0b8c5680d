"""A worker and its handlers: how attempts end, and what becomes of their jobs."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from unit.jobs.worker.scene import QUICK, SOON, enqueue, eventually, handlers, memory, record, until, working
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.jobs.worker.worker import worker_id
from wrasse.ports.jobs import Cancel, Job, JobState, Reason

ONE_SLOT = replace(QUICK, concurrency=1)


async def ok(job: RunningJob) -> None: ...


async def fails(job: RunningJob) -> None:
    raise ValueError("no such picture")


async def test_what_a_handler_returns_is_kept_as_the_result() -> None:
    store = memory()
    await enqueue(store.jobs, Job("a", kind="double", payload=b'{"number": 21}'), Job("b", kind="raw"))

    async def double(job: RunningJob) -> object:
        return {"number": job.data["number"] * 2}

    def raw(job: RunningJob) -> object:
        return b"\x00\xff"

    async with working(store.jobs, handlers(double=double, raw=raw)):
        assert (await until(store.jobs, "a", JobState.DONE)).result == b'{"number":42}'
        assert (await until(store.jobs, "b", JobState.DONE)).result == b"\x00\xff"


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_failing_job_runs_exactly_four_times_and_is_then_dead_with_its_reason(in_thread: bool) -> None:
    store = memory()
    await enqueue(store.jobs, Job("a", kind="fails", queue="high"))
    runs = []

    def sync_fails(job: RunningJob) -> None:
        runs.append(job.attempt)
        raise ValueError("no such picture")

    async def async_fails(job: RunningJob) -> None:
        sync_fails(job)

    async with working(store.jobs, handlers(fails=sync_fails if in_thread else async_fails)):
        dead = await until(store.jobs, "a", JobState.DEAD)
    assert runs == [1, 2, 3, 4]
    assert (dead.info.reason, dead.info.failures, dead.info.queue) == (Reason.FAILED, 4, "high")
    assert dead.info.error.startswith("ValueError: no such picture (test_worker.py:")
    assert [attempt.reason for attempt in dead.history] == [Reason.FAILED] * 4


async def test_a_slot_is_free_while_a_failed_job_waits_for_its_next_attempt() -> None:
    store = memory()
    settings = replace(ONE_SLOT, retry=RetryPolicy(base=timedelta(hours=1), max=timedelta(hours=1)))
    await enqueue(store.jobs, Job("fails", kind="fails"), Job("next", kind="ok"))
    async with working(store.jobs, handlers(fails=fails, ok=ok), settings):
        await until(store.jobs, "next", JobState.DONE)
        waits = await record(store.jobs, "fails")
    assert (waits.info.state, waits.info.worker) == (JobState.READY, "")
    assert waits.info.not_before is not None


async def test_a_job_of_a_kind_nobody_knows_fails_as_such_and_is_kept() -> None:
    store = memory()
    await enqueue(store.jobs, Job("a", kind="resize"))
    async with working(store.jobs, handlers(other=ok)):
        dead = await until(store.jobs, "a", JobState.DEAD)
    assert (dead.info.reason, dead.info.attempts) == (Reason.NO_HANDLER, 4)
    assert "'resize'" in dead.info.error


@pytest.mark.parametrize("payload", [b"\xff", b"{", bytes(range(256))])
async def test_a_payload_that_cannot_be_read_is_buried_at_once_with_its_bytes(payload: bytes) -> None:
    store = memory()
    await enqueue(store.jobs, Job("a", kind="reads", payload=payload))

    async def reads(job: RunningJob) -> object:
        return job.data

    async with working(store.jobs, handlers(reads=reads)) as worker:
        dead = await until(store.jobs, "a", JobState.DEAD)
        await eventually(lambda: worker.tally.dead.total() == 1)
    assert (dead.info.reason, dead.info.attempts) == (Reason.INVALID_PAYLOAD, 1)
    assert dead.job.payload == payload


async def test_a_handler_that_takes_too_long_is_cancelled_and_the_job_says_so() -> None:
    store = memory()
    await enqueue(store.jobs, Job("a", kind="sleeps", timeout=timedelta(milliseconds=30)))
    ended = []

    async def sleeps(job: RunningJob) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(job.gone)

    settings = replace(QUICK, retry=replace(SOON, failures_max=0))
    async with working(store.jobs, handlers(sleeps=sleeps), settings):
        dead = await until(store.jobs, "a", JobState.DEAD)
    assert ended == [True]
    assert (dead.info.reason, dead.info.error) == (Reason.TIMEOUT, "took longer than 30ms")


async def test_a_thread_that_takes_too_long_is_settled_and_keeps_its_slot() -> None:
    store = memory()
    await enqueue(store.jobs, Job("slow", kind="slow", timeout=timedelta(milliseconds=30)))
    go_on, saw = threading.Event(), []

    def slow(job: RunningJob) -> None:
        go_on.wait(60)
        saw.append((job.gone, job.still_mine_blocking()))

    settings = replace(ONE_SLOT, retry=replace(SOON, failures_max=0))
    async with working(store.jobs, handlers(slow=slow, ok=ok), settings) as worker:
        dead = await until(store.jobs, "slow", JobState.DEAD)
        await enqueue(store.jobs, Job("next", kind="ok"))
        await eventually(lambda: worker.tally.dead.total() == 1)
        assert (await record(store.jobs, "next")).info.state is JobState.READY
        go_on.set()
        await until(store.jobs, "next", JobState.DONE)
    assert dead.info.reason is Reason.TIMEOUT
    assert saw == [(True, False)]


async def test_raising_timing_out_and_being_cancelled_have_distinct_reasons() -> None:
    store = memory()
    started = asyncio.Event()

    async def sleeps(job: RunningJob) -> None:
        started.set()
        await asyncio.sleep(600)

    settings = replace(QUICK, retry=replace(SOON, failures_max=0))
    await enqueue(
        store.jobs, Job("raises", kind="fails"), Job("late", kind="sleeps", timeout=timedelta(milliseconds=20))
    )
    async with working(store.jobs, handlers(fails=fails, sleeps=sleeps), settings) as worker:
        raised, late = await until(store.jobs, "raises", JobState.DEAD), await until(store.jobs, "late", JobState.DEAD)
        started.clear()
        await enqueue(store.jobs, Job("stopped", kind="sleeps"))
        await started.wait()
        await eventually(lambda: worker.tally.dead.total() == 2)
        worker.stop(timedelta(0))
        stopped = await until(store.jobs, "stopped", JobState.READY)
    reasons = (raised.info.reason, late.info.reason, stopped.history[-1].reason)
    assert reasons == (Reason.FAILED, Reason.TIMEOUT, Reason.INTERRUPTED)
    assert (stopped.info.failures, stopped.info.interruptions) == (0, 1)
    assert {reason: count.total() for reason, count in worker.tally.failed.items()} == {
        Reason.FAILED: 1,
        Reason.TIMEOUT: 1,
    }


async def test_a_handler_whose_job_is_cancelled_by_somebody_is_told_and_cancelled() -> None:
    store = memory()
    await enqueue(store.jobs, Job("a", kind="asks"))
    answers, ended = [], asyncio.Event()

    async def asks(job: RunningJob) -> None:
        answers.append(await job.still_mine())
        await store.jobs.move([Cancel(job.id)])
        answers.append(await job.still_mine())
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    settings = replace(QUICK, heartbeat_timeout=timedelta(milliseconds=300))
    async with working(store.jobs, handlers(asks=asks), settings) as worker:
        await asyncio.wait_for(ended.wait(), 30)
        await eventually(lambda: worker.tally.lost.total() == 1)
    assert answers == [True, False]
    assert (await record(store.jobs, "a")).info.reason is Reason.CANCELLED


async def test_a_finish_after_the_hold_is_gone_is_refused_and_counted_as_lost() -> None:
    store = memory()
    await enqueue(store.jobs, Job("a", kind="late"))

    async def late(job: RunningJob) -> str:
        await store.jobs.move([Cancel(job.id)])
        return "too late"

    async with working(store.jobs, handlers(late=late)) as worker:
        await eventually(lambda: worker.tally.lost.total() == 1)
        assert worker.tally.completed.total() == 0
    assert (await record(store.jobs, "a")).result is None


async def test_what_a_handler_does_to_its_job_object_changes_nothing_about_the_job() -> None:
    store = memory()
    await enqueue(store.jobs, Job("a", kind="changes", payload=b'{"x": 1}', headers={"h": "1"}))

    async def changes(job: RunningJob) -> None:
        job.data["x"] = 2
        with pytest.raises(AttributeError):
            job.id = "b"  # type: ignore[misc]

    async with working(store.jobs, handlers(changes=changes)):
        done = await until(store.jobs, "a", JobState.DONE)
    assert done.job.payload == b'{"x": 1}'


async def test_what_a_handler_sets_in_its_context_does_not_reach_the_next() -> None:
    store = memory()
    seen: list[str] = []
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="clean")

    async def sets(job: RunningJob) -> None:
        seen.append(name.get())
        name.set(job.id)
        await asyncio.sleep(0)
        assert name.get() == job.id

    def sets_in_thread(job: RunningJob) -> None:
        seen.append(name.get())
        name.set(job.id)

    await enqueue(store.jobs, *(Job(f"{kind} {n}", kind=kind) for n in range(3) for kind in ("sets", "thread")))
    async with working(store.jobs, handlers(sets=sets, thread=sets_in_thread), ONE_SLOT) as worker:
        await eventually(lambda: worker.tally.completed.total() == 6)
    assert seen == ["clean"] * 6


async def test_timeouts_and_task_groups_work_inside_a_handler_also_after_others_were_cut() -> None:
    store = memory()

    async def sleeps(job: RunningJob) -> None:
        await asyncio.sleep(600)

    async def breaks() -> None:
        raise ValueError

    async def inner(job: RunningJob) -> list[str]:
        seen = []
        try:
            async with asyncio.timeout(0.01), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(600))
        except TimeoutError:
            seen.append("timeout")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(breaks())
                await asyncio.sleep(600)
        except* ValueError:
            seen.append("group")
        return seen

    settings = replace(ONE_SLOT, retry=replace(SOON, failures_max=0))
    await enqueue(store.jobs, Job("cut", kind="sleeps", timeout=timedelta(milliseconds=10)), Job("inner", kind="inner"))
    async with working(store.jobs, handlers(sleeps=sleeps, inner=inner), settings):
        assert (await until(store.jobs, "inner", JobState.DONE)).result == b'["timeout","group"]'


async def test_a_slot_that_was_cut_goes_on_as_if_it_had_not_been() -> None:
    store = memory()

    async def sleeps(job: RunningJob) -> None:
        await asyncio.sleep(600)

    async def cancels_itself(job: RunningJob) -> None:
        raise asyncio.CancelledError

    settings = replace(ONE_SLOT, retry=replace(SOON, failures_max=0))
    by_kind = handlers(sleeps=sleeps, cancels=cancels_itself, ok=ok)
    await enqueue(store.jobs, Job("cut", kind="sleeps", timeout=timedelta(milliseconds=10)), Job("odd", kind="cancels"))
    await enqueue(store.jobs, Job("last", kind="ok"))
    async with working(store.jobs, by_kind, settings):
        await until(store.jobs, "last", JobState.DONE)
        assert (await until(store.jobs, "odd", JobState.DEAD)).info.reason is Reason.FAILED


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), StopIteration()])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_handler_that_raises_what_would_end_others_only_fails(error: BaseException, in_thread: bool) -> None:
    store = memory()
    await enqueue(store.jobs, Job("a", kind="odd"), Job("b", kind="ok"))

    def odd(job: RunningJob) -> None:
        raise error

    async def odd_in_loop(job: RunningJob) -> None:
        raise error

    settings = replace(ONE_SLOT, retry=replace(SOON, failures_max=0))
    async with working(store.jobs, handlers(odd=odd if in_thread else odd_in_loop, ok=ok), settings):
        assert (await until(store.jobs, "a", JobState.DEAD)).info.reason is Reason.FAILED
        await until(store.jobs, "b", JobState.DONE)


async def test_a_result_that_cannot_be_kept_is_a_failure_and_not_dropped() -> None:
    store = memory()
    await enqueue(store.jobs, Job("a", kind="odd"))

    async def odd(job: RunningJob) -> object:
        return object()

    async with working(store.jobs, handlers(odd=odd)):
        dead = await until(store.jobs, "a", JobState.DEAD)
    assert "Encoding objects of type object is unsupported" in dead.info.error


async def test_jobs_that_follow_are_put_when_the_handler_finishes_and_not_when_it_fails() -> None:
    store = memory()

    async def follows(job: RunningJob) -> None:
        job.follow_up(Job(f"after {job.id}", kind="ok"))
        if job.id == "fails":
            raise ValueError

    await enqueue(store.jobs, Job("good", kind="follows"), Job("fails", kind="follows"))
    async with working(store.jobs, handlers(follows=follows, ok=ok)):
        await until(store.jobs, "fails", JobState.DEAD)
        await until(store.jobs, "good", JobState.DONE)
        await until(store.jobs, "after good", JobState.DONE)
    assert await store.jobs.get("after fails") is None


async def test_no_more_handlers_run_at_once_than_there_are_slots() -> None:
    store = memory()
    now_running, most = 0, 0

    async def counts(job: RunningJob) -> None:
        nonlocal now_running, most
        now_running += 1
        most = max(most, now_running)
        await asyncio.sleep(0.001)
        now_running -= 1

    await enqueue(store.jobs, *(Job(f"{n}", kind="counts") for n in range(100)))
    async with working(store.jobs, handlers(counts=counts)) as worker:
        await eventually(lambda: worker.tally.completed.total() == 100)
    assert most == QUICK.concurrency


async def test_every_job_of_the_first_queue_comes_before_any_of_the_second() -> None:
    store = memory()
    order: list[str] = []

    async def notes(job: RunningJob) -> None:
        order.append(job.queue)

    await enqueue(store.jobs, *(Job(f"{q} {n}", kind="notes", queue=q) for n in range(20) for q in ("low", "high")))
    async with working(store.jobs, handlers(notes=notes), ONE_SLOT) as worker:
        await eventually(lambda: worker.tally.completed.total() == 40)
    assert order == ["high"] * 20 + ["low"] * 20


def test_worker_ids_hold_no_colon_and_never_repeat() -> None:
    ids = {worker_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert not any(":" in id for id in ids)


async def test_counters_match_a_scripted_run_exactly() -> None:
    store = memory()
    attempts: dict[str, int] = {}

    async def script(job: RunningJob) -> None:
        attempts[job.id] = attempts.get(job.id, 0) + 1
        if job.id == "never" or (job.id.startswith("twice") and attempts[job.id] <= 2):
            raise ValueError(job.id)

    await enqueue(
        store.jobs, *(Job(f"good {n}") for n in range(96)), *(Job(f"twice {n}") for n in range(3)), Job("never")
    )
    made = Handlers()
    made.add("", script)
    async with working(store.jobs, made) as worker:
        tally = worker.tally
        await eventually(lambda: tally.completed.total() == 99 and tally.dead.total() == 1)
    assert (tally.consumed["low"], tally.completed["low"]) == (99 + 6 + 4, 99)
    assert (tally.failed[Reason.FAILED]["low"], tally.requeued["low"], tally.dead["low"]) == (10, 9, 1)
    assert (tally.lost.total(), tally.interrupted.total(), tally.active) == (0, 0, 0)
    assert sum(tally.durations.of("low").counts) == 109


async def test_the_measured_duration_excludes_the_wait_between_attempts() -> None:
    store = memory()
    settings = replace(QUICK, retry=RetryPolicy(3, timedelta(milliseconds=200), timedelta(milliseconds=200)))
    await enqueue(store.jobs, Job("a", kind="fails"))
    async with working(store.jobs, handlers(fails=fails), settings) as worker:
        await until(store.jobs, "a", JobState.DEAD)
    histogram = worker.tally.durations.of("low")
    assert sum(histogram.counts) == 4
    assert histogram.seconds < 0.2
