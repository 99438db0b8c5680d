"""A Limiter made of Records, so that producers share a rate on any backend: a read and a conditional write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from wrasse.clock import to_micros
from wrasse.ports.limiter import Allowance, Spent
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Records

BUDGETS = Collection.named("budgets")
_TRIES = 5
_CROWDED = timedelta(milliseconds=50)  # after _TRIES conflicts


class RecordedLimiter:
    """Rate budgets in the records of one collection."""

    __slots__ = ("_records",)

    def __init__(self, records: Records) -> None:
        self._records = records

    async def allow(self, key: str, count: int, *, rate: int, burst: int) -> Allowance:
        """Reserves up to `count` from the budget of this key."""
        return await self._change(key, lambda spent, now: spent.allow(now, count, rate=rate, burst=burst))

    async def give_back(self, key: str, count: int, *, rate: int) -> None:
        """Returns an unused reservation."""
        nothing = Allowance(0, timedelta(0))
        await self._change(key, lambda spent, now: (spent.give_back(now, count, rate=rate), nothing))

    async def _change(self, key: str, change: Callable[[Spent, int], tuple[Spent, Allowance]]) -> Allowance:
        for _ in range(_TRIES):
            page = await self._records.page(key, None, 1)  # not get: only a page has the backend's time
            record = next((each for each in page if each.key == key), None)
            before = Spent(int(record.value) if record is not None else 0)
            after, allowance = change(before, 1_000 * to_micros(page.at))
            if not allowance.count and allowance.wait:
                return allowance
            value = str(after.to).encode()
            if record is None:
                written = await self._records.create(key, value)
            else:
                written = await self._records.put(key, value, at=record.version)
            if written.outcome is Outcome.DONE:
                return allowance
        return Allowance(0, _CROWDED)
