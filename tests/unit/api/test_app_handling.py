"""What a program says about its handlers: retries per kind and exception, later, never, middleware, progress."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest

import wrasse
from wrasse.errors import UsageError
from wrasse.ports.jobs import JobRecord, JobState


@pytest.fixture(params=["memory:", "sqlite:here.db"])
async def app(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[wrasse.App]:
    monkeypatch.chdir(tmp_path)
    async with wrasse.connect(request.param) as app:
        yield app


async def ran(app: wrasse.App, kind: str) -> JobRecord:
    put = await app.jobs.enqueue(kind)
    await app.run_pending()
    record = await app.jobs.get(put.id)
    assert record is not None
    return record


async def told(app: wrasse.App, id: str) -> JobRecord:
    while True:
        record = await app.jobs.get(id)
        if record is not None and record.progress is not None:
            return record
        await asyncio.sleep(0.01)


def raising(error: BaseException) -> Callable[[wrasse.RunningJob], object]:
    def handler(job: wrasse.RunningJob) -> object:
        raise error

    return handler


async def test_a_kind_has_its_own_retries(app: wrasse.App) -> None:
    app.handler("once", retry=wrasse.Retry(failures_max=0))(raising(OSError("down")))
    app.handler("slow", retry=wrasse.Retry(base="1h", max="2h"))(raising(OSError("down")))
    once, slow = await ran(app, "once"), await ran(app, "slow")
    assert (once.info.state, once.info.failures) == (JobState.DEAD, 1)
    assert slow.info.not_before is not None
    assert slow.info.not_before - slow.history[0].ended_at >= timedelta(hours=1)


async def test_an_exception_may_be_tried_again_or_not(app: wrasse.App) -> None:
    retry = wrasse.Retry(only=(OSError,), never=(FileNotFoundError,))
    app.handler("only", retry=retry)(raising(ConnectionError("again")))
    app.handler("other", retry=retry)(raising(ValueError("no use")))
    app.handler("never", retry=retry)(raising(FileNotFoundError("no use")))
    assert (await ran(app, "only")).info.state is JobState.READY
    other, never = await ran(app, "other"), await ran(app, "never")
    assert [other.info.state, never.info.state] == [JobState.DEAD] * 2
    assert other.info.reason == "failed"
    assert "ValueError: no use" in other.info.error


async def test_a_handler_may_ask_for_a_later_attempt_and_spends_a_failure(app: wrasse.App) -> None:
    app.handler("later", retry=wrasse.Retry(only=(OSError,)))(raising(wrasse.RetryLater("2h", "the shop is closed")))
    record = await ran(app, "later")
    assert (record.info.state, record.info.failures, record.history[0].error) == (
        JobState.READY,
        1,
        "the shop is closed",
    )
    assert record.info.not_before is not None
    assert record.info.not_before - record.history[0].ended_at == timedelta(hours=2)


async def test_asking_for_later_too_often_buries(app: wrasse.App) -> None:
    app.handler("later", retry=wrasse.Retry(failures_max=0))(raising(wrasse.RetryLater("1s")))
    assert (await ran(app, "later")).info.state is JobState.DEAD


async def test_a_handler_may_give_up(app: wrasse.App) -> None:
    app.handler("x")(raising(wrasse.GiveUp("the order was deleted")))
    record = await ran(app, "x")
    assert (record.info.state, record.info.reason, record.info.error) == (
        JobState.DEAD,
        "failed",
        "the order was deleted",
    )


def test_mistakes_in_a_retry_are_told() -> None:
    with pytest.raises(UsageError, match="failures_max=-1"):
        wrasse.Retry(failures_max=-1)
    with pytest.raises(UsageError, match="shorter than its base"):
        wrasse.Retry(base="1m", max="1s")
    with pytest.raises(UsageError, match="no exception"):
        wrasse.Retry(only=("OSError",))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="less than zero"):
        wrasse.RetryLater(timedelta(seconds=-1))


def test_asking_for_later_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(wrasse.RetryLater("5s", "busy")))
    assert (copy.delay, copy.message) == (timedelta(seconds=5), "busy")


async def test_middleware_wraps_async_and_plain_handlers_in_the_order_of_registration(app: wrasse.App) -> None:
    seen: list[str] = []
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")

    @app.middleware
    async def outer(job: wrasse.RunningJob, call_next: Callable[..., object]) -> object:
        seen.append(f"outer {job.kind}")
        tenant.set("acme")
        return [await call_next(job)]  # type: ignore[misc]

    @app.middleware
    async def inner(job: wrasse.RunningJob, call_next: Callable[..., object]) -> object:
        seen.append("inner")
        await asyncio.sleep(0)
        return await call_next(job)  # type: ignore[misc]

    @app.handler("async")
    async def handle(job: wrasse.RunningJob) -> str:
        return f"async {tenant.get()}"

    app.handler("plain")(lambda job: f"plain {tenant.get()}")
    one, two = await app.jobs.enqueue("async"), await app.jobs.enqueue("plain")
    await app.run_pending()
    assert [await one.result(), await two.result()] == [["async acme"], ["plain acme"]]
    assert sorted(seen) == ["inner", "inner", "outer async", "outer plain"]
    assert seen[0].startswith("outer")
    assert tenant.get() == "nobody"


async def test_middleware_may_answer_itself_and_see_what_was_raised(app: wrasse.App) -> None:
    @app.middleware
    async def mend(job: wrasse.RunningJob, call_next: Callable[..., object]) -> object:
        if job.kind == "skipped":
            return "not called"
        try:
            return await call_next(job)  # type: ignore[misc]
        except ZeroDivisionError:
            return "mended"

    app.handler("*")(lambda job: 1 // 0)
    skipped, mended = await app.jobs.enqueue("skipped"), await app.jobs.enqueue("broken")
    await app.run_pending()
    assert [await skipped.result(), await mended.result()] == ["not called", "mended"]


def test_middleware_that_is_not_async_is_refused() -> None:
    with pytest.raises(UsageError, match="not async"):
        wrasse.connect("memory:").middleware(lambda job, call_next: None)  # type: ignore[arg-type, return-value]


async def test_a_timeout_reaches_a_handler_inside_middleware(app: wrasse.App) -> None:
    @app.middleware
    async def through(job: wrasse.RunningJob, call_next: Callable[..., object]) -> object:
        return await call_next(job)  # type: ignore[misc]

    @app.handler("hangs")
    async def hangs(job: wrasse.RunningJob) -> None:
        await asyncio.Event().wait()

    put = await app.jobs.enqueue("hangs", timeout="20ms")
    await app.run_pending()
    record = await app.jobs.get(put.id)
    assert record is not None
    assert record.history[0].reason == "timeout"


async def test_the_last_progress_is_there_when_the_job_is_done(app: wrasse.App) -> None:
    @app.handler("async")
    async def count(job: wrasse.RunningJob) -> None:
        for step in range(5):
            await job.progress(step / 4, f"step {step}")

    @app.handler("plain")
    def plain(job: wrasse.RunningJob) -> None:
        job.progress_blocking(0.5, "half")

    one, two = await ran(app, "async"), await ran(app, "plain")
    assert one.progress is not None
    assert two.progress is not None
    assert (one.progress.fraction, one.progress.note, two.progress.note) == (1.0, "step 4", "half")
    assert (await app.jobs.counts()).workers == ()


async def test_progress_is_seen_while_the_handler_runs(app: wrasse.App) -> None:
    seen = asyncio.Event()

    @app.handler("x")
    async def work(job: wrasse.RunningJob) -> None:
        await job.progress(0.25, "a quarter")
        await seen.wait()

    worker = app.worker(concurrency=1)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        put = await app.jobs.enqueue("x")
        record = await told(app, put.id)
        seen.set()
        await put.result()
        worker.stop("1s")
    assert record.progress is not None
    assert (record.info.state, record.progress.note) == (JobState.RUNNING, "a quarter")


async def test_a_progress_beyond_the_whole_is_refused(app: wrasse.App) -> None:
    @app.handler("x")
    async def work(job: wrasse.RunningJob) -> None:
        await job.progress(40)

    assert "a progress of 40" in (await ran(app, "x")).history[0].error


async def test_a_periodic_function_is_put_at_its_slots_and_run_by_a_worker(app: wrasse.App) -> None:
    ran = asyncio.Event()

    @app.every("1s", data={"a": 1}, priority="high")
    async def tick(job: wrasse.RunningJob) -> None:
        assert job.id.startswith("periodic/tick/")
        assert (job.data, job.queue) == ({"a": 1}, "high")
        ran.set()

    worker = app.worker(concurrency=1)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(worker.run())
        await ran.wait()
        worker.stop("5s")
    assert running.done()


def test_mistakes_in_a_periodic_function_are_told() -> None:
    app = wrasse.connect("memory:")
    app.every("5m", name="a")(lambda job: None)
    with pytest.raises(UsageError, match="two periodic jobs"):
        app.cron("@daily", name="a")(lambda job: None)
    with pytest.raises(UsageError, match="missed slots 'some'"):
        app.every("5m", missed="some")
    with pytest.raises(UsageError, match="priority 'urgent'"):
        app.every("5m", priority="urgent")
    with pytest.raises(UsageError, match="an interval of"):
        app.every("10ms")
    with pytest.raises(UsageError, match="has 1 fields"):
        app.cron("daily")
