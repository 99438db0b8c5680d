"""Enqueueing jobs no faster than a rate that many processes share.

Before a job is enqueued it is taken out of the budget. What turns out to be known already serves the next one or is
given back, so that only new jobs count. While there is no budget nothing is reserved and nothing half done: a process
may stop or die right there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.errors import UsageError
from wrasse.jobs.producer import Producer
from wrasse.ports.jobs import BATCH_MAX, Enqueued, Job
from wrasse.ports.limiter import RATE_MAX, Limiter

_BURST = 4  # the part of a second's budget that may go out at once: a quarter
_CREDIT_MAX = 0.05  # seconds between taking out of the budget and putting: no longer than a slow put


@dataclass(frozen=True, slots=True)
class SharedRate:
    """A rate per second, and who counts it for everybody with the same key. A rate of 0 is no limit."""

    limiter: Limiter
    key: str
    rate: int

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= RATE_MAX:
            raise UsageError(f"a rate of {self.rate} a second", do=f"use 0 for no limit, or up to {RATE_MAX}")

    @property
    def burst(self) -> int:
        """How many may go out at once: few enough for an even flow, many enough for batches."""
        return max(1, self.rate // _BURST)

    @property
    def batch(self) -> int:
        """How many it makes sense to put together."""
        return min(BATCH_MAX, self.burst) if self.rate else BATCH_MAX

    async def allow(self, count: int) -> tuple[int, timedelta]:
        """How many of so many may be enqueued now, and how long to wait for the rest."""
        if not self.rate:
            return count, timedelta(0)
        allowance = await self.limiter.allow(self.key, count, rate=self.rate, burst=self.burst)
        return allowance.count, allowance.wait

    async def give_back(self, count: int) -> None:
        """Returns what was not needed."""
        if self.rate and count:
            await self.limiter.give_back(self.key, count, rate=self.rate)


async def enqueue_paced(
    producer: Producer, jobs: Sequence[Job], pace: SharedRate, stop: asyncio.Event | None = None
) -> AsyncIterator[Sequence[Enqueued]]:
    """Puts the jobs at that pace, piece by piece; gives the answers of each piece. If it was stopped, the last are
    missing, and have not been enqueued."""
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
        puts = await producer.enqueue_many(left[:credit])
        done += len(puts)
        # What was known already cost nothing, so its share serves the next piece, if that follows at once.
        credit -= sum(put.new for put in puts)
        yield puts
    await pace.give_back(credit)


async def slept(wait: timedelta, stop: asyncio.Event) -> bool:
    """Waits this long; False if it was stopped before."""
    try:
        async with asyncio.timeout(wait.total_seconds()):
            await stop.wait()
    except TimeoutError:
        return True
    return False
