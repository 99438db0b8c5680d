"""File work off the event loop, and the one place that maps the system's errors to ours.

A call that has begun runs to its end: a cancelled caller is resumed only afterwards. So no file is closed or removed
while a thread writes it. This pool is our own, since the standard pool's bookkeeping takes a third of a change of a few
hundred microseconds.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

from wrasse.errors import StoreBroken, StoreFull, StoreUnavailable, UsageError, WrasseError

T = TypeVar("T")
_THREADS_MAX = 16
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


class _Call(Generic[T]):
    """One call in a thread. All methods but `work` run on the event loop."""

    __slots__ = ("_answer", "_call", "_done", "_error", "_loop", "_then", "_waiter")

    def __init__(self, call: Callable[[], T], then: Callable[[], None] | None) -> None:
        self._call = call
        self._then = then
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] = self._loop.create_future()
        self._error: BaseException | None = None
        self._answer: list[T] = []
        self._done = False

    def work(self) -> None:
        """Makes the call."""
        try:
            self._answer.append(self._call())
        except BaseException as error:  # whatever it is, the waiting caller raises it
            self._error = error
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(self._finish)
        if self._then is not None:
            self._then()

    async def ended(self) -> asyncio.CancelledError | None:
        """Waits to the end, and returns the cancellation of the caller, if there was one."""
        cancelled: asyncio.CancelledError | None = None
        while not self._done:
            try:
                await self._waiter
            except asyncio.CancelledError as why:
                cancelled = why
                self._waiter = self._loop.create_future()
        return cancelled

    def undo(self, undo: Callable[[T], None]) -> None:
        """Undoes the result of a call whose caller was cancelled."""
        for answer in self._answer:
            undo(answer)

    def answer(self) -> T:
        """The call's result, or its exception."""
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def _finish(self) -> None:
        self._done = True
        if not self._waiter.done():
            self._waiter.set_result(None)


class Threads:
    """A few threads for one root, started as they are needed."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._calls: SimpleQueue[_Call[object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        self._closed = False

    async def run(
        self, call: Callable[[], T], *, undo: Callable[[T], None] | None = None, then: Callable[[], None] | None = None
    ) -> T:
        """Runs a blocking call. `undo` gets the result if the caller was cancelled; `then` runs after the result was
        handed over, while the caller wakes up, and must not raise."""
        if self._closed:
            raise StoreUnavailable(
                f"{self._where} is closed", do="open it again; a store serves until its close() and not after"
            )
        pending = _Call(call, then)
        self._under_way += 1
        if len(self._threads) < min(self._under_way, _THREADS_MAX):
            self._start()
        self._calls.put(pending)  # type: ignore[arg-type]  # the type of the result matters to this method only
        cancelled = await pending.ended()
        self._under_way -= 1
        if cancelled is not None:
            if undo is not None:
                pending.undo(undo)
            raise cancelled
        try:
            return pending.answer()
        except OSError as why:
            raise ours(why, self._where) from why

    async def close(self) -> bool:
        """Waits for calls that have begun; no call is accepted afterwards. False if it was closed already."""
        if self._closed:
            return False
        self._closed = True
        for _ in self._threads:
            self._calls.put(None)
        await asyncio.to_thread(self._join)
        return True

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        # Daemon threads: a process that ends without closing must not wait for them; for the files this is like a
        # crash.
        thread = threading.Thread(target=self._work, name="wrasse-directory", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.work()


def ours(why: OSError, where: str) -> WrasseError:
    """Our error for one of the system's."""
    said = os.strerror(why.errno) if why.errno else str(why)
    if why.errno in _NO_ROOM:
        return StoreFull(f"there is no room left in {where}", do="free some disk space; nothing was changed")
    if why.errno in _NOT_ALLOWED:
        return StoreUnavailable(f"{where} refuses: {said}", do="let this user write the directory and all in it")
    if why.errno == errno.ENAMETOOLONG:
        return UsageError(f"a name is too long for the file system of {where}", do="use a shorter key")
    if why.errno == errno.EXDEV:
        return StoreUnavailable(
            f"a directory in {where} is on another file system", do="mount the file system at the directory itself"
        )
    if why.errno in (errno.ENOTDIR, errno.ELOOP):
        return StoreBroken(
            f"a symbolic link or a file stands where {where} needs a directory; links inside a store are not followed",
            do="move what it points to into its place, or mount it there",
        )
    if why.errno in (errno.EMFILE, errno.ENFILE):
        return StoreUnavailable(f"no more files can be opened in {where}", do="raise the limit, see ulimit -n")
    return StoreUnavailable(f"{where} could not be read or written: {said}", do="check its disk")
