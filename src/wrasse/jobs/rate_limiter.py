"""Enqueues jobs no faster than a rate that many processes share.

A job is enqueued after its share is reserved from the budget. The share of a job that already existed serves the next
one or is returned, so that only new jobs count. While there is no budget nothing is reserved: a process may stop or die
at any point.

`RecordLimiter` is a Limiter on records, so that producers share a rate on any backend: a read and a conditional write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import to_micros
from wrasse.errors import UsageError
from wrasse.jobs.producer import Producer
from wrasse.ports.jobs import BATCH_MAX, Enqueued, Job
from wrasse.ports.limiter import RATE_MAX, Allowance, Limiter, Spent
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Records

BUDGETS = Collection.named("budgets")
_BURST = 4  # the part of a second's budget that may be used at once: a quarter
_CREDIT_MAX = 0.05  # seconds between reservation and enqueue: no longer than a slow enqueue
_TRIES = 5
_CROWDED = timedelta(milliseconds=50)  # after _TRIES conflicts


@dataclass(frozen=True, slots=True)
class SharedRate:
    """A rate per second, and the limiter that counts it for all processes with the same key. A rate of 0 is no
    limit."""

    limiter: Limiter
    key: str
    rate: int

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= RATE_MAX:
            raise UsageError(f"a rate of {self.rate} a second", do=f"use 0 for no limit, or up to {RATE_MAX}")

    @property
    def burst(self) -> int:
        """How many may be enqueued at once: few enough for an even flow, many enough for batches."""
        return max(1, self.rate // _BURST)

    @property
    def batch(self) -> int:
        """The best batch size at this rate."""
        return min(BATCH_MAX, self.burst) if self.rate else BATCH_MAX

    async def allow(self, count: int) -> tuple[int, timedelta]:
        """How many of `count` may be enqueued now, and how long to wait for the rest."""
        if not self.rate:
            return count, timedelta(0)
        allowance = await self.limiter.allow(self.key, count, rate=self.rate, burst=self.burst)
        return allowance.count, allowance.wait

    async def give_back(self, count: int) -> None:
        """Returns an unused reservation."""
        if self.rate and count:
            await self.limiter.give_back(self.key, count, rate=self.rate)


async def enqueue_paced(
    producer: Producer, jobs: Sequence[Job], pace: SharedRate, stop: asyncio.Event | None = None
) -> AsyncIterator[Sequence[Enqueued]]:
    """Enqueues the jobs at that rate, piece by piece; yields the answers of each piece. If it is stopped, the last jobs
    have no answer and are not enqueued."""
    stop = stop or asyncio.Event()
    clock = producer.clock
    done, credit, since = 0, 0, clock.monotonic()
    while done < len(jobs) and not stop.is_set():
        left = jobs[done : done + pace.batch]
        if not credit:
            since = clock.monotonic()
        elif clock.monotonic() - since > _CREDIT_MAX:
            await pace.give_back(credit)
            credit = 0
        more, wait = await pace.allow(len(left) - credit) if credit < len(left) else (0, timedelta(0))
        credit += more
        if not credit:
            await slept(wait, stop)
            continue
        answers = await producer.enqueue_many(left[:credit])
        done += len(answers)
        # Existing jobs cost nothing, so their share serves the next piece, if that follows at once.
        credit -= sum(answer.new for answer in answers)
        yield answers
    await pace.give_back(credit)


async def slept(wait: timedelta, stop: asyncio.Event) -> bool:
    """Waits this long; False if `stop` was set before."""
    try:
        async with asyncio.timeout(wait.total_seconds()):
            await stop.wait()
    except TimeoutError:
        return True
    return False


class RecordLimiter:
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
