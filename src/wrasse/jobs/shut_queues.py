"""Which queues workers leave alone because a breaker is not closed, told to whoever asks the backend.

A breaker lives in the memory of its worker. So each worker keeps one record of those that are not closed, written when
that changes and gone when all are closed or the worker is. A record that a killed worker left counts for nothing, since
its worker does not beat, and is deleted by the next worker that starts. It is for people to see and decides nothing:
while the backend does not answer it is late, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection as Some
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import decoded
from wrasse.breaker import BreakerState
from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable
from wrasse.jobs.breakers import Breakers
from wrasse.ports.jobs import JobQueue
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Record, Records

SHUT_QUEUES = Collection.named(".wrasse/breakers")
NOTES_MAX = 1_000
_LOOK = 0.5  # seconds between two looks at the breakers
_WRITE_MAX = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class ShutQueue:
    """A queue that one worker leaves alone, or takes no more than one job from, and since when."""

    queue: str
    state: str
    worker: str
    since: datetime


_DECODE = msgspec.json.Decoder(tuple[ShutQueue, ...]).decode


class ShutQueues:
    """Keeps the record of one worker."""

    def __init__(self, breakers: Breakers, worker: str, jobs: JobQueue, records: Records, clock: Clock) -> None:
        self._breakers, self._worker, self._jobs = breakers, worker, jobs
        self._records, self._clock = records, clock
        self._told: tuple[tuple[str, BreakerState], ...] = ()
        self._version: str | None = None

    async def run(self) -> None:
        """Tells until cancelled."""
        try:
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_WRITE_MAX):
                    await self._clear_left_behind()
            while True:
                with suppress(StoreUnavailable, TimeoutError):
                    async with asyncio.timeout(_WRITE_MAX):
                        await self.look()
                await asyncio.sleep(_LOOK)
        finally:
            if self._version is not None:
                with suppress(StoreUnavailable, TimeoutError):
                    async with asyncio.timeout(_WRITE_MAX):
                        await self._records.delete(self._worker, at=self._version)

    async def look(self) -> None:
        """Writes how the breakers are, if that is news."""
        shut = shut_here(self._breakers, self._worker, self._clock)
        now = tuple((each.queue, each.state) for each in self._breakers.facts() if each.state)
        if now == self._told:
            return
        value = msgspec.json.encode(shut)
        if self._version is None:
            written = await self._records.create(self._worker, value)
            if written.outcome is Outcome.LOST:  # an answer that was lost: the record is ours, whatever it says
                known = await self._records.get(self._worker)
                self._version = None if known is None else known.version
                return
        elif now:
            written = await self._records.put(self._worker, value, at=self._version)
        else:
            written = await self._records.delete(self._worker, at=self._version)
        self._version = written.version if written and now else None
        if written:
            self._told = now

    async def _clear_left_behind(self) -> None:
        known = {worker.info.id for worker in (await self._jobs.counts()).workers}
        for record in await self._records.page("", None, NOTES_MAX):
            if record.key not in known and record.key != self._worker:
                await self._records.delete(record.key, at=record.version)


def shut_here(breakers: Breakers, worker: str, clock: Clock) -> tuple[ShutQueue, ...]:
    """The queues that a worker of this process leaves alone now."""
    at = clock.now()
    return tuple(
        ShutQueue(each.queue, each.state.word, worker, at - timedelta(seconds=each.shut))
        for each in breakers.facts()
        if each.state
    )


async def shut_queues(records: Records, beating: Some[str]) -> tuple[ShutQueue, ...]:
    """What the workers that beat have told."""
    found: list[ShutQueue] = []
    for record in await records.page("", None, NOTES_MAX):
        if record.key in beating:
            found += read_shut(record)
    return tuple(sorted(found, key=lambda each: (each.queue, each.worker)))


def read_shut(record: Record) -> tuple[ShutQueue, ...]:
    """What one worker has told; nothing where another version of wrasse, or something else, wrote the record."""
    try:
        return decoded(_DECODE, record.value)
    except ValueError:
        return ()
