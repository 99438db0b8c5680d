"""Jobs as commands show them: the same facts as JSON for a program and as text for a person."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime

from wrasse.ports.jobs import Attempt, JobRecord, JobState, Place


def state_json(state: JobState) -> Mapping[str, object]:
    """Everything about a job but its payload. `place` is `delayed` for a ready job whose time is to come."""
    return {
        "id": state.id,
        "kind": state.kind,
        "queue": state.queue,
        "priority": state.priority,
        "place": state.place.value,
        "size": state.size,
        "attempts": state.attempts,
        "failures": state.failures,
        "rescues": state.rescues,
        "interruptions": state.interruptions,
        "token": state.token,
        "created_at": state.created_at,
        "not_before": state.not_before,
        "worker": state.worker,
        "taken_at": state.taken_at,
        "beat_at": state.beat_at,
        "until": state.until,
        "finished_at": state.finished_at,
        "reason": None if state.reason is None else state.reason.value,
        "error": state.error,
    }


def record_json(record: JobRecord) -> Mapping[str, object]:
    """A job, whole, with its bytes in base 64 and, where they are UTF-8, as text."""
    job, told = record.job, record.progress
    return {
        **state_json(record.state),
        "headers": dict(job.headers),
        "timeout": job.timeout,
        "lasting": job.lasting,
        "payload_b64": base64.b64encode(job.payload).decode(),
        "payload": text_of(job.payload),
        "unique": job.unique,
        "group": job.group,
        "kept_until": record.state.kept_until,
        "progress": None if told is None else {"fraction": told.fraction, "note": told.note, "at": told.at},
        "result": None if record.result is None else text_of(record.result),
        "history": [attempt_json(attempt) for attempt in record.history],
    }


def attempt_json(attempt: Attempt) -> Mapping[str, object]:
    """One attempt that did not end well."""
    return {
        "number": attempt.number,
        "worker": attempt.worker,
        "taken_at": attempt.taken_at,
        "ended_at": attempt.ended_at,
        "reason": attempt.reason.value,
        "error": attempt.error,
    }


def text_of(data: bytes) -> str | None:
    """The bytes as text; None where they are none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def glimpse(data: bytes, chars: int = 60) -> str:
    """How a payload begins."""
    text = text_of(data[: chars * 4]) if len(data) <= chars * 4 else data[: chars * 4].decode(errors="ignore")
    if text is None or not text.isprintable():
        return data[: chars // 2].hex() + ("…" if len(data) > chars // 2 else "")
    return text[:chars] + ("…" if len(text) > chars or len(data) > chars * 4 else "")


def when(state: JobState, now: datetime) -> tuple[str, datetime]:
    """The instant that matters most about a job in its place, and what it is."""
    if state.place is Place.HELD and state.taken_at is not None:
        return "taken", state.taken_at
    if state.finished_at is not None:
        return "finished", state.finished_at
    if state.not_before is not None and state.not_before > now:
        return "due", state.not_before
    return "put", state.created_at
