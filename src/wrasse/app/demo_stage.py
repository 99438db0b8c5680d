"""The stage of the demo: a directory of its own, real processes on it, and waiting that always ends.

Silence and retries are short, so that a minute is enough to see what takes longer in production. Whatever happens, no
process outlives the stage.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from wrasse.app.application import App
from wrasse.app.config import load
from wrasse.app.settings import Settings
from wrasse.clock import Clock, SystemClock
from wrasse.errors import StoreUnavailable, WrasseError
from wrasse.ports.jobs import JobQueue

T = TypeVar("T")
PATIENCE = 120.0  # seconds for any one thing to happen; it takes a few on an idle machine
_LOOK_EVERY = 0.05

SETTINGS = """\
backends: {{jobs: "{url}", records: "{url}", streams: "{url}", objects: "file://{folder}/archives"}}
archiver: {{streams: [{{stream: "gbe.events.audit.*", batch_size: 10}}]}}
engine: {{lease: 5s}}
http: {{listen: ""}}
worker:
  heartbeat_ttl: 5s
  rescues_max: 1
  grace: 5s
  count: 4
  priorities: [high, low, fragile]
  queues: {{high: high, low: low, fragile: fragile}}
sweeps:
  stuck_jobs: {{interval: 1s}}
  finished_jobs: {{interval: 1h, done_kept: 5s}}
"""


class NotSeen(WrasseError):
    """Something the demo promised did not happen."""


class Stage:
    """One demo's directory, app and processes."""

    def __init__(self, folder: Path, app: App, url: str) -> None:
        self.folder = folder
        self.app = app
        self.url = url
        self.clock: Clock = SystemClock()
        self._processes: list[Process] = []
        self._started = self.clock.monotonic()

    @property
    def seconds(self) -> float:
        """Since the curtain rose."""
        return self.clock.monotonic() - self._started

    @property
    def settings(self) -> Settings:
        """The demo's settings."""
        return self.app.config.settings

    def process(self, pid: int) -> Process | None:
        """The process of ours with this id."""
        return next((process for process in self._processes if process.pid == pid), None)

    async def queue(self) -> JobQueue:
        """The job queue of the stage."""
        return (await self.app.open("jobs")).jobs.jobs

    async def start_worker(self, *, fragile: bool = False) -> Process:
        """Starts `wrasse run --role=worker`, as a user would. A fragile one serves the poison job's queue alone."""
        arguments = ["--role=worker", "--handler=wrasse.app.demo_work:handle", f"--config={self.folder / 'demo.yaml'}"]
        if fragile:
            # What is about to be killed should not be in the middle of a sweep then: its lease would have to run out.
            arguments += ["--set=worker.priorities=fragile", "--set=sweeps.stuck_jobs.enabled=false"]
        else:
            arguments.append("--set=worker.priorities=high, low")
        return await self._start("-m", "wrasse", "run", *arguments)

    async def start_holder(self) -> Process:
        """Starts a process that takes the demo's lease and keeps it."""
        return await self._start("-m", "wrasse.app.demo_work", self.url)

    async def _start(self, *arguments: str) -> Process:
        # The file is handed to the child; ours is closed when the stage is left.
        with (self.folder / "processes.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdout=PIPE, stderr=log, cwd=self.folder, start_new_session=True
            )
        self._processes.append(process)
        return process

    async def until(self, look: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Looks until there is something to see."""
        async def looking() -> T:
            while True:
                with contextlib.suppress(StoreUnavailable):  # a busy machine: it is asked again
                    if (seen := await look()) is not None:
                        return seen
                await asyncio.sleep(_LOOK_EVERY)

        return await self.within(looking(), what)

    async def within(self, happening: Awaitable[T], what: str) -> T:
        """What comes of it, if it comes in time."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await happening
        except TimeoutError:
            raise NotSeen(f"{what} did not happen in {PATIENCE:.0f} s", do=self._log_tail()) from None

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self.folder / "processes.log").read_text(errors="replace").splitlines()[-5:]
            return "see what the processes said: " + " | ".join(lines)
        return "try again on a machine that is less busy"

    async def drain(self) -> list[int | None]:
        """Asks every process to stop, as `systemctl stop` would; gives the exit codes, None for one that did not end. A
        worker that a poison job killed may not have been missed yet: it is left out."""
        alive = [process for process in self._processes if process.returncode is None]
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                for process in alive:
                    await process.wait()
        return [process.returncode for process in alive if process.returncode != -signal.SIGKILL]

    async def clear(self) -> None:
        """Leaves nobody behind."""
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.communicate()
        await self.app.close()


@contextlib.asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """A stage, cleared and removed at the end."""
    with TemporaryDirectory(prefix="wrasse-demo-") as name:
        folder = Path(name)
        url = f"sqlite://{folder / 'demo.db'}"
        (folder / "demo.yaml").write_text(SETTINGS.format(url=url, folder=folder))
        stage = Stage(folder, App(load(folder / "demo.yaml", environ={})), url)
        try:
            yield stage
        finally:
            await stage.clear()
