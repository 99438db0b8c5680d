"""Settles ended attempts in batches, until the backend has answered.

One settle call is in flight at a time; attempts that end meanwhile go with the next one, so that batches grow with the
load. When the backend does not answer, the same call is repeated under the same request id, so that it takes effect
once. No result is dropped while the process lives, and it is counted only once the backend has answered. The queue of
results is bounded because the worker claims no more jobs than its heartbeat table has places.

`ProgressReporter` writes the progress that handlers report: at once, then at most once a second for all jobs together,
and the newest progress of a job before the job is settled. It is best effort: while the backend does not answer it is
kept and written later, and no handler waits for it.

The functions below them decide what an attempt that did not complete is settled as; they are pure. An attempt that was
cancelled from outside ends for that reason, whatever its handler raised in response: a failure or a timeout spends the
failure budget, an interruption spends nothing, and for a claim that is gone there is nothing to settle.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from enum import Enum

import msgspec

from wrasse.duration import format_duration
from wrasse.errors import BadPayload, OutOfResources, StoreFull, StoreUnavailable, UsageError, WrasseError, exhausted
from wrasse.jobs.retry import GiveUp, Retry, RetryLater, RetryPolicy
from wrasse.jobs.worker.context import WorkerContext
from wrasse.jobs.worker.running_job import InFlightJob, JobStage
from wrasse.ports.jobs import (
    BATCH_MAX,
    ERROR_CHARS_MAX,
    Budget,
    Claim,
    ClaimedJob,
    Complete,
    DeadLetterJob,
    Progress,
    Reason,
    Requeue,
    Settlement,
    check_result,
    error_text,
)
from wrasse.ports.outcome import Outcome

BATCH_BYTES_MAX = 8 << 20  # of results in one settle call
RETRY_BACKOFF = RetryPolicy(base=timedelta(milliseconds=50), max=timedelta(seconds=2))
_PROGRESS_PAUSE = 1.0  # seconds between two writes of progress
_PROGRESS_WRITE_MAX = 5.0  # seconds that a write of progress may delay a settle

_Entry = tuple[InFlightJob, Settlement]
_End = tuple[Settlement, Outcome]
_log = logging.getLogger("wrasse.jobs")
_RELEASE_DELAY = RetryPolicy(base=timedelta(seconds=1), max=timedelta(minutes=1))
RELEASES_MAX = 10
"""How many interruptions a job may have before a full disk, or files or memory that run out, in its handler count as
failures. The same in wrasse's own code (a command or connection that cannot be started, a full store) never does."""


class ProgressReporter:
    """Progress that one worker's handlers reported, until it is written."""

    __slots__ = ("_heartbeat_timeout", "_jobs", "_latest", "_wake", "_worker", "_writing", "wrote")

    def __init__(self, context: WorkerContext) -> None:
        self._jobs, self._worker = context.jobs, context.info
        self._heartbeat_timeout = context.settings.heartbeat_timeout
        self._latest: dict[str, tuple[Claim, Progress]] = {}  # bounded by the jobs in flight
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self.wrote = False

    @property
    def pending(self) -> bool:
        """Whether there is progress that may not be stored yet."""
        return bool(self._latest) or self._writing.locked()

    def note(self, claim: Claim, progress: Progress) -> None:
        """Keeps the newest progress of a job."""
        self._latest[claim.id] = (claim, progress)
        self._wake.set()

    async def run(self) -> None:
        """Writes progress until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._write(self._latest.keys())
            await asyncio.sleep(_PROGRESS_PAUSE)

    async def report(self, ids: Collection[str]) -> None:
        """Writes the progress of these jobs, which are about to be settled, and forgets it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PROGRESS_WRITE_MAX):
                await self._write(ids)
        for id in ids:
            self._latest.pop(id, None)

    async def _write(self, ids: Collection[str]) -> None:
        async with self._writing:
            due = {id: self._latest[id] for id in [*ids][:BATCH_MAX] if id in self._latest}
            if not due:
                return
            progress = {id: word for id, (_, word) in due.items()}
            try:
                claims = [claim for claim, _ in due.values()]
                await self._jobs.heartbeat(
                    self._worker, claims, heartbeat_timeout=self._heartbeat_timeout, progress=progress
                )
            except StoreUnavailable:
                self._wake.set()
                return
            self.wrote = True
            for id, word in due.items():
                if self._latest.get(id) is word:
                    del self._latest[id]
            if self._latest:
                self._wake.set()


class Completer:
    """Settles ended attempts, for one worker."""

    def __init__(self, context: WorkerContext, reporter: ProgressReporter) -> None:
        self._jobs, self._claims, self._ids = context.jobs, context.claims, context.ids
        self._tally, self._breakers, self._capacity = context.telemetry.tally, context.breakers, context.capacity
        self._reporter = reporter
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


class CancelReason(Enum):
    """Why an attempt is ended from outside."""

    TIMEOUT = "timeout"
    GONE = "gone"
    STOPPED = "stopped"


def outcome_for_error(
    job: InFlightJob,
    cut: CancelReason | None,
    error: BaseException,
    retry: RetryPolicy,
    u: float,
    own: Retry | None = None,
) -> Requeue | DeadLetterJob | None:
    """The settlement of an attempt whose handler raised; None when there is nothing to settle. `own` is the retry rule
    of the kind itself."""
    claimed, retry = job.claimed, retry if own is None else own.over(retry)
    match cut:
        case CancelReason.GONE:
            return None
        case CancelReason.STOPPED:
            return interrupted(claimed, "the worker stopped before the handler had finished")
        case CancelReason.TIMEOUT:
            reason, text = Reason.TIMEOUT, f"took longer than {format_duration(timedelta(seconds=job.allowed))}"
        case None if isinstance(error, BadPayload):
            return DeadLetterJob(claimed.claim, Reason.INVALID_PAYLOAD, error=error.message[:ERROR_CHARS_MAX])
        case None if why := exhausted_resource(claimed, error):
            return released_for_resource(claimed, why, u)
        case None if isinstance(error, GiveUp) or _refused(own, error):
            return DeadLetterJob(claimed.claim, Reason.FAILED, error=describe(error), spends=Budget.FAILURES)
        case None if isinstance(error, RetryLater):
            ended = retry.after_failure(claimed.claim, claimed.failures, u, Reason.FAILED, describe(error))
            return replace(ended, delay=error.delay) if isinstance(ended, Requeue) else ended
        case None if isinstance(error, asyncio.CancelledError):
            reason, text = Reason.FAILED, "the handler waited for something that was cancelled"
        case None:
            reason, text = Reason.FAILED, describe(error)
    return retry.after_failure(claimed.claim, claimed.failures, u, reason, text)


def _refused(own: Retry | None, error: BaseException) -> bool:
    """Whether the kind's rule excludes a retry. RetryLater of the handler takes precedence."""
    return own is not None and not isinstance(error, RetryLater | asyncio.CancelledError) and not own.again(error)


def interrupted(claimed: ClaimedJob, error: str) -> Requeue:
    """Releases an unfinished job: it spends no retry and is ready at once."""
    return Requeue(claimed.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED, error=error)


def refused_by_breaker(claimed: ClaimedJob) -> Requeue:
    """Releases a job claimed from a queue whose breaker is open."""
    return interrupted(claimed, "the breaker of its queue is open, so it was not started")


def released_suspect(claimed: ClaimedJob, u: float) -> Requeue:
    """Releases a job that was rescued several times, with a delay, because another such job is in flight here."""
    error = f"was rescued {claimed.rescues} times, and another such job runs here; released"
    delay = _RELEASE_DELAY.delay(claimed.interruptions + 1, u)
    return Requeue(claimed.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED, error=error, delay=delay)


def exhausted_resource(claimed: ClaimedJob, error: BaseException) -> str:
    """The resource that ran out, if that ended the attempt and not a fault of its job; see RELEASES_MAX."""
    if isinstance(error, GiveUp | RetryLater):
        return ""
    ours = isinstance(error, OutOfResources | StoreFull)
    return exhausted(error) if ours or claimed.interruptions < RELEASES_MAX else ""


def released_for_resource(claimed: ClaimedJob, why: str, u: float) -> Requeue:
    """Releases a job because a resource of the machine ran out; it is ready after a growing delay."""
    delay = _RELEASE_DELAY.delay(claimed.interruptions + 1, u)
    error = f"released: this machine ran out of a resource ({why})"[:ERROR_CHARS_MAX]
    return Requeue(claimed.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED, error=error, delay=delay)


def no_handler(claimed: ClaimedJob, retry: RetryPolicy, u: float) -> Requeue | DeadLetterJob:
    """A retry for a job without a handler here; another worker, or the next release, may have one."""
    text = f"no handler for the kind {claimed.job.kind!r} is known to this worker"
    return retry.after_failure(claimed.claim, claimed.failures, u, Reason.NO_HANDLER, text)


def encoded(result: object) -> bytes | None:
    """A handler's return value as stored: bytes as they are, anything else as JSON."""
    if result is None:
        return None
    kept = result if isinstance(result, bytes) else msgspec.json.encode(result)
    check_result(kept)
    return kept


def describe(error: BaseException) -> str:
    """An error and its location, as a job's history keeps it; file names without their folders."""
    if isinstance(error, WrasseError):
        return error.message[:ERROR_CHARS_MAX]
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    text = f"{type(error).__name__}: {error}"
    if frame is None:
        return text[:ERROR_CHARS_MAX]
    code = frame.tb_frame.f_code
    where = f" ({code.co_filename.rpartition('/')[2]}:{frame.tb_lineno} in {code.co_name})"[-200:]
    return text[: ERROR_CHARS_MAX - len(where)] + where
