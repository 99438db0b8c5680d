"""The outcome of an attempt, as a settlement; pure.

An attempt that was cancelled from outside ends for that reason, whatever its handler raised in response. The reasons
are distinct because they cost different things: a failure or a timeout spends the failure budget, an interruption
spends nothing, and for a claim that is gone there is nothing to settle.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from enum import Enum

import msgspec

from wrasse.duration import format_duration
from wrasse.errors import BadPayload, OutOfResources, StoreFull, WrasseError, exhausted
from wrasse.jobs.retry import GiveUp, Retry, RetryLater, RetryPolicy
from wrasse.ports.jobs import ERROR_CHARS_MAX, Budget, ClaimedJob, DeadLetterJob, Reason, Requeue, check_result

_RELEASE_DELAY = RetryPolicy(base=timedelta(seconds=1), max=timedelta(minutes=1))
RELEASES_MAX = 10
"""How many interruptions a job may have before a full disk, or files or memory that run out, in its handler count as
failures. The same in wrasse's own code (a command or connection that cannot be started, a full store) never does."""


class CancelReason(Enum):
    """Why an attempt is ended from outside."""

    TIMEOUT = "timeout"
    GONE = "gone"
    STOPPED = "stopped"


def outcome_for_error(
    claimed: ClaimedJob,
    cut: CancelReason | None,
    error: BaseException,
    allowed: float,
    retry: RetryPolicy,
    u: float,
    own: Retry | None = None,
) -> Requeue | DeadLetterJob | None:
    """The settlement of an attempt whose handler raised; None when there is nothing to settle. `own` is the retry rule
    of the kind itself."""
    retry = retry if own is None else own.over(retry)
    match cut:
        case CancelReason.GONE:
            return None
        case CancelReason.STOPPED:
            return interrupted(claimed, "the worker stopped before the handler had finished")
        case CancelReason.TIMEOUT:
            reason, text = Reason.TIMEOUT, f"took longer than {format_duration(timedelta(seconds=allowed))}"
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
