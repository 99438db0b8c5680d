"""The stored forms of running and finished jobs, their values for the port, and a job's bytes after a change. Pure.

A running and a finished job are stored beside the job's bytes as one string: numbers and lengths first, then the parts,
then the bytes, so that every part may have any bytes and a script reads it with one pattern.

`R:holds`, under K = `<token>-<nonce>`; a script writes it when it grants the claim:

    claimed_at heartbeat_timeout flags len(worker) len(queue) len(id) LF worker queue id bytes

    local claimed_at, timeout, flags, w, q, i, at = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\\n()')

`bytes` are those of the processing list. `flags` is 0 for a claim that a worker made; see `Flag`.

`R:finished`, under K. The script adds the first line, since only it knows the time:

    finished kept LF
    state claimed_at attempts failures rescues interruptions len(worker) len(queue) len(id) len(reason) len(error)
    len(result) len(history) LF worker queue id reason error result history bytes            (the second line is one)

    local finished, kept, rest = string.match(text, '^(%d+) (%d+)\\n()')
    string.match(text, '^(%a+) (%d+) %d+ %d+ %d+ %d+ (%d+) (%d+) (%d+) (%d+) (%d+) (%-?%d+) (%d+)\\n()', rest)

`kept` is until when the result is kept, or 0. A result of length -1 is none. `bytes` are those of the completed or dead
letter list. Every moment and duration is in milliseconds; 0 where there is none. A text of another form was written by
another program: it is read as the bytes of an invalid job, which is shown, dead-lettered and deleted as such.

A job's bytes are changed here and nowhere else, from the very bytes that were claimed, after an attempt, a cancel or a
requeue; whether a change is allowed is the script's decision. Bytes that are not a job stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag
from hashlib import sha1

from wrasse.backends.redis.jobs.job_json import (
    History,
    JobChange,
    JobFields,
    changed,
    decode,
    flaw,
    from_ms,
    history_json,
    job_of,
    read_history,
    reason_of,
    rfc3339,
)
from wrasse.backends.redis.jobs.pages import WaitingJob
from wrasse.backends.redis.options import RedisOptions
from wrasse.ports.jobs import HISTORY_MAX, Budget, Job, JobInfo, JobState, Reason, error_text

_TOKEN = re.compile(r"\d{1,16}", re.ASCII).fullmatch
UNREADABLE = "unreadable-"  # the prefix of a name for a running or finished entry without an id; its claim follows
_NUMBER = rb"(\d{1,15})"
_CLAIM = re.compile(rb" ".join([_NUMBER] * 6) + rb"\n").match
_FINISHED = re.compile(
    rb" ".join([_NUMBER] * 2)
    + rb"\n([a-z]{1,9}) "
    + rb" ".join([_NUMBER] * 10)
    + rb" (-1|\d{1,15}) "
    + _NUMBER
    + rb"\n"
).match
_STATES = {b"ready": JobState.READY, b"held": JobState.RUNNING, b"done": JobState.DONE, b"dead": JobState.DEAD}
DEATH_FIELDS = ("error", "reason", "failed_at")  # the fields of a dead job that describe its death


class Flag(IntFlag):
    """Properties of a claim that no worker made."""

    FOREIGN = 1  # of a worker that keeps no claims: its heartbeat is checked before the job is moved
    LEFT = 2  # an entry that a fault left without a claim
    UNROUTABLE = 4  # where it came from is not known


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """The stored form of a running job."""

    worker: bytes
    queue: bytes
    id: bytes
    claimed_at: int
    heartbeat_timeout: int
    flags: int
    bytes: bytes
    readable: bool = True


@dataclass(frozen=True, slots=True)
class FinishedText:
    """The stored form of a finished job. `history` is JSON, made by the codec of jobs."""

    state: JobState
    worker: bytes
    queue: bytes
    id: bytes
    claimed_at: int
    attempts: int
    failures: int
    rescues: int
    interruptions: int
    reason: bytes
    error: bytes
    result: bytes | None
    history: bytes
    bytes: bytes
    finished: int = 0
    kept: int = 0


def dead_text(
    raw: bytes, queue: str, id: str, counts: tuple[int, int, int, int], reason: str, error: str, history: bytes,
    *, worker: str = "", claimed_at: int = 0,
) -> FinishedText:  # fmt: skip
    """A dead job; `counts` are its attempts, failures, rescues and interruptions."""
    return FinishedText(
        JobState.DEAD, worker.encode(), queue.encode(), id.encode(), claimed_at, *counts, reason.encode(),
        error_text(error).encode(), None, history, raw,
    )  # fmt: skip


def read_claim(text: bytes) -> StoredClaim:
    """The claim in a value of `R:holds`."""
    if found := _CLAIM(text):
        claimed_at, heartbeat_timeout, flags, *lengths = map(int, found.groups())
        if parts := _cut(text[found.end() :], lengths):
            worker, queue, id, body = parts
            return StoredClaim(worker, queue, id, claimed_at, heartbeat_timeout, flags, body)
    return StoredClaim(b"", b"", b"", 0, 0, 0, text, readable=False)


def pack_finished(job: FinishedText) -> bytes:
    """The value in `R:finished` except for its first line."""
    numbers = (job.claimed_at, job.attempts, job.failures, job.rescues, job.interruptions)
    parts = (job.worker, job.queue, job.id, job.reason, job.error, job.result, job.history)
    lengths = (-1 if part is None else len(part) for part in parts)
    line = " ".join(map(str, (job.state.value, *numbers, *lengths)))
    return b"".join((line.encode(), b"\n", *(part for part in parts if part is not None), job.bytes))


def read_finished(text: bytes) -> FinishedText:
    """The job in a value of `R:finished`."""
    found = _FINISHED(text)
    if found and found[3] in _STATES:
        finished, kept = int(found[1]), int(found[2])
        claimed_at, attempts, failures, rescues, interruptions, *lengths = map(int, found.groups()[3:])
        if parts := _cut(text[found.end() :], [max(length, 0) for length in lengths]):
            worker, queue, id, reason, error, result, history, body = parts
            return FinishedText(
                _STATES[found[3]], worker, queue, id, claimed_at, attempts, failures, rescues, interruptions, reason,
                error, None if lengths[5] < 0 else result, history, body, finished, kept,
            )  # fmt: skip
    reason, error = b"invalid_payload", b"what is stored of it cannot be read"
    return FinishedText(JobState.DEAD, b"", b"", b"", 0, 0, 0, 0, 0, reason, error, None, b"", text)


def _cut(rest: bytes, lengths: list[int]) -> list[bytes] | None:
    """Parts of these lengths, and the rest; None if there is less."""
    if sum(lengths) > len(rest):
        return None
    parts, at = [], 0
    for length in lengths:
        parts.append(rest[at : at + length])
        at += length
    return [*parts, rest[at:]]


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """A token and a nonce, as `K` in the keys of this layout."""

    token: int
    nonce: str

    @classmethod
    def of(cls, key: bytes) -> ClaimKey:
        """The claim of a key `K`; a foreign name becomes the token part as a whole, which no change matches."""
        token, _, nonce = text_of(key).partition("-")
        return cls(int(token), nonce) if _TOKEN(token) else cls(0, text_of(key))


def text_of(raw: bytes) -> str:
    """A name as text, whichever program wrote it."""
    return raw.decode("utf-8", "replace")


def job_in(raw: bytes, wire: JobFields | None, queue: str, id: str) -> Job:
    """The job in these bytes; if they are not a job, one with them as its payload."""
    found = None if wire is None else job_of(wire, queue)
    return found if found is not None else Job(id, queue=queue, priority="", payload=raw)


def waiting_info(found: WaitingJob, wire: JobFields | None, now: int) -> JobInfo:
    """A job in a queue, or in its delayed set; there it is ready once it is due. For an entry that is not a job, a
    reason and an error say why."""
    error = "" if wire is not None else flaw(found.bytes)
    if wire is None:
        wire = JobFields(id=f"{UNREADABLE}{sha1(found.entry, usedforsecurity=False).hexdigest()[:16]}")
    return JobInfo(
        id=wire.id,
        kind=wire.kind,
        queue=found.queue,
        priority=wire.priority,
        size=len(found.bytes) if error else _size(found.bytes, wire),
        state=JobState.READY,
        token=wire.token,
        nonce=wire.nonce,
        attempts=wire.attempts,
        failures=wire.retries,
        rescues=wire.rescues,
        interruptions=wire.interruptions,
        created_at=wire.creation_time,
        not_before=from_ms(found.due) if found.due is not None and found.due > now else None,
        reason=Reason.INVALID_PAYLOAD if error else None,
        error=error,
    )


def claimed_info(key: bytes, until: int, text: StoredClaim) -> JobInfo:
    """A running job. A reason says why it cannot be requeued if its worker is dead."""
    claim_key, wire = ClaimKey.of(key), decode(text.bytes)
    base = wire or JobFields(id=_nameless(key))
    reason, error = (None, "") if wire is not None else (Reason.INVALID_PAYLOAD, flaw(text.bytes))
    return JobInfo(
        id=base.id,
        kind=base.kind,
        queue=text_of(text.queue),
        priority=base.priority,
        size=_size(text.bytes, wire),
        state=JobState.RUNNING,
        token=claim_key.token,
        nonce=claim_key.nonce,
        attempts=base.attempts + 1,
        failures=base.retries,
        rescues=base.rescues,
        interruptions=base.interruptions,
        created_at=base.creation_time,
        worker=text_of(text.worker),
        claimed_at=from_ms(text.claimed_at),
        heartbeat_at=from_ms(max(text.claimed_at, until - text.heartbeat_timeout)),
        deadline=from_ms(until),
        reason=Reason.UNROUTABLE if text.flags & Flag.UNROUTABLE else reason,
        error=error,
    )


def finished_info(key: bytes, text: FinishedText) -> JobInfo:
    """A done or dead job."""
    claim_key, wire = ClaimKey.of(key), decode(text.bytes)
    base = wire or JobFields(id=text_of(text.id) or _nameless(key))
    return JobInfo(
        id=base.id,
        kind=base.kind,
        queue=text_of(text.queue),
        priority=base.priority,
        size=_size(text.bytes, wire),
        state=text.state,
        token=claim_key.token,
        nonce=claim_key.nonce,
        attempts=text.attempts,
        failures=text.failures,
        rescues=text.rescues,
        interruptions=text.interruptions,
        created_at=base.creation_time,
        worker=text_of(text.worker),
        claimed_at=from_ms(text.claimed_at) if text.claimed_at else None,
        finished_at=from_ms(text.finished),
        kept_until=from_ms(text.kept) if text.kept else None,
        reason=reason_of(text_of(text.reason)),
        error=text_of(text.error),
    )


def _nameless(key: bytes) -> str:
    """The name of bytes without a readable id."""
    return f"{UNREADABLE}{text_of(key)}"


def _size(raw: bytes, wire: JobFields | None) -> int:
    """Bytes of the payload, without decoding it if its length is enough."""
    if wire is None:
        return len(raw)
    text = wire.payload_b64
    if text:
        return 3 * len(text) // 4 - text[-2:].count("=")
    job = job_of(wire, "")
    return 0 if job is None else len(job.payload)


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
    text = dead_text(
        raw, claimed.queue, claimed.id, counts, ending.reason.value, ending.error, history_json(history),
        worker=claimed.worker, claimed_at=claimed.claimed_at,
    )  # fmt: skip
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
