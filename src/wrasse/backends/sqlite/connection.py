"""A connection to one database file: durable, patient with other processes, and of this process only.

`synchronous=FULL` makes a commit durable before it returns. The wait for another process is our own: SQLite's backs off
to 100 ms, and under load that starves the process that has waited longest.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import apsw

from wrasse.backends.sqlite.failure import moved, unwritable
from wrasse.clock import SystemClock
from wrasse.errors import StoreBroken, UsageError, reason_of
from wrasse.private_files import make_private_file

_PAUSE = 0.001
_CHECKPOINT_PAGES = 2_000
_LOG_BYTES_MAX = 64 << 20
_CACHE_KIB = 8_192
_NO_FILE = {errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


@dataclass(frozen=True, slots=True)
class File:
    """A database file: its absolute path, its name in messages, and how long to wait for other processes."""

    path: str
    where: str
    patience: timedelta

    @classmethod
    def at(cls, path: str | Path, patience: timedelta) -> File:
        """A file on disk, independent of later changes of the working directory."""
        if str(path) in ("", ":memory:"):
            raise UsageError(f"{str(path)!r} is not a file", do="name a file, or use the memory backend")
        return cls(os.path.abspath(path), str(path), patience)

    def open(self, *, creates: bool = False, reads_only: bool = False) -> apsw.Connection:
        """A connection with our settings."""
        self._check()
        if creates:
            make_private_file(self.path)  # SQLite gives its -wal and -shm files the mode of the database
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if creates else 0)
        db = apsw.Connection(self.path, flags)
        db.set_busy_handler(_Patience(self.patience).asked)
        if db.readonly("main"):
            db.close()
            raise unwritable(self.where)
        db.pragma("synchronous", "full")
        db.pragma("cache_size", -_CACHE_KIB)
        db.pragma("journal_size_limit", _LOG_BYTES_MAX)
        db.wal_autocheckpoint(_CHECKPOINT_PAGES)
        if reads_only:
            db.pragma("query_only", True)
        return db

    def _check(self) -> None:
        """Refuses a path that is not a regular file: waiting would not change that."""
        try:
            why = "" if stat.S_ISREG(os.stat(self.path).st_mode) else "it is not a regular file"
        except OSError as error:
            why = reason_of(error) if error.errno in _NO_FILE else ""
        if why:
            raise StoreBroken(f"{self.where} is not a database: {why}", do="name another file, or remove it")

    def inode(self) -> tuple[int, int]:
        """Device and inode of the file at the path now."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            raise moved(self.where) from None
        return found.st_dev, found.st_ino


class _Patience:
    """SQLite calls it to decide whether to try a lock again. It pauses for about a millisecond, with a random factor so
    that processes do not poll in step, and gives up after its time."""

    def __init__(self, patience: timedelta) -> None:
        self._seconds = patience.total_seconds()
        self._clock = SystemClock()  # other processes live in real time, whatever clock this store was made with
        self._pause = threading.Event()
        self._end = 0.0

    def asked(self, tries: int) -> bool:
        now = self._clock.monotonic()
        if tries == 0:
            self._end = now + self._seconds
        self._pause.wait(_PAUSE * (0.5 + random.random()))
        return now < self._end
