"""What a put gives back in a program: results awaited, unique names, groups with a callback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import wrasse
from wrasse.errors import JobFailed, UsageError
from wrasse.jobs.new_job import NewJob


@pytest.fixture(params=["memory:", "sqlite:here.db"])
async def app(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[wrasse.App]:
    monkeypatch.chdir(tmp_path)
    async with wrasse.connect(request.param) as app:
        yield app


async def test_a_put_is_awaited_for_its_result(app: wrasse.App) -> None:
    app.handler("double")(lambda job: int(job.data) * 2)
    put = await app.jobs.enqueue("double", 21, keep="1h")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(put.result(timeout="30s"))
        await app.run_pending()
    assert waiting.result() == 42
    info = await put.info()
    assert info is not None
    assert info.kept_until is not None
    assert info.finished_at is not None
    assert info.kept_until - info.finished_at == timedelta(hours=1)


async def test_bytes_that_are_no_json_come_back_as_bytes(app: wrasse.App) -> None:
    app.handler("x")(lambda job: b"\xff\x00")
    put = await app.jobs.enqueue("x")
    await app.run_pending()
    assert await put.result() == b"\xff\x00"


async def test_a_result_that_is_not_to_come_raises_what_became_of_its_job(app: wrasse.App) -> None:
    put = await app.jobs.enqueue("x")
    with pytest.raises(TimeoutError):
        await put.result(timeout="10ms")
    assert await put.cancel("not needed")
    assert not await put.cancel()
    with pytest.raises(JobFailed, match="cancelled: not needed"):
        await put.result()


async def test_what_results_are_kept_for_may_be_a_setting(tmp_path: Path) -> None:
    settings = tmp_path / "wrasse.yaml"
    settings.write_text("backends: {jobs: 'memory:', records: 'memory:'}\nworker: {result_kept: 10m, done_max: 0}\n")
    async with wrasse.connect(settings) as app:
        app.handler("x")(lambda job: "kept")
        kept, gone = await app.jobs.enqueue("x"), await app.jobs.enqueue("x", keep="0s")
        await app.run_pending()
        assert await kept.result() == "kept"
        with pytest.raises(UsageError, match="no job"):
            await gone.result()


async def test_a_unique_name_is_put_once_while_its_job_is_not_finished(app: wrasse.App) -> None:
    app.handler("x")(lambda job: None)
    first = await app.jobs.enqueue("x", unique="report")
    second = await app.jobs.enqueue("x", unique="report")
    assert (bool(first), bool(second), second.id) == (True, False, first.id)
    await app.run_pending()
    assert await app.jobs.enqueue("x", unique="report", window="1h")
    await app.run_pending()
    assert not await app.jobs.enqueue("x", unique="report")


async def test_a_window_without_a_unique_name_is_refused(app: wrasse.App) -> None:
    with pytest.raises(UsageError, match="window without a unique name"):
        await app.jobs.enqueue("x", window="1m")


async def test_a_group_calls_back_once_all_its_members_are_finished(app: wrasse.App) -> None:
    @app.handler("part")
    async def part(job: wrasse.RunningJob) -> int:
        return int(job.data)

    @app.handler("sum")
    async def total(job: wrasse.RunningJob) -> list[object]:
        group = job.headers["wrasse-group"]
        results = [await app.jobs.wait(f"{group}/{number}") for number in range(3)]
        return [sum(results), job.headers["wrasse-group-done"], job.headers["wrasse-group-dead"]]

    then = await app.jobs.group([NewJob("part", n) for n in (1, 2, 3)], then=NewJob("sum"))
    assert await then.info() is None
    assert await app.run_pending() == 4
    assert await then.result(timeout="30s") == [6, "3", "0"]


async def test_a_group_with_an_id_may_be_put_again(app: wrasse.App) -> None:
    app.handler("*")(lambda job: job.kind)
    members, then = [NewJob("part", n) for n in range(2)], NewJob("then")
    await app.jobs.group(members, then, id="import-1")
    assert await app.run_pending() == 3
    again = await app.jobs.group(members, then, id="import-1")
    assert await app.run_pending() == 0
    assert await again.result() == "then"


async def test_a_group_without_members_calls_back_at_once(app: wrasse.App) -> None:
    app.handler("*")(lambda job: job.kind)
    then = await app.jobs.group([], NewJob("then"))
    await app.run_pending()
    assert await then.result() == "then"


async def test_a_group_larger_than_one_step_calls_back_once(app: wrasse.App) -> None:
    ran: list[str] = []
    app.handler("*")(lambda job: ran.append(job.kind))
    then = await app.jobs.group([NewJob("part") for _ in range(1_500)], NewJob("then"))
    await app.run_pending()
    assert await then.result() is None
    assert (ran.count("part"), ran.count("then"), ran[-1]) == (1_500, 1, "then")


async def test_members_that_could_never_count_are_refused(app: wrasse.App) -> None:
    await app.jobs.enqueue("x", id="mine")
    with pytest.raises(UsageError, match="'mine' exists already"):
        await app.jobs.group([NewJob("x", id="mine")], NewJob("then"))
    with pytest.raises(UsageError, match="has a unique name"):
        await app.jobs.group([NewJob("x", unique="u")], NewJob("then"))
