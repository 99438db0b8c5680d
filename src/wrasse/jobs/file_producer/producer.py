"""Makes a job of each file of a directory, once, over any number of walks and crashes.

The job of a file has an id made of its path, size and time of change, which is remembered. So a walk needs no memory of
its own: it enqueues whatever it finds, and the backend refuses known ids. After a crash in the middle of a walk, the
next walk enqueues the rest.

A walk visits every file below a directory once, in constant memory: at each level one directory is open and read as it
is walked; nothing is sorted or collected. Paths that vanish meanwhile are counted and skipped. A link to a directory is
never followed, and a link to a file counts only if the file is within the walked directory. It blocks, so it runs in a
thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.jobs.file_producer.files import FileRules, FoundFile, Skipped
from wrasse.jobs.producer import Producer
from wrasse.jobs.rate_limiter import SharedRate, enqueue_paced, slept
from wrasse.ports.jobs import Enqueued, Job

DEPTH_MAX = 200  # directories below one another
PATIENCE = timedelta(seconds=10)
_ENTRIES_MAX = 2_000  # read at once
_READ_SECONDS_MAX = 0.05  # seconds: a stop must not wait for more
_RECENT_MAX = 50_000  # ids of jobs that this process enqueued
_RETRY_MAX = timedelta(seconds=5)
_log = logging.getLogger("wrasse.jobs")


class WalkedPaths:
    """The counts of walks so far. `directories` is kept only by a walker that compares with earlier walks."""

    __slots__ = ("directories", "found", "skipped", "unsettled")

    def __init__(self) -> None:
        self.found = 0  # files to enqueue
        self.unsettled = 0  # files that may still be written to
        self.skipped: Counter[Skipped] = Counter()
        self.directories: set[int] | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """The directory of a walk and its rules; `root` is absolute. Times are in nanoseconds since 1970."""

    root: str
    rules: FileRules
    since: int = 0  # files unchanged since then, in a directory that was seen before, are skipped
    settled: int = 0  # files changed after that may still be written to, and are left to a later walk; 0: all files


@dataclass(frozen=True, slots=True)
class WalkedFile:
    """A file, and when anything about it changed, its name included."""

    file: FoundFile
    touched: int


class _Level:
    """An open directory."""

    __slots__ = ("entries", "fresh", "prefix")

    def __init__(self, path: str, relative: str, fresh: bool) -> None:
        self.entries = os.scandir(path)
        self.prefix = f"{relative}/" if relative else ""
        self.fresh = fresh  # not seen before: it may have been moved here, which does not change its files


def check_directory(scan_dir: str) -> str:
    """The directory as an absolute path; an error if there is none."""
    path = os.path.abspath(scan_dir)
    try:
        with os.scandir(path):
            return path
    except OSError as why:
        raise UsageError(
            f"producer.scan_dir: {scan_dir!r} cannot be read: {(why.strerror or 'unknown error').lower()}",
            do="make the directory, or name another with producer.scan_dir",
        ) from None


def walk(scope: Scope, seen: WalkedPaths, below: str = "") -> Generator[FoundFile | None, None, None]:
    """Every file to enqueue below the root, or below one directory in it; None for any other path, so that the caller
    may stop at any time."""
    real_root = os.path.realpath(scope.root)
    levels: list[_Level] = []
    _descend(levels, os.path.join(scope.root, below) if below else scope.root, below, seen)
    try:
        while levels:
            level = levels[-1]
            entry = _next(level, seen)
            if entry is None:
                levels.pop().entries.close()
                continue
            relative = level.prefix + entry.name
            if _is_directory(entry):
                if scope.rules.excludes_directory(relative):
                    seen.skipped[Skipped.EXCLUDED] += 1
                elif not _is_utf8(entry.name):
                    seen.skipped[Skipped.UNNAMEABLE] += 1
                else:
                    _descend(levels, entry.path, relative, seen)
                yield None
            else:
                yield _included(scope, seen, entry.path, relative, real_root, fresh=level.fresh)
    finally:
        for level in levels:
            level.entries.close()


def directories(scope: Scope, below: str = "") -> Iterator[str]:
    """The relative path of every directory to watch, each before it is read."""
    levels: list[_Level] = []
    ignored = WalkedPaths()
    yield below
    _descend(levels, os.path.join(scope.root, below) if below else scope.root, below, ignored)
    try:
        while levels:
            entry = _next(levels[-1], ignored)
            if entry is None:
                levels.pop().entries.close()
                continue
            relative = levels[-1].prefix + entry.name
            if _is_directory(entry) and not scope.rules.excludes_directory(relative) and _is_utf8(entry.name):
                yield relative
                _descend(levels, entry.path, relative, ignored)
    finally:
        for level in levels:
            level.entries.close()


def inspect_file(root: str, relative: str) -> WalkedFile | Skipped:
    """The file at a path below the root, as it is now."""
    return _stat(os.path.join(root, relative), os.path.realpath(root))


def _included(
    scope: Scope, seen: WalkedPaths, path: str, relative: str, real_root: str, *, fresh: bool
) -> FoundFile | None:
    if not scope.rules.includes(relative):
        seen.skipped[Skipped.EXCLUDED] += 1
        return None
    found = _stat(path, real_root) if _is_utf8(relative) else Skipped.UNNAMEABLE
    if isinstance(found, Skipped):
        seen.skipped[found] += 1
        return None
    if found.touched < scope.since and not fresh:
        return None
    if 0 < scope.settled < found.touched:
        seen.unsettled += 1
        return None
    seen.found += 1
    return found.file


def _stat(path: str, real_root: str) -> WalkedFile | Skipped:
    try:
        facts = os.lstat(path)
        if stat.S_ISLNK(facts.st_mode):
            target = os.path.realpath(path)
            if os.path.commonpath((target, real_root)) != real_root or not os.path.exists(target):
                return Skipped.OUTSIDE
            # The target itself, not the link again: the link may have changed.
            facts = os.lstat(target)
    except OSError as why:
        return _reason(why)
    if stat.S_ISDIR(facts.st_mode):
        return Skipped.LINKED
    if not stat.S_ISREG(facts.st_mode):
        return Skipped.SPECIAL
    return WalkedFile(FoundFile(path, facts.st_size, facts.st_mtime_ns), facts.st_ctime_ns)


def _descend(levels: list[_Level], path: str, relative: str, seen: WalkedPaths) -> None:
    if len(levels) >= DEPTH_MAX:
        seen.skipped[Skipped.TOO_DEEP] += 1
        return
    try:
        levels.append(_Level(path, relative, _is_first_visit(path, relative, seen)))
    except OSError as why:
        seen.skipped[_reason(why)] += 1


def _is_first_visit(path: str, relative: str, seen: WalkedPaths) -> bool:
    """Whether this directory is seen for the first time, at this path."""
    if seen.directories is None:
        return True
    facts = os.stat(path)
    mark = hash((relative, facts.st_dev, facts.st_ino))
    if mark in seen.directories:
        return False
    seen.directories.add(mark)
    return True


def _next(level: _Level, seen: WalkedPaths) -> os.DirEntry[str] | None:
    try:
        return next(level.entries, None)
    except OSError as why:
        seen.skipped[_reason(why)] += 1  # the rest of this directory cannot be read
        return None


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False  # treated as a file, whose stat gives the reason


def _reason(why: OSError) -> Skipped:
    gone = isinstance(why, FileNotFoundError | NotADirectoryError)
    return Skipped.VANISHED if gone else Skipped.UNREADABLE


def _is_utf8(name: str) -> bool:
    """Whether a name can be written into a job's JSON."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


@dataclass(frozen=True, slots=True)
class FileProducerSettings:
    """Settings of a producer of files. `root` is absolute and existed at the start."""

    root: str
    rules: FileRules
    queues: Mapping[str, str]
    priority: str = "low"
    kind: str = ""
    settle: timedelta = timedelta(seconds=2)
    poll: timedelta = timedelta(seconds=2)
    patience: timedelta | None = PATIENCE  # with a backend that does not answer; None: for ever


class Progressed:
    """The counts of a producer of files so far, for display."""

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


class FileProducer:
    """Enqueues the files of a directory as jobs."""

    def __init__(self, settings: FileProducerSettings, producer: Producer, pace: SharedRate, clock: Clock) -> None:
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
                await slept(min(timedelta(seconds=0.1 * 2**failed), _RETRY_MAX), self.stopping)

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
