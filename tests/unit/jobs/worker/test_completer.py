"""How an attempt ends whose machine ran out of a resource."""

from __future__ import annotations

import errno
from datetime import UTC, datetime, timedelta

import pytest

from wrasse.errors import JobFailed, OutOfResources, StoreFull, StoreUnavailable
from wrasse.jobs.retry import GiveUp, Retry, RetryPolicy
from wrasse.jobs.worker.completer import RELEASES_MAX, CancelReason, outcome_for_error
from wrasse.jobs.worker.running_job import InFlightJob
from wrasse.ports.jobs import Budget, Claim, ClaimedJob, DeadLetterJob, Job, Reason, Requeue

AT = datetime(2026, 1, 1, tzinfo=UTC)
NUMBERS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT)


def claimed(interruptions: int = 0) -> InFlightJob:
    job = ClaimedJob(Job("a"), Claim("a", 1, "n"), 1, 0, 0, interruptions, AT, AT)
    return InFlightJob(job, place=0, since=0.0, allowed=1.0)


def ended(error: BaseException, interruptions: int = 0, own: Retry | None = None) -> Requeue | DeadLetterJob | None:
    return outcome_for_error(claimed(interruptions), None, error, RetryPolicy(failures_max=0), 0.0, own)


def caused(cause: BaseException) -> BaseException:
    error = ValueError("wrapped")
    error.__cause__ = cause
    return error


def met(cause: BaseException) -> BaseException:
    """Raised in the `except` of what ran out, without a `from`."""
    error = ValueError("wrapped")
    error.__context__ = cause
    return error


def grouped(cause: BaseException) -> BaseException:
    """What a TaskGroup raises."""
    return ExceptionGroup("several", [ValueError("another"), ExceptionGroup("some", [caused(cause)])])  # type: ignore[list-item]


@pytest.mark.parametrize("error", [MemoryError(), *(OSError(number, "x") for number in NUMBERS)], ids=repr)
def test_a_resource_that_ran_out_in_a_handler_is_an_interruption_a_few_times(error: Exception) -> None:
    for each in (error, caused(error), met(error), grouped(error)):
        delays = []
        for interruptions in range(RELEASES_MAX):
            released = ended(each, interruptions, Retry(never=(Exception,)))
            assert isinstance(released, Requeue)
            assert (released.spends, released.reason) == (Budget.INTERRUPTIONS, Reason.INTERRUPTED)
            delays.append(released.delay)
        assert delays == sorted(delays)
        assert delays[0] >= timedelta(seconds=1)
        assert isinstance(ended(each, RELEASES_MAX), DeadLetterJob)


@pytest.mark.parametrize("error", [OutOfResources("no thread"), StoreFull("full")])
def test_a_resource_that_ran_out_in_our_own_code_is_always_an_interruption(error: Exception) -> None:
    released = ended(error, 1_000_000)
    assert isinstance(released, Requeue)
    assert released.spends is Budget.INTERRUPTIONS


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "x"), OSError("x"), JobFailed("x"), StoreUnavailable("x"), GiveUp("x")]
)
def test_any_other_error_is_a_failure(error: Exception) -> None:
    assert isinstance(ended(error), DeadLetterJob)


def test_an_attempt_that_was_cut_ended_for_that_reason() -> None:
    timeout = outcome_for_error(claimed(), CancelReason.TIMEOUT, MemoryError(), RetryPolicy(failures_max=0), 0.0)
    assert isinstance(timeout, DeadLetterJob)
