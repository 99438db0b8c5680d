"""How an attempt ended, and what the backend is told; pure.

An attempt that was cut from outside ends for that reason, whatever its handler raised in response; distinct reasons,
because they cost different things: a failure or a timeout spends the failure budget, an interruption is free, and of a
hold that is gone there is nothing to tell.
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

_HELD_BACK = RetryPolicy(base=timedelta(seconds=1), max=timedelta(minutes=1))
RELEASES_MAX = 10
"""How many interruptions a job may have before a full disk, or files or memory that run out, in its handler count as
failures. The same in wrasse's own code (a command or connection that cannot be started, a full store) never does."""


class CancelReason(Enum):
    """Why an attempt is ended from outside."""

    TIMEOUT = "timeout"
    GONE = "gone"
    STOPPED = "stopped"


def ended_badly(
    claimed: ClaimedJob,
    cut: CancelReason | None,
    error: BaseException,
    allowed: float,
    retry: RetryPolicy,
    u: float,
    own: Retry | None = None,
) -> Requeue | DeadLetterJob | None:
    """What to tell of an attempt whose handler raised; None when there is nothing to tell. `own` is what the kind
    itself says about trying again."""
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
        case None if why := short_of(claimed, error):
            return out_of(claimed, why, u)
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
    """Does the kind say that this is not tried again? What the handler itself asks for goes before it."""
    return own is not None and not isinstance(error, RetryLater | asyncio.CancelledError) and not own.again(error)


def interrupted(claimed: ClaimedJob, error: str) -> Requeue:
    """A job released unfinished: free, and ready at once."""
    return Requeue(claimed.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED, error=error)


def shut_out(claimed: ClaimedJob) -> Requeue:
    """A job that was taken from a queue whose breaker is open; released, free."""
    return interrupted(claimed, "the breaker of its queue is open, so it was not started")


def held_back(claimed: ClaimedJob, u: float) -> Requeue:
    """A job that has been in several deaths, released for a while because another such job is here."""
    error = f"was rescued {claimed.rescues} times, and another such job runs here; held back"
    delay = _HELD_BACK.delay(claimed.interruptions + 1, u)
    return Requeue(claimed.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED, error=error, delay=delay)


def short_of(claimed: ClaimedJob, error: BaseException) -> str:
    """Which resource ran out, if the attempt ended for that and not for a fault of its job; see RELEASES_MAX."""
    if isinstance(error, GiveUp | RetryLater):
        return ""
    ours = isinstance(error, OutOfResources | StoreFull)
    return exhausted(error) if ours or claimed.interruptions < RELEASES_MAX else ""


def out_of(claimed: ClaimedJob, why: str, u: float) -> Requeue:
    """A job released because a resource of the machine ran out; free, and ready after a delay that grows."""
    delay = _HELD_BACK.delay(claimed.interruptions + 1, u)
    error = f"released: this machine ran out of something ({why})"[:ERROR_CHARS_MAX]
    return Requeue(claimed.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED, error=error, delay=delay)


def no_handler(claimed: ClaimedJob, retry: RetryPolicy, u: float) -> Requeue | DeadLetterJob:
    """A job of a kind that this worker does not know; another worker, or the next release, may."""
    text = f"no handler for the kind {claimed.job.kind!r} is known to this worker"
    return retry.after_failure(claimed.claim, claimed.failures, u, Reason.NO_HANDLER, text)


def encoded(result: object) -> bytes | None:
    """What a handler returned, as it is kept: bytes as they are, anything else as JSON."""
    if result is None:
        return None
    kept = result if isinstance(result, bytes) else msgspec.json.encode(result)
    check_result(kept)
    return kept


def describe(error: BaseException) -> str:
    """What went wrong and where, as a job's history keeps it; file names without their folders."""
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
