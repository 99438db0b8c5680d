"""Watches a directory for files that are created, changed or moved in; each is enqueued once it is no longer written
to.

With inotify, a file is enqueued when it is closed, and an occasional walk finds what was missed. Without it the
directory is walked repeatedly, and a file is enqueued when it has not changed for `settle`. Both use ids, so that a
file found both ways is enqueued once.

An inotify event is only a hint that something in a directory changed; the current state is read. A file is read once it
is no longer written to (closed after writing, moved here, linked here), a directory as soon as it exists. Without
inotify, or at a limit of the system, `Notices.open` or `watch` returns that.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock, to_micros
from wrasse.jobs.file_producer.files import FoundFile, Skipped
from wrasse.jobs.file_producer.producer import FileProducer, Scope, directories, inspect_file
from wrasse.jobs.rate_limiter import slept

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE = 0x8, 0x40, 0x80, 0x100
_OVERFLOW, _IGNORED, _ISDIR = 0x4000, 0x8000, 0x40000000
_ONLYDIR, _DONT_FOLLOW, _EXCL_UNLINK = 0x01000000, 0x02000000, 0x04000000
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _ONLYDIR | _EXCL_UNLINK
_HEAD = struct.Struct("iIII")
_BUFFER = 1 << 16
WATCHES_MAX = 500_000  # directories: about a kilobyte each, here and in the kernel


@dataclass(frozen=True, slots=True)
class Notice:
    """A change at this path, relative to the root. The root itself: events were lost, walk everything."""

    path: str
    directory: bool = False


class Notices:
    """Watched directories, and their events."""

    def __init__(self, root: str, fd: int, libc: ctypes.CDLL, most: int) -> None:
        self._root, self.fd, self._libc, self._most = root, fd, libc, most
        self._paths: dict[int, str] = {}

    @classmethod
    def open(cls, root: str, most: int = WATCHES_MAX) -> Notices | None:
        """None without inotify, or at the system's limit. At most `most` directories are watched."""
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except (OSError, AttributeError, TypeError):
            return None
        return cls(root, fd, libc, most) if fd >= 0 else None

    def watch(self, relative: str) -> bool:
        """Watches one directory; False if a limit is reached, ours or the system's. One that vanished needs none."""
        if len(self._paths) >= self._most:
            return False
        path = os.fsencode(os.path.join(self._root, relative))
        # The root itself may be a link: the user named it.
        mask = _MASK | (_DONT_FOLLOW if relative else 0)
        number = int(self._libc.inotify_add_watch(self.fd, path, mask))
        if number >= 0:
            self._paths[number] = relative
            return True
        return ctypes.get_errno() not in (errno.ENOSPC, errno.ENOMEM)

    def read(self) -> Sequence[Notice]:
        """The events since the last call."""
        try:
            data = os.read(self.fd, _BUFFER)
        except BlockingIOError:
            return ()
        return tuple(self._parsed(data))

    def close(self) -> None:
        """Ends all watches."""
        os.close(self.fd)
        self._paths.clear()

    def _parsed(self, data: bytes) -> Iterator[Notice]:
        at = 0
        while at < len(data):
            number, mask, _, length = _HEAD.unpack_from(data, at)
            name = os.fsdecode(data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0"))
            at += _HEAD.size + length
            if mask & _OVERFLOW:
                yield Notice("", directory=True)
            elif mask & _IGNORED:
                self._paths.pop(number, None)
            elif name and number in self._paths:
                parent = self._paths[number]
                yield from self._meaning(f"{parent}/{name}" if parent else name, mask)

    def _meaning(self, path: str, mask: int) -> Iterator[Notice]:
        if mask & _ISDIR:
            if mask & _MOVED_FROM:
                self._forget(path)
            else:
                yield Notice(path, directory=True)
        elif mask & (_CLOSE_WRITE | _MOVED_TO) or (mask & _CREATE and self._complete(path)):
            yield Notice(path)

    def _complete(self, path: str) -> bool:
        """Whether a created file is complete: a symbolic or second hard link is never closed after writing."""
        try:
            facts = os.lstat(os.path.join(self._root, path))
        except OSError:
            return False
        return facts.st_nlink > 1 or os.path.islink(os.path.join(self._root, path))

    def _forget(self, path: str) -> None:
        """Ends the watches of a directory that was moved away; if it is moved within the root, it gets new ones."""
        for number, known in list(self._paths.items()):
            if known == path or known.startswith(f"{path}/"):
                self._libc.inotify_rm_watch(self.fd, number)
                self._paths.pop(number, None)


RESCAN = timedelta(minutes=5)
_MARGIN = timedelta(minutes=1)  # by which the clock of a file system may be behind ours
_WALKS_MAX = 1_000  # directories to walk; with more, everything is walked
_TOO_MANY = "there are more directories than can be watched: walking repeatedly instead"
_log = logging.getLogger("wrasse.jobs")


class DirectoryWatcher:
    """Enqueues files while it runs. `use_inotify`: where available."""

    def __init__(
        self, producer: FileProducer, clock: Clock, *, use_inotify: bool = True, watches_max: int = WATCHES_MAX
    ) -> None:
        self._producer, self._clock, self._use_inotify, self._watches_max = producer, clock, use_inotify, watches_max
        self._own = producer.settings
        self._scope = Scope(self._own.root, self._own.rules)
        self._walked = 0  # when the last full walk began
        self._due: dict[str, float] = {}  # when each directory is walked; "" is everything
        self.watched = asyncio.Event()  # set when every later change will be noticed
        self._woken = asyncio.Event()
        producer.done.seen.directories = set()

    def stop(self) -> None:
        """Ends `run`."""
        self._producer.stop()
        self._woken.set()

    async def run(self) -> None:
        """Enqueues existing and new files, until the producer is stopped."""
        notices = Notices.open(self._own.root, self._watches_max) if self._use_inotify else None
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
        while not self._producer.stopping.is_set():
            await self._walk_all()
            await slept(self._own.poll, self._producer.stopping)

    async def _walk_all(self) -> None:
        """Walks for changes since the last time, or everything the first time; skips files that may be incomplete."""
        start = self._now()
        since = self._walked and self._walked - 1_000 * ((self._own.settle + _MARGIN) // timedelta(microseconds=1))
        await self._producer.walk(since=since, settled=self._settled(start))
        self._walked = start

    async def _follow(self, notices: Notices) -> None:
        """Walks once after the watch began and once more after `settle`, then handles events."""
        self.watched.set()
        await self._walk_all()
        self._schedule_walk("", self._own.settle)
        while not self._producer.stopping.is_set():
            found = notices.read()
            if not await self._handle(notices, found):
                _log.warning(_TOO_MANY)
                await self._poll()
            elif not found and not await self._walk_due():
                await self._idle(notices)

    async def _handle(self, notices: Notices, found: Sequence[Notice]) -> bool:
        """Enqueues the files of these events. False: a watch failed, so events are incomplete."""
        files: list[FoundFile] = []
        for notice in found:
            if notice.directory:
                below = notice.path
                if not self._own.rules.excludes_directory(below):
                    if not await self._watch_below(notices, below):
                        return False
                    self._schedule_walk(below, self._own.settle)
            elif self._own.rules.includes(notice.path):
                found_file = await asyncio.to_thread(inspect_file, self._own.root, notice.path)
                if isinstance(found_file, Skipped):
                    self._producer.done.seen.skipped[found_file] += 1
                else:
                    self._producer.done.seen.found += 1
                    files.append(found_file.file)
        await self._producer.enqueue(files)
        return True

    async def _walk_due(self) -> bool:
        """Walks the directories that are due; returns whether there was any."""
        now = self._clock.monotonic()
        due = [path for path, at in self._due.items() if at <= now]
        for path in due:
            del self._due[path]
            if path:
                await self._producer.walk(path, settled=self._settled(self._now()))
            else:
                await self._walk_all()
                self._schedule_walk("", RESCAN)
        return bool(due)

    async def _idle(self, notices: Notices) -> None:
        """Waits until an event, a due walk, or a stop."""
        wait = max(0.0, min(self._due.values()) - self._clock.monotonic()) if self._due else RESCAN.total_seconds()
        loop = asyncio.get_running_loop()
        loop.add_reader(notices.fd, self._woken.set)
        try:
            await slept(timedelta(seconds=wait), self._woken)
        finally:
            loop.remove_reader(notices.fd)
        if not self._producer.stopping.is_set():
            self._woken.clear()

    async def _watch_below(self, notices: Notices, below: str) -> bool:
        def watch_all() -> bool:
            return all(notices.watch(each) for each in directories(self._scope, below))

        return await asyncio.to_thread(watch_all)

    def _schedule_walk(self, path: str, delay: timedelta) -> None:
        at = self._clock.monotonic() + delay.total_seconds()
        if len(self._due) >= _WALKS_MAX:
            self._due = {"": at}
        self._due[path] = min(at, self._due.get(path, at))

    def _settled(self, now: int) -> int:
        return now - 1_000 * (self._own.settle // timedelta(microseconds=1))

    def _now(self) -> int:
        return 1_000 * to_micros(self._clock.now())
