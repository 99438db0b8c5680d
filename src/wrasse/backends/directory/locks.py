"""Locks between threads and between processes, released when their holder ends.

A name is locked by its hash: one of 256 files that are made once and stay. Threads of this process first queue for an
in-process lock, so that they wake one another at once; processes poll with a short pause. Every wait has a limit.
"""

from __future__ import annotations

import hashlib
import random
import threading
from itertools import count

from wrasse.backends.directory.files import Files
from wrasse.backends.directory.names import WORKPLACE
from wrasse.errors import StoreUnavailable

FOLDER = WORKPLACE + b"/lock"
_SHORTEST, _LONGEST = 0.0005, 0.02


class Locks:
    """The locks of one root. A thread holds at most one at a time, except in the order of the names."""

    def __init__(self, files: Files, patience: float = 10.0) -> None:
        self._files = files
        self._patience = patience
        self._threads = [threading.Lock() for _ in range(256)]
        self._pause = threading.Event()  # never set: waiting for it is a sleep

    def held(self, path: bytes) -> _PathLock:
        """Exclusive use of this path, for the length of a block."""
        number = hashlib.sha256(path).digest()[0]
        return _PathLock(self, self._threads[number], b"%02x" % number)

    def file(self, name: bytes, *, shared: bool = False) -> _FileLock:
        """The lock of this name, exclusive or shared, for the length of a block."""
        return _FileLock(self, name, shared)

    def take(self, name: bytes, shared: bool) -> int:
        """Takes the lock of this name; closing the file releases it."""
        lock = self._files.open_lock(FOLDER + b"/" + name)
        try:
            self._wait(lock, shared=shared)
        except BaseException:
            self._files.close(lock)
            raise
        return lock

    def take_thread(self, thread: threading.Lock) -> None:
        """Takes a lock between threads of this process."""
        if not thread.acquire(timeout=self._patience):
            raise self._busy()

    def close(self, lock: int) -> None:
        """Releases a lock."""
        self._files.close(lock)

    def _wait(self, lock: int, *, shared: bool) -> None:
        waited = 0.0
        for tries in count():
            if self._files.try_lock(lock, shared=shared):
                return
            if waited >= self._patience:
                raise self._busy()
            # A random factor, so that processes do not poll in step.
            pause = min(_SHORTEST * 2 ** min(tries, 10), _LONGEST) * (0.5 + random.random())
            self._pause.wait(pause)
            waited += pause

    def _busy(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"another process kept a lock in {self._files.root} for {self._patience:g}s; nothing was changed",
            do="look for a stopped or hanging process that uses this directory",
        )


class _FileLock:
    """The lock of one file. A class, since a generator for each of the many locks of a change costs as much as taking
    it."""

    __slots__ = ("_lock", "_locks", "_name", "_shared")

    def __init__(self, locks: Locks, name: bytes, shared: bool) -> None:
        self._locks, self._name, self._shared = locks, name, shared

    def __enter__(self) -> None:
        self._lock = self._locks.take(self._name, self._shared)

    def __exit__(self, *_: object) -> None:
        self._locks.close(self._lock)


class _PathLock:
    """The lock of one path: first between threads, then between processes."""

    __slots__ = ("_lock", "_locks", "_name", "_thread")

    def __init__(self, locks: Locks, thread: threading.Lock, name: bytes) -> None:
        self._locks, self._thread, self._name = locks, thread, name

    def __enter__(self) -> None:
        self._locks.take_thread(self._thread)
        try:
            self._lock = self._locks.take(self._name, False)
        except BaseException:
            self._thread.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._locks.close(self._lock)
        finally:
            self._thread.release()
