"""The circuit breakers of a worker: one per queue, fed by the outcomes of its attempts.

An attempt that is charged to the failure budget of its job, by an error or a timeout, counts as a failure; a completed
one as a success. An attempt that was stopped, cancelled or lost its claim says nothing about its queue, nor does an
unreadable payload or a kind without a handler: such a probe is released.

A breaker lives in the memory of its worker. So that other processes can show it, each worker keeps one record of the
breakers that are not closed, written when that changes and deleted when all are closed or the worker ends. A record of
a killed worker is ignored, since its worker sends no heartbeat, and the next worker that starts deletes it. The record
is for display and decides nothing: while the backend does not answer it is late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection as Some, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import decoded
from wrasse.breaker import Breaker, BreakerSettings, BreakerState
from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable
from wrasse.jobs.worker.running_job import InFlightJob
from wrasse.ports.jobs import Budget, Complete, DeadLetterJob, JobQueue, Reason, Requeue, Settlement
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Record, Records

_log = logging.getLogger("wrasse.jobs")


@dataclass(frozen=True, slots=True)
class BreakerFacts:
    """One breaker at one moment. `shut`: for how many seconds it has not been closed; `waits`: it may probe as soon as
    a job comes."""

    queue: str
    state: BreakerState
    trips: int
    shut: float = 0.0
    waits: bool = False


class Breakers:
    """Which queues a worker may claim from, and which of their jobs it may start."""

    __slots__ = ("_by_queue", "_clock", "_worker")

    def __init__(self, queues: Sequence[str], settings: BreakerSettings, clock: Clock, worker: str = "") -> None:
        self._by_queue = {queue: Breaker(settings) for queue in queues}
        self._clock = clock
        self._worker = worker

    def closed(self, queues: Sequence[str]) -> tuple[str, ...]:
        """The queues whose breaker is closed, in their order."""
        now = self._clock.monotonic()
        return tuple(queue for queue in queues if not self._by_queue[queue].state(now))

    def to_probe(self, queues: Sequence[str]) -> tuple[str, ...]:
        """The queues from which one job may be claimed as a probe."""
        now = self._clock.monotonic()
        return tuple(queue for queue in queues if self._by_queue[queue].probe_free(now))

    def until_probe(self) -> float:
        """Seconds until the next cooldown is over; zero if none is under way."""
        now = self._clock.monotonic()
        left = [breaker.opens_in(now) for breaker in self._by_queue.values()]
        return min((seconds for seconds in left if seconds), default=0.0)

    def admit(self, work: InFlightJob) -> bool:
        """Gives a claimed job its ticket; False when it must not run."""
        breaker = self._by_queue.get(work.claimed.job.queue)
        if breaker is None:
            return True
        ticket = breaker.admit(self._clock.monotonic())
        if ticket is None:
            return False
        work.ticket = ticket
        return True

    def lets_start(self, work: InFlightJob) -> bool:
        """Whether an admitted job may start: False if its queue's breaker opened meanwhile."""
        breaker = self._by_queue.get(work.claimed.job.queue)
        return breaker is None or breaker.holds(work.ticket)

    def record_end(self, work: InFlightJob, settlement: Settlement) -> None:
        """Records the outcome of an attempt."""
        breaker = self._by_queue.get(work.claimed.job.queue)
        if breaker is None:
            return
        ok = verdict(settlement)
        if ok is None:
            breaker.give_back(work.ticket)
            return
        changed = breaker.record(work.ticket, ok, self._clock.monotonic())
        if changed is not None:
            self._log_change(work.claimed.job.queue, changed)

    def forget(self, work: InFlightJob) -> None:
        """Releases the ticket of an attempt whose claim is gone."""
        breaker = self._by_queue.get(work.claimed.job.queue)
        if breaker is not None:
            breaker.give_back(work.ticket)

    def facts(self) -> tuple[BreakerFacts, ...]:
        """Every breaker as it is now."""
        now = self._clock.monotonic()
        return tuple(
            BreakerFacts(
                queue,
                breaker.state(now),
                breaker.trips,
                0.0 if breaker.shut_since is None else now - breaker.shut_since,
                breaker.probe_free(now),
            )
            for queue, breaker in self._by_queue.items()
        )

    def _log_change(self, queue: str, state: BreakerState) -> None:
        about = {"queue": queue, "worker_id": self._worker}
        if state is BreakerState.CLOSED:
            _log.info("the breaker closed: a job succeeded, and its queue is claimed from again", extra=about)
        else:
            _log.warning("the breaker opened: too many jobs fail, and its queue is paused", extra=about)


def verdict(settlement: Settlement) -> bool | None:
    """True for a success, False for a failure, None if the attempt says nothing about its queue."""
    match settlement:
        case Complete():
            return True
        case Requeue(reason=Reason.NO_HANDLER) | DeadLetterJob(reason=Reason.NO_HANDLER):
            return None
        case Requeue(spends=Budget.FAILURES) | DeadLetterJob(spends=Budget.FAILURES):
            return False
    return None


SHUT_QUEUES = Collection.named(".wrasse/breakers")
NOTES_MAX = 1_000
_INTERVAL = 0.5  # seconds between two checks of the breakers
_WRITE_MAX = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class ShutQueue:
    """A queue whose breaker is open or half-open in one worker, and since when."""

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
        self._written: tuple[tuple[str, BreakerState], ...] = ()
        self._version: str | None = None

    async def run(self) -> None:
        """Writes changes until cancelled."""
        try:
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_WRITE_MAX):
                    await self._clear_left_behind()
            while True:
                with suppress(StoreUnavailable, TimeoutError):
                    async with asyncio.timeout(_WRITE_MAX):
                        await self.write_changes()
                await asyncio.sleep(_INTERVAL)
        finally:
            if self._version is not None:
                with suppress(StoreUnavailable, TimeoutError):
                    async with asyncio.timeout(_WRITE_MAX):
                        await self._records.delete(self._worker, at=self._version)

    async def write_changes(self) -> None:
        """Writes the state of the breakers if it changed."""
        shut = shut_here(self._breakers, self._worker, self._clock)
        now = tuple((each.queue, each.state) for each in self._breakers.facts() if each.state)
        if now == self._written:
            return
        value = msgspec.json.encode(shut)
        if self._version is None:
            written = await self._records.create(self._worker, value)
            if written.outcome is Outcome.CONFLICT:  # after a lost answer: the record is ours, with any content
                stored = await self._records.get(self._worker)
                self._version = None if stored is None else stored.version
                return
        elif now:
            written = await self._records.put(self._worker, value, at=self._version)
        else:
            written = await self._records.delete(self._worker, at=self._version)
        self._version = written.version if written and now else None
        if written:
            self._written = now

    async def _clear_left_behind(self) -> None:
        stored = {worker.info.id for worker in (await self._jobs.counts()).workers}
        for record in await self._records.page("", None, NOTES_MAX):
            if record.key not in stored and record.key != self._worker:
                await self._records.delete(record.key, at=record.version)


def shut_here(breakers: Breakers, worker: str, clock: Clock) -> tuple[ShutQueue, ...]:
    """The queues of a worker of this process whose breaker is not closed now."""
    at = clock.now()
    return tuple(
        ShutQueue(each.queue, each.state.word, worker, at - timedelta(seconds=each.shut))
        for each in breakers.facts()
        if each.state
    )


async def shut_queues(records: Records, live: Some[str]) -> tuple[ShutQueue, ...]:
    """The records of live workers, decoded."""
    found: list[ShutQueue] = []
    for record in await records.page("", None, NOTES_MAX):
        if record.key in live:
            found += read_shut(record)
    return tuple(sorted(found, key=lambda each: (each.queue, each.worker)))


def read_shut(record: Record) -> tuple[ShutQueue, ...]:
    """One worker's record, decoded; empty where another version of wrasse, or something else, wrote it."""
    try:
        return decoded(_DECODE, record.value)
    except ValueError:
        return ()
