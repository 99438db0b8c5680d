"""A store of large parameters that does not answer costs the tasks that need it time, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs.stream_tasks.test_kills import TaskScene
from processes.daemons import running, until
from servers.strict_s3 import BUSY, StrictS3, all_well
from wrasse.clock import SystemClock
from wrasse.config.load import load
from wrasse.jobs.stream_tasks.store import INLINE_MAX
from wrasse.ports.jobs import Job, JobFilter, JobInfo, JobState
from wrasse.runtime.backends import Stores
from wrasse.runtime.stream_tasks import open_tasks, task_home


@contextmanager
def served() -> Iterator[StrictS3]:
    """A bucket in a thread of its own."""
    server, loop = StrictS3(SystemClock()), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _put_and_get(folder: Path, jobs: list[Job], id: str) -> JobInfo | None:
    home = task_home(load(folder / "wrasse.yaml", environ={}))
    assert home is not None
    stores = Stores(SystemClock())
    try:
        tasks = await open_tasks(home, stores)
        if jobs:
            await tasks.enqueue(jobs, request="put")
        page = await tasks.page(JobState.READY, JobFilter(), None, 100)
        return next((each for each in page if each.id == id), None)
    finally:
        await stores.close()


def test_a_task_whose_parameters_are_away_is_released_until_they_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with served() as server:
        scene = TaskScene(tmp_path, f"backends: {{objects: 's3://bucket/x?endpoint={server.endpoint}'}}")
        small = [Job(f"small-{n}", queue="mail") for n in range(3)]
        large = Job("large", queue="mail", payload=b"p" * (INLINE_MAX + 1))
        asyncio.run(_put_and_get(tmp_path, [large, *small], "large"))
        server.plan = lambda method, path: BUSY
        with running(tmp_path, "--role=worker") as daemon:

            def released() -> JobInfo | None:
                found = asyncio.run(_put_and_get(tmp_path, [], "large"))
                return found if found is not None and found.interruptions else None

            away = until(released, f"the task released; {daemon.err}")
            until(lambda: len(scene.ended()) == 3, f"its neighbours ended; {daemon.err}")
            assert (away.failures, away.rescues, scene.started()["large"]) == (0, 0, 0)
            assert daemon.process.poll() is None
            server.plan = all_well
            until(lambda: len(scene.ended()) == 4, f"all ended; {daemon.err}")
            daemon.signal()
            assert daemon.end() == 0
    ended = {str(each["task_id"]): each for each in scene.ended()}
    assert sorted(ended) == ["large", "small-0", "small-1", "small-2"]
    assert all("completed_at" in each for each in ended.values())
    assert scene.started()["large"] == 1
