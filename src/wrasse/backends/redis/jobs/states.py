"""Converts stored jobs to the values of the port. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha1

from wrasse.backends.redis.jobs.claim_codec import FinishedText, Flag, StoredClaim
from wrasse.backends.redis.jobs.job_json import JobFields, decode, flaw, from_ms, job_of, reason_of
from wrasse.backends.redis.jobs.ready_search import WaitingJob
from wrasse.ports.jobs import Job, JobInfo, JobState, Reason

_TOKEN = re.compile(r"\d{1,16}", re.ASCII).fullmatch
UNREADABLE = "unreadable-"  # the prefix of a name for a running or finished entry without an id; its claim follows


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


def finished_state(key: bytes, text: FinishedText) -> JobInfo:
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
