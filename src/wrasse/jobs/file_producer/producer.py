"""Makes a job of each file of a directory, once, over any number of walks and crashes.

The job of a file has an id made of its path, size and time of change, which is remembered. So a walk needs no memory of
its own: it enqueues whatever it finds, and the backend refuses known ids. After a crash in the middle of a walk, the
next walk enqueues the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable
from wrasse.jobs.file_producer.files import FileRules, FoundFile
from wrasse.jobs.file_producer.walk import Scope, WalkedPaths, walk
from wrasse.jobs.producer import Producer
from wrasse.jobs.rate_limiter import SharedRate, enqueue_paced, slept
from wrasse.ports.jobs import Enqueued, Job

PATIENCE = timedelta(seconds=10)
_ENTRIES_MAX = 2_000  # read at once
_READ_SECONDS_MAX = 0.05  # seconds: a stop must not wait for more
_RECENT_MAX = 50_000
_AGAIN_MAX = timedelta(seconds=5)
_log = logging.getLogger("wrasse.jobs")


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """Settings of an intake. `root` is absolute and existed at the start."""

    root: str
    rules: FileRules
    queues: Mapping[str, str]
    priority: str = "low"
    kind: str = ""
    settle: timedelta = timedelta(seconds=2)
    poll: timedelta = timedelta(seconds=2)
    patience: timedelta | None = PATIENCE  # with a backend that does not answer; None: for ever


class Progressed:
    """The counts of an intake so far, for display."""

    __slots__ = ("enqueued", "known", "seen", "stopped")

    def __init__(self) -> None:
        self.seen = WalkedPaths()
        self.enqueued = 0
        self.known = 0
        self.stopped = False

    @property
    def skipped(self) -> int:
        """How many found paths are not enqueued."""
        return self.seen.skipped.total()


class Intake:
    """Enqueues the files of a directory as jobs."""

    def __init__(self, settings: IntakeSettings, producer: Producer, pace: SharedRate, clock: Clock) -> None:
        self.settings = settings
        self.done = Progressed()
        self.stopping = asyncio.Event()
        self._producer, self._pace, self._clock = producer, pace, clock
        self._recent: OrderedDict[str, None] = OrderedDict()

    def stop(self) -> None:
        """Ends what runs: at once while it waits, else after the current enqueue."""
        self.done.stopped = True
        self.stopping.set()

    async def walk(self, below: str = "", *, since: int = 0, settled: int = 0) -> None:
        """Walks the directory once and enqueues the files found."""
        scope = Scope(self.settings.root, self.settings.rules, since, settled)
        walking = walk(scope, self.done.seen, below)
        more = True
        try:
            while more and not self.stopping.is_set():
                files, more = await asyncio.to_thread(self._read_some, walking)
                await self.enqueue(files)
        finally:
            # If this was cancelled, a thread may still be using it, and closes it at its end.
            with suppress(ValueError):
                walking.close()

    async def enqueue(self, files: Sequence[FoundFile]) -> None:
        """Enqueues the jobs of these files, except those that this process enqueued recently."""
        jobs = [self._job(file) for file in files]
        jobs = [job for job in jobs if job.id not in self._recent]
        failed, since, done = 0, self._clock.monotonic(), 0
        while done < len(jobs) and not self.stopping.is_set():
            try:
                async for answers in enqueue_paced(self._producer, jobs[done:], self._pace, self.stopping):
                    self._count(jobs[done : done + len(answers)], answers)
                    done += len(answers)
                    failed, since = 0, self._clock.monotonic()
            except StoreUnavailable as why:
                failed += 1
                patience = self.settings.patience
                if patience is not None and self._clock.monotonic() - since > patience.total_seconds():
                    raise
                if failed == 1:
                    _log.warning("files wait for the backend: %s", why.message)
                # Jobs that were stored after all are refused by their id, so all may be enqueued again.
                await slept(min(timedelta(seconds=0.1 * 2**failed), _AGAIN_MAX), self.stopping)

    def _read_some(self, walking: Iterator[FoundFile | None]) -> tuple[Sequence[FoundFile], bool]:
        """Some files, and whether there may be more. Runs in a thread."""
        files: list[FoundFile] = []
        ends = self._clock.monotonic() + _READ_SECONDS_MAX
        for number, file in enumerate(walking, 1):
            if file is not None:
                files.append(file)
            if number >= _ENTRIES_MAX or self._clock.monotonic() > ends or self.stopping.is_set():
                return files, True
        return files, False

    def _job(self, file: FoundFile) -> Job:
        own = self.settings
        priority = own.rules.priority(file.path, own.priority, own.queues)
        return self._producer.job(own.kind, file.payload, id=file.job_id, priority=priority)

    def _count(self, jobs: Sequence[Job], answers: Sequence[Enqueued]) -> None:
        new = sum(answer.new for answer in answers)
        self.done.enqueued += new
        self.done.known += len(answers) - new
        for job in jobs:
            self._recent[job.id] = None
        while len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)
