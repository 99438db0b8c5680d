"""Where actors are started, killed, paused and looked at; see kill_actor.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import apsw

import seeds
from wrasse.clock import SystemClock
from wrasse.engine.sweep import Action
from wrasse.ports.backend import Backend
from wrasse.ports.jobs import JobFilter, JobInfo, JobRecord, JobState
from wrasse.runtime.backends import open_store
from wrasse.sweeps.stuck_jobs import StuckJobs

ACTOR = Path(__file__).with_name("kill_actor.py")


@dataclass(frozen=True, slots=True)
class Line:
    """One fact from the side log."""

    what: str
    pid: int
    facts: tuple[object, ...]


class KillScene:
    """A store, a side log, and the processes at work on them."""

    def __init__(self, folder: Path, store: Backend, heartbeat_timeout: float, url: str) -> None:
        self.folder = folder
        self.store = store
        self.jobs = store.jobs
        self.heartbeat_timeout = heartbeat_timeout
        self.url = url
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, role: str, *more: object) -> subprocess.Popen[bytes]:
        """Starts an actor."""
        command = [sys.executable, str(ACTOR), role, self.url, *(str(one) for one in more)]
        process = subprocess.Popen(command, cwd=self.folder, env=seeds.environment())
        self.running.append(process)
        return process

    def one_silence(self) -> timedelta:
        """The silence of this scene's workers."""
        return timedelta(seconds=self.heartbeat_timeout)

    def worker(self, concurrency: int = 4) -> subprocess.Popen[bytes]:
        return self.start("worker", self.heartbeat_timeout, concurrency)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL, and its number given back."""
        process.kill()
        process.wait()
        self.running.remove(process)

    def log(self) -> list[Line]:
        """The side log so far. Each line is one write; the last one may be on its way, and counts when it is whole."""
        path = self.folder / "log"
        if not path.exists():
            return []
        lines = (json.loads(line) for line in path.read_text().split("\n")[:-1])  # whole lines only
        return [Line(what, pid, tuple(facts)) for what, pid, *facts in lines]

    def writable(self) -> bool:
        """Can others write? Not while a process is stopped in the middle of a change."""
        connection = apsw.Connection(f"{self.folder}/jobs.db")
        connection.set_busy_timeout(300)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except apsw.BusyError:
            return False
        finally:
            connection.close()
        return True

    def logged(self, what: str, *facts: object) -> bool:
        """Is there such a line?"""
        return any(line.what == what and line.facts[: len(facts)] == facts for line in self.log())

    async def until_logged(self, what: str, *facts: object) -> None:
        await eventually(lambda: self.logged(what, *facts))

    def release(self, id: str) -> None:
        """Lets a handler go on that waits for this file."""
        (self.folder / id).touch()

    async def sweep(self) -> int:
        """One run of stuck_jobs by hand; gives how many were moved."""
        sweep = StuckJobs(self.jobs, heartbeat_timeout=self.one_silence())
        page = await sweep.find(None, 100)
        verdicts = [sweep.decide(info, page.at) for info in page]
        actions = [verdict for verdict in verdicts if isinstance(verdict, Action)]
        return len(await sweep.apply(actions)) if actions else 0

    async def swept(self) -> bool:
        return await self.sweep() > 0

    async def record(self, id: str) -> JobRecord:
        found = await self.jobs.get(id)
        assert found is not None
        return found

    async def until(self, id: str, state: JobState) -> JobRecord:
        async def there() -> bool:
            return (await self.record(id)).info.state is state

        await eventually(there)
        return await self.record(id)

    async def everything(self, state: JobState) -> list[JobInfo]:
        """All jobs of a place."""
        found: list[JobInfo] = []
        after: str | None = None
        while True:
            page = await self.jobs.page(state, JobFilter(), after, 500)
            found += page
            if page.cursor is None:
                return found
            after = page.cursor


@asynccontextmanager
async def open_kill_scene(folder: Path, heartbeat_timeout: float, url: str = "") -> AsyncIterator[KillScene]:
    """A scene in an empty folder, with a database there unless another store is named; whatever still runs at the end
    is killed."""
    url = url or f"sqlite://{folder}/jobs.db"
    async with kill_scene_on(
        folder, heartbeat_timeout, url, await open_store(url, SystemClock(), done_max=1_000_000)
    ) as scene:
        yield scene


@asynccontextmanager
async def kill_scene_on(folder: Path, heartbeat_timeout: float, url: str, store: Backend) -> AsyncIterator[KillScene]:
    """A scene on a store that is open."""
    scene = KillScene(folder, store, heartbeat_timeout, url)
    try:
        yield scene
    finally:
        for process in list(scene.running):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            scene.kill(process)
        await store.close()


async def eventually(so: Callable[[], bool | Awaitable[bool]], within: float = 60.0, every: float = 0.02) -> None:
    """Waits until something is so, and looks again and again."""
    async with asyncio.timeout(within):
        while True:
            answer = so()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(every)


def children(pid: int) -> list[int]:
    """The processes that a process started and that still run."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def alive(pid: int) -> bool:
    """Does this process run? One that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
