"""Conditional writes to records, asked again under the same nonce when a reply is lost, and the store's time with them.

Nobody is refused because of their own write: a write that the store carried out without telling us gives its first
answer when it is asked again. Every answer also brings the store's clock, so that time is hardly ever asked for.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime

from wrasse.clock import EPOCH, Clock
from wrasse.errors import StoreUnavailable
from wrasse.leases.store_time import StoreTime
from wrasse.ports.records import Records, Written

ASKED_MAX = 3  # how often one write is asked before its reply counts as lost for good


class Writes:
    """The records of one collection, and the time there. Writes that are not `named` have no nonce: whoever asks again
    may be told `lost` because of their own write, and must be able to see from the record that it is made."""

    __slots__ = ("_clock", "_named", "_time", "records")

    def __init__(self, records: Records, clock: Clock, *, named: bool = True) -> None:
        self.records = records
        self._named = named
        self._clock = clock
        self._time = StoreTime(clock)

    async def write(
        self, key: str, value: bytes, at: str | None, due_at: datetime | None, *, entry_stays: bool = False
    ) -> Written:
        """Writes over the version `at`, or creates the record where that is None."""
        nonce = self._nonce()
        if at is None:
            return await self._ask(lambda: self.records.create(key, value, due_at=due_at, nonce=nonce))
        return await self._ask(
            lambda: self.records.put(key, value, at=at, due_at=due_at, nonce=nonce, entry_stays=entry_stays)
        )

    async def delete(self, key: str, at: str) -> Written:
        """Deletes the version `at`."""
        nonce = self._nonce()
        return await self._ask(lambda: self.records.delete(key, at=at, nonce=nonce))

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        at = self._time.earliest()
        if at is None:
            asked = self._clock.monotonic()
            # The cheapest read that brings the store's clock along: nothing is due since 1970.
            at = (await self.records.due(EPOCH, None, 1)).at
            self._time.note(at, asked)
        return at

    def monotonic(self, instant: datetime) -> float:
        """Our monotonic time before which the store's clock cannot show this instant."""
        return self._time.monotonic(instant)

    def _nonce(self) -> str | None:
        return secrets.token_hex(8) if self._named else None

    async def _ask(self, write: Callable[[], Awaitable[Written]]) -> Written:
        for asked in range(1, ASKED_MAX + 1):
            started = self._clock.monotonic()
            try:
                written = await write()
            except StoreUnavailable:
                if asked == ASKED_MAX:
                    raise
                await asyncio.sleep(random.uniform(0.02, 0.05) * asked)
            else:
                self._time.note(written.at, started)
                return written
        raise AssertionError("the last try answers or raises")
