"""Watching a directory for files that come, change or are moved in; each is put once nobody writes to it any more.

Where the system tells what happens (inotify), a file is put when it is closed, and a walk now and then finds what
was missed. Elsewhere the directory is walked again and again, and a file is put when it has not changed for `settle`.
Both put by ids, so that a file seen both ways is put once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

from wrasse.clock import Clock, to_micros
from wrasse.jobs.files import FoundFile, Skipped
from wrasse.jobs.inotify import WATCHES_MAX, Notice, Notices
from wrasse.jobs.intake import Intake
from wrasse.jobs.pacing import slept
from wrasse.jobs.walk import Scope, directories, look

RESCAN = timedelta(minutes=5)
_MARGIN = timedelta(minutes=1)  # by which the clock of a file system may be behind ours
_WALKS_MAX = 1_000  # directories to walk; with more than that, everything is walked
_TOO_MANY = "there are more directories than can be watched: walking again and again instead"
_log = logging.getLogger("wrasse.jobs")


class Watching:
    """Puts files for as long as it runs. `told`: whether to use what the system tells, where it does."""

    def __init__(
        self, intake: Intake, clock: Clock, *, told: bool = True, watches_max: int = WATCHES_MAX
    ) -> None:
        self._intake, self._clock, self._told, self._watches_max = intake, clock, told, watches_max
        self._own = intake.settings
        self._scope = Scope(self._own.root, self._own.rules)
        self._walked = 0  # when the last walk of everything began
        self._due: dict[str, float] = {}  # directory to when it is walked; "" is everything
        self.watched = asyncio.Event()  # set when every change from now on will be noticed
        self._heard = asyncio.Event()
        intake.done.seen.directories = set()

    def stop(self) -> None:
        """Ends `run`."""
        self._intake.stop()
        self._heard.set()

    async def run(self) -> None:
        """Puts what is there and what comes, until the intake is stopped."""
        notices = Notices.open(self._own.root, self._watches_max) if self._told else None
        if notices is not None:
            try:
                if await self._watch_below(notices, ""):
                    await self._follow(notices)
                    return
            finally:
                notices.close()
            _log.warning(_TOO_MANY)
        await self._poll()

    async def _poll(self) -> None:
        self.watched.set()
        while not self._intake.stopping.is_set():
            await self._walk_all()
            await slept(self._own.poll, self._intake.stopping)

    async def _walk_all(self) -> None:
        """What changed since the last time, or everything the first time; but nothing that may not be complete."""
        start = self._now()
        since = self._walked and self._walked - 1_000 * ((self._own.settle + _MARGIN) // timedelta(microseconds=1))
        await self._intake.walk(since=since, settled=self._settled(start))
        self._walked = start

    async def _follow(self, notices: Notices) -> None:
        """Walks once after watching began, once more when what was fresh then has settled, and lives on notices."""
        self.watched.set()
        await self._walk_all()
        self._later("", self._own.settle)
        while not self._intake.stopping.is_set():
            found = notices.read()
            if not await self._heed(notices, found):
                _log.warning(_TOO_MANY)
                await self._poll()
            elif not found and not await self._walk_due():
                await self._idle(notices)

    async def _heed(self, notices: Notices, found: Sequence[Notice]) -> bool:
        """Puts the files that notices speak of. False: they can no longer be relied on."""
        files: list[FoundFile] = []
        for notice in found:
            if notice.directory:
                below = notice.path
                if not self._own.rules.leaves(below):
                    if not await self._watch_below(notices, below):
                        return False
                    self._later(below, self._own.settle)
            elif self._own.rules.takes(notice.path):
                looked = await asyncio.to_thread(look, self._own.root, notice.path)
                if isinstance(looked, Skipped):
                    self._intake.done.seen.skipped[looked] += 1
                else:
                    self._intake.done.seen.found += 1
                    files.append(looked.file)
        await self._intake.put(files)
        return True

    async def _walk_due(self) -> bool:
        """Walks the directories whose time has come; says whether there was any."""
        now = self._clock.monotonic()
        due = [path for path, at in self._due.items() if at <= now]
        for path in due:
            del self._due[path]
            if path:
                await self._intake.walk(path, settled=self._settled(self._now()))
            else:
                await self._walk_all()
                self._later("", RESCAN)
        return bool(due)

    async def _idle(self, notices: Notices) -> None:
        """Until something happened, something is due, or it is stopped."""
        wait = max(0.0, min(self._due.values()) - self._clock.monotonic()) if self._due else RESCAN.total_seconds()
        loop = asyncio.get_running_loop()
        loop.add_reader(notices.fd, self._heard.set)
        try:
            await slept(timedelta(seconds=wait), self._heard)
        finally:
            loop.remove_reader(notices.fd)
        if not self._intake.stopping.is_set():
            self._heard.clear()

    async def _watch_below(self, notices: Notices, below: str) -> bool:
        def watch_all() -> bool:
            return all(notices.watch(each) for each in directories(self._scope, below))

        return await asyncio.to_thread(watch_all)

    def _later(self, path: str, delay: timedelta) -> None:
        at = self._clock.monotonic() + delay.total_seconds()
        if len(self._due) >= _WALKS_MAX:
            self._due = {"": at}
        self._due[path] = min(at, self._due.get(path, at))

    def _settled(self, now: int) -> int:
        return now - 1_000 * (self._own.settle // timedelta(microseconds=1))

    def _now(self) -> int:
        return 1_000 * to_micros(self._clock.now())
