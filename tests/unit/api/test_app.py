"""wrasse in a program: put, work, wait, hold, and tests of handlers without a worker."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

import wrasse
from wrasse.clock import ManualClock
from wrasse.errors import (
    BadDuration,
    ConfigError,
    JobFailed,
    LeaseLost,
    UnknownName,
    UsageError,
    WrasseError,
    first_error,
)
from wrasse.jobs.new_job import NewJob


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[wrasse.App]:
    monkeypatch.chdir(tmp_path)
    async with wrasse.connect("memory:") as app:
        yield app


def test_nothing_is_opened_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = wrasse.sync.connect("sqlite:here.db")
    assert not list(tmp_path.iterdir())
    app.jobs.enqueue("x")
    assert (tmp_path / "here.db").exists()
    app.close()


async def test_handlers_run_what_is_ready_and_results_are_kept(app: wrasse.App) -> None:
    @app.handler("double")
    async def double(job: wrasse.RunningJob) -> int:
        return int(job.data) * 2

    @app.handler("plain")
    def plain(job: wrasse.RunningJob) -> str:
        return job.payload.decode()

    await app.jobs.enqueue("double", 21, id="a")
    await app.jobs.enqueue("plain", b"\xc3\xa9", id="b")
    assert await app.run_pending() == 2
    assert [await app.jobs.wait("a"), await app.jobs.wait("b")] == [42, "é"]


@pytest.mark.parametrize(
    ("data", "payload"),
    [(b"raw\x00", b"raw\x00"), ("text", b'"text"'), ({"a": 1}, b'{"a":1}'), (None, b""), ([1, None], b"[1,null]")],
)
async def test_bytes_go_out_as_they_are_and_the_rest_as_json(app: wrasse.App, data: object, payload: bytes) -> None:
    put = await app.jobs.enqueue("x", data)
    record = await app.jobs.get(put.id)
    assert record is not None
    assert record.job.payload == payload


async def test_data_that_is_no_json_is_refused_before_anything_is_put(app: wrasse.App) -> None:
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        await app.jobs.enqueue("x", object())
    assert (await app.jobs.counts()).queues == ()


async def test_a_put_takes_priority_delay_timeout_headers_and_id(app: wrasse.App) -> None:
    put = await app.jobs.enqueue("x", b"", priority="high", delay="5m", id="mine", timeout="9s", headers={"a": "b"})
    again = await app.jobs.enqueue("x", b"", id="mine")
    record = await app.jobs.get("mine")
    assert record is not None
    assert (put.new, again.new) == (True, False)
    assert (record.job.queue, record.job.timeout, record.job.headers) == ("high", timedelta(seconds=9), {"a": "b"})
    assert record.info.not_before is not None


async def test_a_scheduled_job_is_listed_as_scheduled_and_not_as_ready(app: wrasse.App) -> None:
    later, _ = await app.jobs.enqueue("x", delay="1h"), await app.jobs.enqueue("x", id="now")
    listed = {state: [each.id async for each in app.jobs.list(state)] for state in ("ready", "scheduled")}
    info = await later.info()
    assert listed == {"ready": ["now"], "scheduled": [later.id]}
    assert info is not None
    assert (info.status, info.not_before is not None) == ("scheduled", True)


async def test_mistakes_in_a_put_are_told(app: wrasse.App) -> None:
    with pytest.raises(UnknownName, match="priority 'hihg'"):
        await app.jobs.enqueue("x", priority="hihg")
    with pytest.raises(BadDuration, match="no unit"):
        await app.jobs.enqueue("x", delay="5")
    with pytest.raises(UsageError, match="duration of -1s"):
        await app.jobs.enqueue("x", delay=timedelta(seconds=-1))


async def test_many_are_put_in_their_order(app: wrasse.App) -> None:
    puts = await app.jobs.enqueue_many(NewJob("x", n, id=f"j-{n}") for n in range(2500))
    assert [put.id for put in puts] == [f"j-{n}" for n in range(2500)]
    assert [info.id async for info in app.jobs.list("ready")] == [f"j-{n}" for n in range(2500)]


async def test_waiting_for_a_job_that_dies_raises(app: wrasse.App) -> None:
    await app.jobs.enqueue("x", id="a")
    assert await app.jobs.cancel("a", "not needed")
    with pytest.raises(JobFailed, match="cancelled"):
        await app.jobs.wait("a")
    with pytest.raises(UsageError, match="no job 'b'"):
        await app.jobs.wait("b")


async def test_waiting_longer_than_the_time_given_raises(app: wrasse.App) -> None:
    await app.jobs.enqueue("x", id="a")
    with pytest.raises(TimeoutError):
        await app.jobs.wait("a", timeout="10ms")


async def test_a_dead_job_is_requeued_and_another_is_not(app: wrasse.App) -> None:
    await app.jobs.enqueue("x", id="a")
    assert not await app.jobs.requeue("a")
    await app.jobs.cancel("a")
    assert await app.jobs.requeue("a")
    assert not await app.jobs.cancel("unknown")


async def test_a_kind_has_one_handler(app: wrasse.App) -> None:
    app.handler("x")(lambda job: None)
    with pytest.raises(UsageError, match="two handlers"):
        app.handler("x")(lambda job: None)


async def test_a_typed_payload_is_checked(app: wrasse.App) -> None:
    @dataclass
    class Picture:
        path: str
        width: int

    seen: list[Picture] = []
    app.handler("resize")(lambda job: seen.append(job.decode(Picture)))
    await app.jobs.enqueue("resize", {"path": "a.png", "width": 3})
    await app.jobs.enqueue("resize", {"path": "a.png", "width": "wide"}, id="bad")
    await app.run_pending()
    record = await app.jobs.get("bad")
    assert seen == [Picture("a.png", 3)]
    assert record is not None
    assert record.info.reason == "invalid_payload"


async def test_a_worker_in_a_program_works_until_it_is_stopped(app: wrasse.App) -> None:
    app.handler("x")(lambda job: "done")
    worker = app.worker(concurrency=2)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(worker.run())
        put = await app.jobs.enqueue("x")
        assert await app.jobs.wait(put.id) == "done"
        worker.stop(grace="1s")
    assert running.done()


@pytest.mark.parametrize("signals", [True, False], ids=["its own", "the program's"])
async def test_a_worker_leaves_signals_to_the_program_it_is_part_of(app: wrasse.App, signals: bool) -> None:
    during = []

    @app.handler("x")
    async def x(job: wrasse.RunningJob) -> None:
        during.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    worker = app.worker(signals=signals)
    run = asyncio.ensure_future(worker.run())
    await app.jobs.enqueue("x", id="a")
    await app.jobs.wait("a", timeout="30s")
    worker.stop("0s")
    await run
    assert [each is before for each in during] == [not signals]


async def test_a_worker_that_was_stopped_before_it_started_does_not_start(app: wrasse.App) -> None:
    worker = app.worker()
    worker.stop()
    async with asyncio.timeout(5):
        await worker.run()
    assert (await app.jobs.counts()).workers == ()


def test_out_of_many_errors_the_one_that_says_what_to_do_is_told() -> None:
    ours, other = WrasseError("ours", do="this"), ValueError("other")
    assert first_error(BaseExceptionGroup("", [other, ExceptionGroup("", [ours])])) is ours
    assert first_error(BaseExceptionGroup("", [other, KeyError()])) is other


async def test_one_holds_a_lease_and_the_next_token_is_higher(app: wrasse.App) -> None:
    async with app.lease("k") as first:
        with pytest.raises(LeaseLost, match="another holder"):
            async with app.lease("k", wait="0s"):
                pass
    async with app.lease("k", ttl="5s") as second:
        assert second.token > first.token


async def test_the_engine_of_an_app_plans_and_sweeps() -> None:
    clock = ManualClock()
    async with wrasse.connect("memory:", clock=clock) as app:
        app.handler("x")(lambda job: None)
        await app.jobs.enqueue("x", id="old")
        await app.run_pending()
        clock.advance(timedelta(days=2))
        engine = await app.engine()
        assert [each.suspect for each in (await engine.plan("finished_jobs")).plan] == ["old"]
        assert (await engine.sweep_now("finished_jobs")).done == 1


async def test_a_url_leaves_files_and_other_programs_variables_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrasse.yaml").write_text("worker: {heartbeat_ttl: 1s}")
    monkeypatch.setenv("REDIS_ADDR", "elsewhere:6379")
    monkeypatch.setenv("WRASSE_WORKER_COUNT", "3")
    assert wrasse.connect("memory:").config.settings.worker.count == 3
    with pytest.raises(ConfigError, match=r"wrasse\.yaml line 1"):
        wrasse.connect()


async def test_a_settings_file_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("worker: {queues: {high: h, low: l}}")
    assert wrasse.connect(path).config.settings.worker.queues == {"high": "h", "low": "l"}
    assert wrasse.connect(str(path)).config.settings.worker.queues == {"high": "h", "low": "l"}


def test_an_app_belongs_to_one_event_loop_until_it_is_closed() -> None:
    app = wrasse.connect("memory:")
    asyncio.run(app.jobs.enqueue("x"))
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(app.jobs.enqueue("x"))
    asyncio.run(app.close())
    asyncio.run(app.jobs.enqueue("x"))


def test_a_program_without_a_loop_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with wrasse.sync.connect("sqlite:sync.db") as app:
        app.handler("x")(lambda job: job.data + 1)
        put = app.jobs.enqueue("x", 1, id="a")
        assert app.run_pending() == 1
        record = app.jobs.get("a")
        assert record is not None
        assert (put.new, app.jobs.wait("a"), record.info.state) == (True, 2, "done")
        with app.lease("k") as lease:
            assert lease.alive
            with pytest.raises(LeaseLost), app.lease("k", wait="0s"):
                pass
        app.jobs.enqueue("x", 1, id="b")
        assert app.jobs.cancel("b")
        assert app.jobs.requeue("b")
        assert [each.ready for each in app.jobs.counts().queues] == [1]


def test_an_error_in_a_body_under_a_lease_gives_the_lease_back() -> None:
    with wrasse.sync.connect("memory:") as app:
        with pytest.raises(ZeroDivisionError), app.lease("k"):
            _ = 1 / 0
        with app.lease("k", wait="0s") as lease:
            assert lease.alive
