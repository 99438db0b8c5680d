"""Workers of tasks are killed; no task is lost, none ends twice, and none fails without having run."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from processes.daemons import Daemon, running, until
from servers.valkey import SHARED, newest
from wrasse.clock import SystemClock
from wrasse.config.load import load
from wrasse.ports.jobs import Job
from wrasse.ports.streams import START
from wrasse.runtime.backends import Stores
from wrasse.runtime.stream_tasks import EnvelopeCodec, open_tasks, task_home

WORK = """
import asyncio, os
from pathlib import Path

async def mail(job):
    with open("log", "a") as log:
        log.write(f"{os.getpid()} {job.id}\\n")
    while job.attempt == 1 and job.id.startswith("slow") and not Path("go").exists():
        await asyncio.sleep(0.02)
    await job.progress(0.5, "half")
"""
SLOW, TASKS = 3, 23
SETTINGS = """
task_types:
  mail: {{workers: 8, step_timeout: 5s, max_retries: 20}}
worker: {{handlers: {{mail: "work:mail"}}}}
sweeper: {{interval: 500ms}}
{backends}
"""
ON_REDIS = "backends: {{records: 'redis://{where}', streams: 'redis://{where}'}}"


class TaskScene:
    """A folder with settings and a handler, and the tasks that live there."""

    def __init__(self, folder: Path, backends: str = "") -> None:
        self.folder = folder
        (folder / "work.py").write_text(WORK)
        (folder / "wrasse.yaml").write_text(SETTINGS.format(backends=backends))

    def started(self) -> Counter[str]:
        """How often each task was begun."""
        log = self.folder / "log"
        return Counter(line.split()[1] for line in log.read_text().splitlines()) if log.exists() else Counter()

    def enqueue(self, *ids: str) -> None:
        asyncio.run(self._put(ids))

    def ended(self) -> list[dict[str, object]]:
        """What the terminal stream says."""
        return asyncio.run(self._ended())

    async def _put(self, ids: tuple[str, ...]) -> None:
        stores = Stores(SystemClock())
        home = task_home(load(self.folder / "wrasse.yaml", environ={}))
        assert home is not None
        await (await open_tasks(home, stores)).enqueue([Job(id, queue="mail") for id in ids], request="put")
        await stores.close()

    async def _ended(self) -> list[dict[str, object]]:
        stores = Stores(SystemClock())
        home = task_home(load(self.folder / "wrasse.yaml", environ={}))
        assert home is not None
        page = await (await stores.open(home.streams)).streams.read("gbe.tasks.mail.terminal", START, 1_000)
        await stores.close()
        codec = EnvelopeCodec(SystemClock())
        return [json.loads(codec.open(entry) or b"") for entry in page]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskScene:
    monkeypatch.chdir(tmp_path)
    return TaskScene(tmp_path)


def killed(scene: TaskScene, *args: str) -> None:
    """A worker that is killed while it works on all slow tasks."""
    with running(scene.folder, *args) as daemon:
        until(
            lambda: len(scene.started()) == TASKS and len(scene.ended()) == TASKS - SLOW, "all but the slow ones ended"
        )
        daemon.process.kill()
        daemon.end()


def all_end(scene: TaskScene, names: list[str]) -> None:
    """Another worker and its sweep finish everything, each task once."""
    (scene.folder / "go").touch()
    with running(scene.folder, "--role=worker") as daemon:
        until(lambda: len(scene.ended()) >= len(names), f"all tasks ended; {_log(daemon)}")
    ends = scene.ended()
    assert sorted(str(each["task_id"]) for each in ends) == sorted(names)
    assert all("completed_at" in each for each in ends)
    assert all(scene.started()[name] == (2 if name.startswith("slow") else 1) for name in names)


def _log(daemon: Daemon) -> str:
    return daemon.err[-2_000:]


def test_tasks_of_a_killed_worker_are_finished_by_another_each_once(scene: TaskScene) -> None:
    names = [f"slow-{n}" for n in range(SLOW)] + [f"task-{n}" for n in range(TASKS - SLOW)]
    scene.enqueue(*names)

    killed(scene, "--role=worker")

    all_end(scene, names)


@pytest.mark.full
def test_tasks_on_redis_of_a_killed_worker_are_finished_by_another_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = SHARED.at(newest())
    where = f"127.0.0.1:{server.port}/9"
    scene = TaskScene(tmp_path, ON_REDIS.format(where=where))
    names = [f"slow-{n}" for n in range(SLOW)] + [f"task-{n}" for n in range(TASKS - SLOW)]
    scene.enqueue(*names)

    killed(scene, "--role=worker")

    all_end(scene, names)
