"""Files that are not there yet: written in the workplace, whole and on the disk before they get their name.

Where the file system can, a file that is to be created has no name at all until it gets its own: a crash leaves
nothing of it. One of those is kept ready, since making it takes as long as everything else that a small create does
beside waiting for the disk.

What a crash leaves here is never listed, and is removed by whoever opens the directory an hour later. A writer keeps
its file locked, so that one which only takes long is left alone.

Some leftovers stand for more than themselves. Metadata has a second name here (a mark) while it is written before its
object, and while the object goes before it: so whatever metadata a crash leaves useless is found again from here.

Times of files that are never given twice by one process: they make the version of an object.

A stamp is the clock's time in nanoseconds. The clock counts microseconds, so the last three digits are free; they begin
at random, since another process may write in the same microsecond.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from weakref import WeakValueDictionary

from wrasse.backends.directory.files import Files
from wrasse.backends.directory.names import OBJECT, WORKPLACE
from wrasse.clock import Clock, from_micros, to_micros


class Timestamps:
    """Gives out stamps for one directory, named by its inode. Threads may share it."""

    def __init__(self, clock: Clock, directory: int) -> None:
        self._clock = clock
        with _lock:
            self._last = _lasts.setdefault(directory, _Last())

    def next(self, above: int = 0) -> int:
        """A stamp of now that is above this one and above all given out before."""
        fresh = to_micros(self._clock.now()) * 1_000 + int(random.random() * 1_000)
        with _lock:
            self._last.timestamp = max(fresh, above + 1, self._last.timestamp + 1)
            return self._last.timestamp

    def now(self) -> datetime:
        """The clock's time: this backend is on the host's."""
        return self._clock.now()


class _Last:
    """The last stamp of a directory, for all in this process who have it open."""

    timestamp = 0


_lock = threading.Lock()
_lasts: WeakValueDictionary[int, _Last] = WeakValueDictionary()


def instant(timestamp: int) -> datetime:
    """The moment a stamp stands for."""
    return from_micros(timestamp // 1_000)


FOLDER = WORKPLACE + b"/temp"
LEFT_FOR = timedelta(hours=1)
LEFTOVERS_MAX = 10_000
_MARK = b".m"
_MARK_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class TempFile:
    """One file on its way: open, locked, and at a path of its own."""

    file: int
    path: bytes


@dataclass(frozen=True, slots=True)
class Blank:
    """One file on its way, open and without a name."""

    file: int


class TempFiles:
    """The temporary files of one root."""

    def __init__(self, files: Files, timestamps: Timestamps) -> None:
        self._files = files
        self._timestamps = timestamps
        self._ready: deque[int] = deque()  # at most one, but for a moment
        self.blanks = False  # whether files without a name can be had here; told by the probe
        self._process = secrets.token_hex(6).encode()  # stamps differ within a process, and this between two

    def path(self, suffix: bytes = b"") -> bytes:
        """A path nobody else has."""
        return b"%s/%016x-%s%s" % (FOLDER, self._timestamps.next(), self._process, suffix)

    def begin(self, suffix: bytes = b"") -> TempFile:
        """A new empty file. The caller ends it with `drop`."""
        path = self.path(suffix)
        file = self._files.create(path)
        self._files.try_lock(file, shared=True)  # shared with nobody: only a cleaner would want it
        return TempFile(file, path)

    def blank(self) -> TempFile | Blank:
        """A new empty file that will be linked and not renamed. The caller ends it with `drop`."""
        if not self.blanks:
            return self.begin()
        try:
            return Blank(self._ready.popleft())
        except IndexError:
            return Blank(self._files.blank(FOLDER))

    def make_ready(self) -> None:
        """Makes the next blank file before anybody waits for it. If it cannot be had, whoever needs it will be told."""
        if self.blanks and not self._ready:
            with suppress(OSError):
                self._ready.append(self._files.blank(FOLDER))

    def drop(self, temp_file: TempFile | Blank) -> None:
        """Takes the temporary name away; what was linked or renamed from it stays."""
        self._files.close(temp_file.file)
        if isinstance(temp_file, TempFile):
            self._files.unlink(temp_file.path)

    def close(self) -> None:
        """Lets go of the file that was kept ready."""
        while self._ready:
            self._files.close(self._ready.popleft())

    def holding(self, data: bytes, *, mark: bool = False, renamed: bool = False) -> _Holding:
        """A small file with these bytes, on the disk, for the length of a block. `renamed`: the block gives it another
        name, so that none is left to take away."""
        return _Holding(self, self._files, data, _MARK if mark else b"", renamed)

    @contextmanager
    def marked(self, path: bytes) -> Iterator[None]:
        """A mark on a file that is about to become useless; what is not there needs none."""
        mark = self.path(_MARK)
        with suppress(FileNotFoundError):
            self._files.link(path, mark)
        yield
        self._files.unlink(mark)

    def clean(self, useless: Callable[[bytes], None]) -> int:
        """Removes what a crash left, a bounded number; `useless` first gets the bytes of each mark."""
        left = (FOLDER + b"/" + name for name, _ in self._files.names(FOLDER) if self._is_left(name))
        return sum(self._remove(path, useless) for path in list(islice(left, LEFTOVERS_MAX)))

    def _is_left(self, name: bytes) -> bool:
        try:
            return instant(int(name.partition(b"-")[0], 16)) <= self._timestamps.now() - LEFT_FOR
        except (ValueError, OverflowError):
            return False

    def _remove(self, path: bytes, useless: Callable[[bytes], None]) -> bool:
        state = self._files.state(path)
        if state is not None and state.is_folder:  # a folder that was to change places with an object
            self._files.unlink(path + b"/" + OBJECT)
            return self._files.remove_folder(path)
        file = self._files.open_alone(path)
        if file is None:
            return False
        try:
            if not self._files.try_lock(file):
                return False
            if path.endswith(_MARK):
                useless(self._files.read(file, _MARK_BYTES_MAX, 0))
            self._files.unlink(path)
            return True
        finally:
            self._files.close(file)


class _Holding:
    """A class, since a generator for each of the many small files costs as much as writing one."""

    __slots__ = ("_data", "_files", "_renamed", "_suffix", "_temp_file", "_temp_files")

    def __init__(self, temp_files: TempFiles, files: Files, data: bytes, suffix: bytes, renamed: bool) -> None:
        self._temp_files, self._files, self._data, self._suffix, self._renamed = (
            temp_files,
            files,
            data,
            suffix,
            renamed,
        )

    def __enter__(self) -> TempFile:
        self._temp_file = temp_file = self._temp_files.begin(self._suffix)
        try:
            self._files.write(temp_file.file, self._data)
            self._files.sync(temp_file.file)
        except BaseException:
            self._temp_files.drop(temp_file)
            raise
        return temp_file

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._renamed:
            self._files.close(self._temp_file.file)
        else:
            self._temp_files.drop(self._temp_file)
