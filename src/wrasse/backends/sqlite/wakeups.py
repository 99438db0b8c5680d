"""Wakeups of waiting workers: by an enqueue of this process at once, by another process or a due job within a tick.

The watching thread works only while a worker waits. A tick reads the database's version; only if that has changed it
reads which queues have ready jobs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import apsw

from wrasse.backends.sqlite.connection import File
from wrasse.backends.wakeup import Wakeup, registered
from wrasse.clock import Clock, to_micros

TICK = 0.025
CHANGED = "\0changed"  # fires with every change of any process; no queue has this name
_PAUSE_AFTER_FAILURE = 1.0


class SqliteWakeups:
    """All wakeups of one process, and the thread that fires them for changes of other processes."""

    def __init__(self, file: File, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._wakeups: set[Wakeup] = set()
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="wrasse-sqlite-watch", daemon=True)

    @contextmanager
    def listen(self, queues: Iterable[str], wait: timedelta) -> Iterator[Wakeup]:
        """A wakeup for these queues, which fires after `wait` at the latest."""
        try:
            with registered(self._wakeups, queues, wait) as wakeup:
                self._wanted.set()
                if self._thread.ident is None and not self._stopped.is_set():
                    self._thread.start()
                yield wakeup
        finally:
            if not self._wakeups:
                self._wanted.clear()

    def fire(self, queues: frozenset[str] | None) -> None:
        """Fires the wakeups for these queues; None is every queue."""
        for wakeup in self._wakeups:
            if queues is None or not queues.isdisjoint(wakeup.names):
                wakeup.fire()

    def close(self) -> None:
        """Ends the watching and fires all wakeups."""
        self._stopped.set()
        self._wanted.set()
        for wakeup in self._wakeups:
            wakeup.expire()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            try:
                db = self._file.open(reads_only=True)
                try:
                    self._look(db)
                finally:
                    db.close()
            except Exception:
                # A woken worker asks the writer, which raises the error; here the check is only repeated later.
                self._tell(None)
                self._stopped.wait(_PAUSE_AFTER_FAILURE)

    def _look(self, db: apsw.Connection) -> None:
        """Polls once a tick until the end, but only while a worker waits."""
        seen = due = None
        while self._wanted.wait() and not self._stopped.wait(TICK):
            version = db.execute("PRAGMA data_version").get
            if version != seen:
                seen = version
                ready = [queue for (queue,) in db.execute("SELECT queue FROM counts WHERE state = 0 AND n > 0")]
                due = db.execute("SELECT min(ready_at) FROM jobs WHERE state = 1").get
                self._tell(frozenset((CHANGED, *ready)))
            if due is not None and due <= to_micros(self._clock.now()):
                due = None  # the woken worker promotes it, and that makes a new version
                self._tell(None)

    def _tell(self, queues: frozenset[str] | None) -> None:
        with suppress(RuntimeError):  # the event loop is closed: no worker waits any more
            self._loop.call_soon_threadsafe(self.fire, queues)
