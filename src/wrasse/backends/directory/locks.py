"""Locks that hold between threads and between processes, and end with their holder.

A name is locked by its hash: one of 256 files that are made once and stay. Threads of this process queue for a lock of
their own first, so that they wake one another at once; processes look again after a short pause. Every wait ends.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from wrasse.backends.directory.files import Files
from wrasse.backends.directory.names import WORKPLACE
from wrasse.errors import StoreUnavailable

FOLDER = WORKPLACE + b"/lock"
_SHORTEST, _LONGEST = 0.0005, 0.02


class Locks:
    """The locks of one root. At most one is held at a time by one thread, except in the order of the names."""

    def __init__(self, files: Files, patience: float = 10.0) -> None:
        self._files = files
        self._patience = patience
        self._threads = [threading.Lock() for _ in range(256)]
        self._pause = threading.Event()  # never set: waiting for it is a pause

    @contextmanager
    def held(self, path: bytes) -> Iterator[None]:
        """Alone with this path."""
        number = hashlib.sha256(path).digest()[0]
        thread = self._threads[number]
        if not thread.acquire(timeout=self._patience):
            raise self._busy()
        try:
            with self.file(b"%02x" % number):
                yield
        finally:
            thread.release()

    @contextmanager
    def file(self, name: bytes, *, shared: bool = False) -> Iterator[None]:
        """The lock of this name, alone or shared with others who share it."""
        lock = self._files.open_lock(FOLDER + b"/" + name)
        try:
            self._wait(lock, shared=shared)
            yield
        finally:
            self._files.close(lock)

    def _wait(self, lock: int, *, shared: bool) -> None:
        waited = 0.0
        for tries in count():
            if self._files.try_lock(lock, shared=shared):
                return
            if waited >= self._patience:
                raise self._busy()
            # A little different each time, so that processes do not keep step.
            pause = min(_SHORTEST * 2 ** min(tries, 10), _LONGEST) * (0.5 + random.random())
            self._pause.wait(pause)
            waited += pause

    def _busy(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"a lock in {self._files.root} stayed with another process for {self._patience:g}s; nothing was changed",
            do="look for a process that uses this directory and is stopped or hangs",
        )
