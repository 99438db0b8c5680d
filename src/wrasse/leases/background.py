"""Background tasks after an answer was sent: deletes of superseded objects and index entries.

Nothing here is needed for correctness: what is not done, because the process died or the store was unavailable, is
found later by its index entry. Bounded: beyond AT_ONCE_MAX tasks `add` runs the work before it returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from wrasse.errors import WrasseError

AT_ONCE_MAX = 64

T = TypeVar("T")

_log = logging.getLogger("wrasse.leases")


class BackgroundTasks:
    """Tasks that run after an answer; `finished` waits for all of them."""

    __slots__ = ("_tasks", "failed")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed = 0

    async def add(self, work: Awaitable[object]) -> None:
        """Runs this in the background; in the foreground if too many tasks are running."""
        if len(self._tasks) >= AT_ONCE_MAX:
            await self._do(work)
            return
        self.soon(work)

    def soon(self, work: Awaitable[object]) -> None:
        """Runs this in the background without a limit; for work that is started one at a time."""
        task = asyncio.create_task(self._do(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Waits until all added work is done."""
        while self._tasks:
            await asyncio.wait([*self._tasks])

    async def _do(self, work: Awaitable[object]) -> None:
        try:
            await work
        except WrasseError as error:
            self.failed += 1
            _log.debug("left for a sweep: %s", error.message)


async def beside(work: Awaitable[T], other: Awaitable[None]) -> tuple[T, WrasseError | None]:
    """Runs both concurrently; returns the result of the first and the error of the second. Both have ended then."""
    answer, failed = await asyncio.gather(work, other, return_exceptions=True)
    if isinstance(answer, BaseException):
        raise answer
    if failed is not None and not isinstance(failed, WrasseError):
        raise failed
    return answer, failed
