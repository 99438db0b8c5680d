"""Temporary files: written in the workplace, complete and on disk before they get their name.

Where the file system allows it, a new file has no name at all until it is linked: a crash leaves nothing of it. One
such file is kept ready, since making it takes as long as all other work of a small create except the sync.

A crash's leftovers here are never listed, and are removed when a process opens the directory an hour later. A writer
keeps its file locked, so that a slow write is not removed. Some leftovers refer to other files: metadata has a second
name here (a mark) while it is written before its object, and while the object is deleted before it, so metadata that a
crash left unused is found from here.

A timestamp is never issued twice by one process: it makes the version of an object. It is the clock's time in
nanoseconds. The clock counts microseconds, so the last three digits are free; they begin at random, since another
process may write in the same microsecond.
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

_lock = threading.Lock()
FOLDER = WORKPLACE + b"/temp"
LEFT_FOR = timedelta(hours=1)
LEFTOVERS_MAX = 10_000
_MARK = b".m"
_MARK_BYTES_MAX = 1 << 16


class Timestamps:
    """Issues timestamps for one directory, named by its inode. Threads may share it."""

    def __init__(self, clock: Clock, directory: int) -> None:
        self._clock = clock
        with _lock:
            self._last = _lasts.setdefault(directory, _Last())

    def next(self, above: int = 0) -> int:
        """A timestamp of now that is above `above` and above all issued before."""
        fresh = to_micros(self._clock.now()) * 1_000 + int(random.random() * 1_000)
        with _lock:
            self._last.timestamp = max(fresh, above + 1, self._last.timestamp + 1)
            return self._last.timestamp

    def now(self) -> datetime:
        """The clock's time: this backend uses the host's."""
        return self._clock.now()


class _Last:
    """The last timestamp of a directory, for all instances in this process that have it open."""

    timestamp = 0


_lasts: WeakValueDictionary[int, _Last] = WeakValueDictionary()


def instant(timestamp: int) -> datetime:
    """The moment of a timestamp."""
    return from_micros(timestamp // 1_000)


@dataclass(frozen=True, slots=True)
class TempFile:
    """One file being written: open, locked, and at a path of its own."""

    file: int
    path: bytes


@dataclass(frozen=True, slots=True)
class Blank:
    """One file being written, open and without a name."""

    file: int


class TempFiles:
    """The temporary files of one root."""

    def __init__(self, files: Files, timestamps: Timestamps) -> None:
        self._files = files
        self._timestamps = timestamps
        self._ready: deque[int] = deque()  # at most one, except for a moment
        self.blanks = False  # whether the file system has files without a name; set by the probe
        self._process = secrets.token_hex(6).encode()  # timestamps differ within a process, this between processes

    def path(self, suffix: bytes = b"") -> bytes:
        """A path that no other process uses."""
        return b"%s/%016x-%s%s" % (FOLDER, self._timestamps.next(), self._process, suffix)

    def begin(self, suffix: bytes = b"") -> TempFile:
        """A new empty file. The caller ends it with `drop`."""
        path = self.path(suffix)
        file = self._files.create(path)
        self._files.try_lock(file, shared=True)  # only a cleaner asks for this lock
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
        """Makes the next blank file in advance. If that fails, the next call that needs one raises the error."""
        if self.blanks and not self._ready:
            with suppress(OSError):
                self._ready.append(self._files.blank(FOLDER))

    def drop(self, temp_file: TempFile | Blank) -> None:
        """Removes the temporary name; what was linked or renamed from it stays."""
        self._files.close(temp_file.file)
        if isinstance(temp_file, TempFile):
            self._files.unlink(temp_file.path)

    def close(self) -> None:
        """Closes the file that was kept ready."""
        while self._ready:
            self._files.close(self._ready.popleft())

    def small_file(self, data: bytes, *, mark: bool = False, renamed: bool = False) -> _SmallFile:
        """A small file with these bytes, on disk, for the length of a block. `renamed`: the block renames it, so that
        no temporary name is left to remove."""
        return _SmallFile(self, self._files, data, _MARK if mark else b"", renamed)

    @contextmanager
    def marked(self, path: bytes) -> Iterator[None]:
        """A mark on a file that is about to become unused; a missing file needs none."""
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
        if state is not None and state.is_folder:  # a folder that was to be exchanged with an object
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


class _SmallFile:
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
