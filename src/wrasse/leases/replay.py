"""Bounded replay amid traffic: now and then, beside the operations, transactions that a crash left open are finished.

Never inside a caller's request, one at a time in a process, at most one per interval, at most so many operations and so
long. The cursor moves only past transactions that were looked at to the end. Several processes may do this at once:
everything it does is a conditional write that anybody may do again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreBroken, WrasseError
from wrasse.leases.transaction import Decision, decode_transaction
from wrasse.leases.transactions import Transactions
from wrasse.ports.records import Record

OPERATIONS_MAX = 128
SECONDS_MAX = 2.0
PAGE = 32

_log = logging.getLogger("wrasse.leases")


class Replay:
    """Finishes open transactions while keys are in use."""

    def __init__(
        self,
        transactions: Transactions,
        clock: Clock,
        interval: timedelta,
        *,
        operations_max: int = OPERATIONS_MAX,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        self._transactions, self._clock, self._interval = transactions, clock, interval.total_seconds()
        self._operations_max, self._seconds_max = operations_max, seconds_max
        self._cursor: str | None = None
        self._last: float | None = None
        self._task: asyncio.Task[int] | None = None

    def nudge(self) -> None:
        """An operation is under way: starts a run beside it, if it is time for one."""
        if self._interval <= 0 or (self._task is not None and not self._task.done()):
            return
        now = self._clock.monotonic()
        if self._last is not None and now - self._last < self._interval:
            return
        self._last = now
        self._task = asyncio.create_task(self._quietly())

    async def finished(self) -> None:
        """Until no run is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def run(self) -> int:
        """One run; how many transactions it looked at to the end."""
        left, seen = self._operations_max, 0
        self._transactions.book.tally.replays += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds_max):
                while left > 0:
                    page = await self._transactions.book.page(self._cursor, min(left, PAGE))
                    for record, cursor in zip(page.items, page.cursors, strict=True):
                        if left <= 0:
                            return seen
                        left -= await self._finish(record)
                        self._cursor, seen = cursor, seen + 1
                    if not page.more:
                        self._cursor = None  # from the beginning next time
                        break
        return seen

    async def _finish(self, record: Record) -> int:
        """What it cost, in operations."""
        try:
            kept = await self._transactions.book.confirmed(decode_transaction(record))
            if kept is None:
                return 1
            if await self._transactions.finish(kept) is not Decision.PENDING:
                self._transactions.book.tally.replayed += 1
        except StoreBroken as error:  # one that nobody can finish must not keep the others waiting
            _log.warning("a transaction cannot be finished: %s", error.message)
            return 1
        return 1 + len(kept.transaction.participants)

    async def _quietly(self) -> int:
        try:
            return await self.run()
        except WrasseError as error:
            _log.debug("left for the next replay: %s", error.message)
            return 0
