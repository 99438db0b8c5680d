"""Enqueues periodic jobs: no slot lost, none doubled, with any number of processes and crashes at any point.

For each name a record stores the last slot that was handled. At a slot its job is enqueued first, under an id that
contains the slot and is remembered; then the record is updated under its version. After a crash between the two the
next process repeats both without effect. The first start ever of a name runs nothing: it begins at now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from wrasse.bounded import decoded
from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.jobs.periodic import Periodic, due_slots
from wrasse.jobs.producer import Producer
from wrasse.ports.records import Collection, Record, Records

PERIODIC = Collection.named("periodic")
_WAIT_MAX = timedelta(seconds=60)  # so that a change of the clock is noticed
_AGAIN_MAX = 5.0  # seconds
_log = logging.getLogger("wrasse.jobs")


@dataclass(frozen=True, slots=True)
class PeriodicMark:
    """The record of one periodic job: the last slot that was handled, its job, and the definition, for listings without
    the program that defines it."""

    last: datetime
    job: str
    kind: str
    when: str
    missed: str


class PeriodicScheduler:
    """Enqueues the jobs of slots as they become due."""

    def __init__(self, periodic: Iterable[Periodic], producer: Producer, records: Records, clock: Clock) -> None:
        self._periodic = tuple(periodic)
        self._producer, self._records, self._clock = producer, records, clock
        self._next: dict[str, datetime] = {}  # the first slot that was not checked
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ends `run`."""
        self._stop.set()

    async def run(self) -> None:
        """Runs until stopped. An outage of a backend delays slots, and loses none."""
        failed = 0
        while not self._stop.is_set():
            try:
                wait = await self.enqueue_due()
                failed = 0
            except StoreUnavailable as error:
                failed += 1
                if failed == 1:
                    _log.warning("periodic jobs wait for the backend: %s", error.message)
                wait = timedelta(seconds=min(0.1 * 2**failed, _AGAIN_MAX))
            try:
                async with asyncio.timeout(wait.total_seconds()):
                    await self._stop.wait()
            except TimeoutError:
                continue

    async def enqueue_due(self) -> timedelta:
        """Handles due slots; returns the time until the next check."""
        waits = [_WAIT_MAX]
        for periodic in self._periodic:
            now = self._clock.now()
            if periodic.name not in self._next or now >= self._next[periodic.name]:
                try:
                    await self._handle(periodic)
                except StoreBroken as error:  # affects this one only: the others continue
                    _log.error("a periodic job waits until its record is repaired: %s", error)
                self._next[periodic.name] = periodic.schedule.next_after(now)
            waits.append(self._next[periodic.name] - now)
        return max(min(waits), timedelta(0))

    async def _handle(self, periodic: Periodic) -> None:
        record = await self._records.get(periodic.name)
        now = self._clock.now()
        if record is None:
            await self._records.create(periodic.name, _written(periodic, now, ""))
            return
        mark = read_mark(record)
        newest = due_slots(mark.last, now, periodic.schedule, periodic.missed)
        jobs = [
            self._producer.job(periodic.kind, periodic.payload, id=periodic.job_id(slot), priority=periodic.priority)
            for slot in newest
        ]
        if jobs:
            await self._producer.enqueue_many(jobs)
            await self._records.put(periodic.name, _written(periodic, newest[-1], jobs[-1].id), at=record.version)
        elif (mark.kind, mark.when, mark.missed) != (periodic.kind, periodic.when, periodic.missed.value):
            await self._records.put(periodic.name, _written(periodic, mark.last, mark.job), at=record.version)


def _written(periodic: Periodic, last: datetime, job: str) -> bytes:
    return msgspec.json.encode(
        PeriodicMark(last.astimezone(UTC), job, periodic.kind, periodic.when, periodic.missed.value)
    )


def read_mark(record: Record) -> PeriodicMark:
    """The mark in a record of the collection."""
    try:
        return decoded(msgspec.json.Decoder(PeriodicMark).decode, record.value)
    except ValueError as why:
        raise StoreBroken(
            f"the record of the periodic job {record.key!r} cannot be read: {why}",
            do="delete it; it starts at now",
        ) from None
