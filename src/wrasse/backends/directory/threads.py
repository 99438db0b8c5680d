"""File work off the event loop, and the one place that turns the system's errors into ours.

A call that has begun runs to its end: whoever is cancelled meanwhile learns of it afterwards. So no file is closed or
removed under the thread that writes it.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from wrasse.errors import StoreFull, StoreUnavailable, UsageError, WrasseError

T = TypeVar("T")
_THREADS_MAX = 16
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


class Threads:
    """A few threads for one root."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(_THREADS_MAX, "wrasse-directory")

    async def run(self, call: Callable[[], T], *, undo: Callable[[T], None] | None = None) -> T:
        """The answer of a call that blocks. `undo` gets the answer that nobody is there for any more."""
        if self._pool is None:
            raise StoreUnavailable(
                f"{self._where} is closed", do="open it again; a store serves until its close() and not after"
            )
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError as why:
                cancelled = why
        if cancelled is not None:
            if future.exception() is None and undo is not None:
                undo(future.result())
            raise cancelled
        try:
            return future.result()
        except OSError as why:
            raise ours(why, self._where) from why

    async def close(self) -> bool:
        """Waits for what has begun; nothing may be asked afterwards. False if it was closed already."""
        pool, self._pool = self._pool, None
        if pool is None:
            return False
        await asyncio.to_thread(pool.shutdown)
        return True


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
    if why.errno in (errno.EMFILE, errno.ENFILE):
        return StoreUnavailable(f"no more files can be opened in {where}", do="raise the limit, see ulimit -n")
    return StoreUnavailable(f"{where} could not be read or written: {said}", do="check the disk it is on")
