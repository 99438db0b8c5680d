"""What a cancel makes of a waiting job's bytes, and a revival of a dead one's. Pure, as `changes` is for attempts."""

from __future__ import annotations

from wrasse.backends.redis.changes import default_queue
from wrasse.backends.redis.hold_text import FinishedText, pack_finished
from wrasse.backends.redis.job_json import Change, Wire, changed, from_ms, history_json, read_history, rfc3339
from wrasse.backends.redis.options import RedisOptions
from wrasse.ports.jobs import ERROR_CHARS_MAX, Place, Reason

TOLD = ("error", "reason", "failed_at")  # what the bytes of a dead job say about its death


def cancelled(
    raw: bytes, wire: Wire, queue: str, error: str, now: int, options: RedisOptions
) -> tuple[bytes, bytes]:
    """The bytes for the dead letters, and the text kept beside them but for its first line. No attempt ended."""
    error = error[:ERROR_CHARS_MAX]
    change = Change(error=error, reason=Reason.CANCELLED.value, failed_at=rfc3339(from_ms(now)))
    change.counted = True if wire.group else None
    if queue != wire.origin_queue and queue != default_queue(options, wire.priority):
        change.origin_queue = queue
    dead = changed(raw, change)
    text = FinishedText(
        Place.DEAD,
        b"",
        queue.encode(),
        wire.id.encode(),
        0,
        wire.attempts,
        wire.retries,
        wire.rescues,
        wire.interruptions,
        Reason.CANCELLED.value.encode(),
        error.encode("utf-8", "replace"),
        None,
        history_json(wire.history) if wire.history else b"",
        dead,
    )
    return dead, pack_finished(text)


def revived(dead: FinishedText, wire: Wire | None, take: str) -> bytes:
    """The bytes that go back to a queue: fresh budgets, a new token, everything else as it was."""
    if wire is None:
        return dead.bytes
    token, _, nonce = take.partition("-")
    history = read_history(dead.history)
    change = Change(retries=0, rescues=0, attempts=dead.attempts, token=int(token), nonce=nonce)
    change.history = history or None
    return changed(dead.bytes, change, drop=TOLD)
