"""Telling the backend how attempts ended, in batches, until it has heard.

One settle call is in flight at a time; what ends meanwhile goes with the next one, so that batches grow with the load
by themselves. When the backend does not answer, the same call is asked again under the same request id: what it had
already done is not done twice. Nothing finished is forgotten while the process lives, and it is counted only once the
backend has answered. It stays bounded because the worker claims no more jobs than its board has places.
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
    """Settles what ended, for one worker."""

    def __init__(
        self,
        jobs: JobQueue,
        claims: InFlightJobs,
        tally: Tally,
        ids: Ids,
        room: asyncio.Event,
        teller: ProgressReporter,
        breakers: Breakers | None = None,
    ) -> None:
        self._jobs = jobs
        self._claims = claims
        self._tally = tally
        self._ids = ids
        self._teller = teller
        self._breakers = breakers  # every attempt ends here, so here they hear of it
        self._room = room  # rung when places on the board become free
        self._pending: deque[_Entry] = deque()
        self._in_flight = 0
        self._bytes = 0
        self._wake = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closing = False

    @property
    def unsettled(self) -> int:
        """How many attempts have ended that the backend has not heard of."""
        return len(self._pending) + self._in_flight

    @property
    def bytes(self) -> int:
        """The results among them."""
        return self._bytes

    def add(self, work: InFlightJob, settlement: Settlement) -> None:
        """Notes how an attempt ended; from here on nothing else may end it."""
        work.stage = JobStage.ENDED
        self._pending.append((work, settlement))
        if self._breakers is not None:
            self._breakers.hear(work, settlement)
        if type(settlement) is Complete and settlement.result:
            self._bytes += len(settlement.result)
        if not self._wake.is_set():
            self._wake.set()
            self._quiet.clear()

    def forget(self, work: InFlightJob) -> None:
        """Drops a claim that is gone, with nothing left to tell."""
        work.stage = JobStage.ENDED
        self._tally.lost.add(work.claimed.job.queue)
        if self._breakers is not None:
            self._breakers.forget(work)
        self._claims.drop(work)
        self._room.set()

    async def drained(self) -> None:
        """Waits until the backend has heard of everything."""
        await self._quiet.wait()

    def close(self) -> None:
        """Lets `run` end once everything is settled."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Settles until closed."""
        while True:
            if not self._pending:
                self._wake.clear()
                self._quiet.set()
                if self._closing:
                    return
                await self._wake.wait()
                continue
            batch = self._next_batch()
            self._in_flight = len(batch)
            if self._teller.has_news:
                await self._teller.tell([work.claimed.job.id for work, _ in batch])
            ends = await self._settle([settlement for _, settlement in batch])
            for (work, _), (settlement, outcome) in zip(batch, ends, strict=True):
                self._count(work.claimed.job.queue, settlement, outcome)
                self._claims.drop(work)
            self._in_flight = 0
            self._room.set()

    def _next_batch(self) -> list[_Entry]:
        if not self._bytes and len(self._pending) <= BATCH_MAX:
            batch = list(self._pending)
            self._pending.clear()
            return batch
        batch, size = [], 0
        while self._pending and len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            work, settlement = self._pending.popleft()
            batch.append((work, settlement))
            if isinstance(settlement, Complete):
                size += len(settlement.result or b"")
        self._bytes -= size
        return batch

    async def _settle(self, settlements: Sequence[Settlement]) -> Sequence[_End]:
        """How each was settled, and how that ended. One that the queue refuses costs its job: it is told alone, and a
        job whose result or follow-ups cannot be kept is dead."""
        try:
            ends = list(zip(settlements, await self._told(settlements), strict=True))
        except UsageError as error:  # a batch is refused before anything of it is changed
            if len(settlements) > 1:
                ends = [(each, Outcome.FAILED) for each in settlements]
            elif isinstance(settlements[0], Complete):
                return await self._settle([_refused(settlements[0], error)])
            else:
                raise
        if len(settlements) > 1:
            for n, (settlement, outcome) in enumerate(ends):
                if outcome is Outcome.FAILED:
                    (ends[n],) = await self._settle([settlement])
        return ends

    async def _told(self, settlements: Sequence[Settlement]) -> Sequence[Outcome]:
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
                _log.info("the backend took the results that waited", extra={"count": len(settlements)})
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


def _refused(finish: Complete, error: UsageError) -> DeadLetterJob:
    """The end of a job that is done, but whose result or follow-ups the queue cannot keep."""
    why = error_text(f"done, but its end was refused: {error.message}")
    _log.error("the end of a job was refused, so it is dead: %s", error, extra={"job_id": finish.claim.id})
    return DeadLetterJob(finish.claim, Reason.FAILED, error=why, spends=Budget.FAILURES)
