"""Settles ended attempts in batches, until the backend has answered.

One settle call is in flight at a time; attempts that end meanwhile go with the next one, so that batches grow with the
load. When the backend does not answer, the same call is repeated under the same request id, so that it takes effect
once. No result is dropped while the process lives, and it is counted only once the backend has answered. The queue of
results is bounded because the worker claims no more jobs than its heartbeat table has places.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Sequence
from datetime import timedelta

from wrasse.errors import StoreUnavailable, UsageError
from wrasse.ids import Ids
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.breakers import Breakers
from wrasse.jobs.worker.in_flight import InFlightJob, InFlightJobs, JobStage
from wrasse.jobs.worker.progress import ProgressReporter
from wrasse.ports.jobs import (
    BATCH_MAX,
    Budget,
    Complete,
    DeadLetterJob,
    JobQueue,
    Reason,
    Requeue,
    Settlement,
    error_text,
)
from wrasse.ports.outcome import Outcome

BATCH_BYTES_MAX = 8 << 20
RETRY_BACKOFF = RetryPolicy(base=timedelta(milliseconds=50), max=timedelta(seconds=2))

_Entry = tuple[InFlightJob, Settlement]
_End = tuple[Settlement, Outcome]
_log = logging.getLogger("wrasse.jobs")


class Completer:
    """Settles ended attempts, for one worker."""

    def __init__(
        self,
        jobs: JobQueue,
        claims: InFlightJobs,
        tally: Tally,
        ids: Ids,
        capacity: asyncio.Event,
        reporter: ProgressReporter,
        breakers: Breakers | None = None,
    ) -> None:
        self._jobs = jobs
        self._claims = claims
        self._tally = tally
        self._ids = ids
        self._reporter = reporter
        self._breakers = breakers  # each ended attempt is recorded in them
        self._capacity = capacity  # set when places in the heartbeat table become free
        self._pending: deque[_Entry] = deque()
        self._in_flight = 0
        self._bytes = 0
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._closing = False

    @property
    def unsettled(self) -> int:
        """How many ended attempts the backend has not yet settled."""
        return len(self._pending) + self._in_flight

    @property
    def bytes(self) -> int:
        """The total size of their results."""
        return self._bytes

    def add(self, job: InFlightJob, settlement: Settlement) -> None:
        """Queues the outcome of an attempt; from here on nothing else may end it."""
        job.stage = JobStage.ENDED
        self._pending.append((job, settlement))
        if self._breakers is not None:
            self._breakers.record_end(job, settlement)
        if type(settlement) is Complete and settlement.result:
            self._bytes += len(settlement.result)
        if not self._wake.is_set():
            self._wake.set()
            self._drained.clear()

    def forget(self, job: InFlightJob) -> None:
        """Drops a job whose claim is no longer current: there is nothing to settle."""
        job.stage = JobStage.ENDED
        self._tally.lost.add(job.claimed.job.queue)
        if self._breakers is not None:
            self._breakers.forget(job)
        self._claims.drop(job)
        self._capacity.set()

    async def drained(self) -> None:
        """Waits until everything is settled."""
        await self._drained.wait()

    def close(self) -> None:
        """Lets `run` end once everything is settled."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Settles until closed."""
        while True:
            if not self._pending:
                self._wake.clear()
                self._drained.set()
                if self._closing:
                    return
                await self._wake.wait()
                continue
            batch = self._next_batch()
            self._in_flight = len(batch)
            if self._reporter.pending:
                await self._reporter.report([job.claimed.job.id for job, _ in batch])
            ends = await self._settle([settlement for _, settlement in batch])
            for (job, _), (settlement, outcome) in zip(batch, ends, strict=True):
                self._count(job.claimed.job.queue, settlement, outcome)
                self._claims.drop(job)
            self._in_flight = 0
            self._capacity.set()

    def _next_batch(self) -> list[_Entry]:
        if not self._bytes and len(self._pending) <= BATCH_MAX:
            batch = list(self._pending)
            self._pending.clear()
            return batch
        batch, size = [], 0
        while self._pending and len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            job, settlement = self._pending.popleft()
            batch.append((job, settlement))
            if isinstance(settlement, Complete):
                size += len(settlement.result or b"")
        self._bytes -= size
        return batch

    async def _settle(self, settlements: Sequence[Settlement]) -> Sequence[_End]:
        """Each settlement and its outcome. One that the queue refuses is settled alone, and a job whose result or
        follow-ups cannot be stored is dead-lettered."""
        try:
            ends = list(zip(settlements, await self._settle_until_answered(settlements), strict=True))
        except UsageError as error:  # a batch is refused before anything of it is changed
            if len(settlements) > 1:
                ends = [(each, Outcome.FAILED) for each in settlements]
            elif isinstance(settlements[0], Complete):
                return await self._settle([_dead_letter_refused(settlements[0], error)])
            else:
                raise
        if len(settlements) > 1:
            for n, (settlement, outcome) in enumerate(ends):
                if outcome is Outcome.FAILED:
                    (ends[n],) = await self._settle([settlement])
        return ends

    async def _settle_until_answered(self, settlements: Sequence[Settlement]) -> Sequence[Outcome]:
        request = self._ids.new()
        failed = 0
        while True:
            try:
                outcomes = await self._jobs.settle(settlements, request=request)
            except StoreUnavailable as error:
                failed += 1
                self._tally.unavailable += 1
                if failed == 1:
                    _log.warning("results wait for the backend: %s", error.message, extra={"count": len(settlements)})
                await asyncio.sleep(RETRY_BACKOFF.delay(failed, random.random()).total_seconds())
                continue
            if failed:
                _log.info("the waiting results were settled", extra={"count": len(settlements)})
            return outcomes

    def _count(self, queue: str, settlement: Settlement, outcome: Outcome) -> None:
        tally = self._tally
        if outcome is not Outcome.DONE:
            tally.lost.add(queue)
            return
        match settlement:
            case Complete():
                tally.completed.add(queue)
            case Requeue(spends=Budget.INTERRUPTIONS):
                tally.interrupted.add(queue)
            case Requeue(reason=reason):
                tally.fail(queue, reason)
                tally.requeued.add(queue)
            case DeadLetterJob(reason=reason):
                tally.fail(queue, reason)
                tally.dead.add(queue)


def _dead_letter_refused(complete: Complete, error: UsageError) -> DeadLetterJob:
    """The settlement of a job that is done, but whose result or follow-ups the queue cannot store."""
    why = error_text(f"done, but its end was refused: {error.message}")
    _log.error("the end of a job was refused, so it is dead: %s", error, extra={"job_id": complete.claim.id})
    return DeadLetterJob(complete.claim, Reason.FAILED, error=why, spends=Budget.FAILURES)
