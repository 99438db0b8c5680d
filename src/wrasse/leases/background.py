"""What is left to do once an answer has gone out: superseded objects and index entries that nobody needs any more.

Nothing here is needed for correctness: what is not done, because the process died or the store did not answer, is
found again by its index entry. Bounded: beyond that many at once, whoever adds one more waits for it.
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
    """Small jobs that run after an answer; `finished` waits for all of them."""

    __slots__ = ("_tasks", "failed")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed = 0

    async def add(self, work: Awaitable[object]) -> None:
        """Does this soon; at once, if there is too much to do already."""
        if len(self._tasks) >= AT_ONCE_MAX:
            await self._do(work)
            return
        self.soon(work)

    def soon(self, work: Awaitable[object]) -> None:
        """Does this soon, whatever else there is to do: for what comes one by one."""
        task = asyncio.create_task(self._do(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Until everything that was added is done."""
        while self._tasks:
            await asyncio.wait([*self._tasks])

    async def _do(self, work: Awaitable[object]) -> None:
        try:
            await work
        except WrasseError as error:
            self.failed += 1
            _log.debug("left for a sweep: %s", error.message)


async def beside(work: Awaitable[T], other: Awaitable[None]) -> tuple[T, WrasseError | None]:
    """Does both at once; the answer of the one, and how the other failed. Both have ended when this returns."""
    answer, failed = await asyncio.gather(work, other, return_exceptions=True)
    if isinstance(answer, BaseException):
        raise answer
    if failed is not None and not isinstance(failed, WrasseError):
        raise failed
    return answer, failed
