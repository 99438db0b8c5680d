"""The new bytes of a job after an attempt, a cancel or a requeue. Pure: the script decides whether a change is allowed.

Bytes are changed here and nowhere else, from the very bytes that were claimed. Bytes that are not a job stay as they
are.
"""

from __future__ import annotations

from dataclasses import dataclass

from wrasse.backends.redis.jobs.claim_codec import FinishedText, dead_text, pack_finished
from wrasse.backends.redis.jobs.job_json import (
    History,
    JobChange,
    JobFields,
    changed,
    from_ms,
    history_json,
    read_history,
    rfc3339,
)
from wrasse.backends.redis.options import RedisOptions
from wrasse.ports.jobs import HISTORY_MAX, Budget, Reason, error_text

DEATH_FIELDS = ("error", "reason", "failed_at")  # the fields of a dead job that describe its death


@dataclass(frozen=True, slots=True)
class ClaimedBytes:
    """One claim with what is needed to end it. `wire` is None if the bytes are not a job."""

    claim_key: str  # K: token and nonce
    worker: str
    queue: str
    id: str
    claimed_at: int
    raw: bytes
    wire: JobFields | None

    @property
    def attempts(self) -> int:
        """This one included."""
        return 1 if self.wire is None else self.wire.attempts + 1


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """Why an attempt ended, and when (ms)."""

    reason: Reason
    error: str
    spends: Budget | None
    now: int


def default_queue(options: RedisOptions, priority: str) -> str:
    """The queue of a priority; a job in it need not name it."""
    return options.queues.get(priority, priority)


def requeued(claimed: ClaimedBytes, ending: AttemptEnd, token: str, options: RedisOptions) -> bytes:
    """The bytes that return to the queue, under this token."""
    wire = claimed.wire
    if wire is None:
        return claimed.raw
    change = _spent(wire, ending.spends)
    change.attempts = claimed.attempts
    change.history = _noted(claimed, ending)
    number, _, change.nonce = token.partition("-")
    change.token = int(number)
    if claimed.queue != wire.origin_queue and claimed.queue != default_queue(options, wire.priority):
        change.origin_queue = claimed.queue
    return changed(claimed.raw, change)


def dead_lettered(claimed: ClaimedBytes, ending: AttemptEnd, options: RedisOptions) -> tuple[bytes, bytes]:
    """The bytes for the dead letter list, and the text stored with them except for its first line."""
    wire, raw, spent, history = claimed.wire, claimed.raw, JobChange(), _noted(claimed, ending)
    if wire is not None:
        spent = _spent(wire, ending.spends)
        spent.attempts, spent.history = claimed.attempts, history
        spent.error, spent.reason = error_text(ending.error), ending.reason.value
        spent.failed_at = rfc3339(from_ms(ending.now))
        spent.counted = True if wire.group else None
        if claimed.queue != wire.origin_queue and claimed.queue != default_queue(options, wire.priority):
            spent.origin_queue = claimed.queue
        raw = changed(claimed.raw, spent)
    kept = (0, 0, 0) if wire is None else (wire.retries, wire.rescues, wire.interruptions)
    new = (spent.retries, spent.rescues, spent.interruptions)
    failures, rescues, interruptions = (had if now is None else now for had, now in zip(kept, new, strict=True))
    counts = (claimed.attempts, failures, rescues, interruptions)
    reason, told = ending.reason.value, history_json(history)
    text = dead_text(
        raw,
        claimed.queue,
        claimed.id,
        counts,
        reason,
        ending.error,
        told,
        worker=claimed.worker,
        claimed_at=claimed.claimed_at,
    )
    return raw, pack_finished(text)


def cancelled(
    raw: bytes, wire: JobFields, queue: str, error: str, now: int, options: RedisOptions
) -> tuple[bytes, bytes]:
    """The bytes for the dead letter list, and the text stored with them except for its first line. No attempt ended."""
    error = error_text(error)
    change = JobChange(error=error, reason=Reason.CANCELLED.value, failed_at=rfc3339(from_ms(now)))
    change.counted = True if wire.group else None
    if queue != wire.origin_queue and queue != default_queue(options, wire.priority):
        change.origin_queue = queue
    dead = changed(raw, change)
    counts = (wire.attempts, wire.retries, wire.rescues, wire.interruptions)
    history = history_json(wire.history) if wire.history else b""
    return dead, pack_finished(dead_text(dead, queue, wire.id, counts, Reason.CANCELLED.value, error, history))


def requeued_dead(dead: FinishedText, wire: JobFields | None, claim_key: str) -> bytes:
    """The bytes that return to a queue: fresh budgets, a new token, everything else unchanged."""
    if wire is None:
        return dead.bytes
    token, _, nonce = claim_key.partition("-")
    history = read_history(dead.history)
    change = JobChange(retries=0, rescues=0, attempts=dead.attempts, token=int(token), nonce=nonce)
    change.history = history or None
    return changed(dead.bytes, change, drop=DEATH_FIELDS)


def finished(claimed: ClaimedBytes, result: bytes | None) -> bytes:
    """The text of a done job, except for its first line and the job's bytes."""
    worker, queue, id, wire = claimed.worker.encode(), claimed.queue.encode(), claimed.id.encode(), claimed.wire
    assert wire is not None, "bytes that are not a job are never claimed"
    history = history_json(wire.history) if wire.history else b""
    size = -1 if result is None else len(result)
    return b"done %d %d %d %d %d %d %d %d 0 0 %d %d\n%b%b%b%b%b" % (
        claimed.claimed_at, wire.attempts + 1, wire.retries, wire.rescues, wire.interruptions, len(worker), len(queue),
        len(id), size, len(history), worker, queue, id, result or b"", history,
    )  # fmt: skip


def _spent(wire: JobFields, budget: Budget | None) -> JobChange:
    match budget:
        case Budget.FAILURES:
            return JobChange(retries=wire.retries + 1)
        case Budget.RESCUES:
            return JobChange(rescues=wire.rescues + 1)
        case Budget.INTERRUPTIONS:
            return JobChange(interruptions=wire.interruptions + 1)
        case None:
            return JobChange()


def _noted(claimed: ClaimedBytes, ending: AttemptEnd) -> History:
    """The history with the attempt that just ended."""
    before = claimed.wire.history or [] if claimed.wire is not None else []
    error = error_text(ending.error)
    return [*before, (claimed.attempts, claimed.worker, claimed.claimed_at, ending.now, ending.reason.value, error)][
        -HISTORY_MAX:
    ]
