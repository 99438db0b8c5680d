"""The stored form of a running and of a finished job beside its bytes, as one string: numbers and lengths first, then
the parts, then the job's bytes, so that every part may have any bytes and a script reads it with one pattern.

`R:holds`, under K = `<token>-<nonce>`; a script writes it when it grants the claim:

    taken heartbeat timeout flags len(worker) len(queue) len(id) LF worker queue id bytes

    local taken, heartbeat timeout, flags, w, q, i, at = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\\n()')

`bytes` are those of the processing list. `flags` is 0 for a claim that a worker made; see `Flag`.

`R:finished`, under K. The script adds the first line, since only it knows the time:

    finished kept LF
    place taken attempts failures rescues interruptions len(worker) len(queue) len(id) len(reason) len(error)
    len(result) len(history) LF worker queue id reason error result history bytes            (the second line is one)

    local finished, kept, rest = string.match(text, '^(%d+) (%d+)\\n()')
    string.match(text, '^(%a+) (%d+) %d+ %d+ %d+ %d+ (%d+) (%d+) (%d+) (%d+) (%d+) (%-?%d+) (%d+)\\n()', rest)

A text of another form was written by another program: it is read as the bytes of an invalid job, which is shown,
dead-lettered and deleted as such.

`kept` is until when the result is kept, or 0. A result of length -1 is none. `bytes` are those of the completed or dead
letter list. Every moment and duration is in milliseconds; 0 where there is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag

from wrasse.ports.jobs import JobState, error_text


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


_N = rb"(\d{1,15})"
_CLAIM = re.compile(rb" ".join([_N] * 6) + rb"\n").match
_FINISHED = re.compile(
    rb" ".join([_N] * 2) + rb"\n([a-z]{1,9}) " + rb" ".join([_N] * 10) + rb" (-1|\d{1,15}) " + _N + rb"\n"
).match
_STATES = {b"ready": JobState.READY, b"held": JobState.RUNNING, b"done": JobState.DONE, b"dead": JobState.DEAD}


def _cut(rest: bytes, lengths: list[int]) -> list[bytes] | None:
    """Parts of these lengths, and the rest; None if there is less."""
    if sum(lengths) > len(rest):
        return None
    parts, at = [], 0
    for length in lengths:
        parts.append(rest[at : at + length])
        at += length
    return [*parts, rest[at:]]
