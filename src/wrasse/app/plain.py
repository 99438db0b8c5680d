"""Our values as JSON has them, the same in every command and on every page: ISO instants, durations in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from wrasse.ports.jobs import QueueCount, WorkerState
from wrasse.ports.journal import Line


def to_json(value: object, *, indent: int | None = None) -> str:
    """The value as JSON text."""
    return json.dumps(plain(value), ensure_ascii=False, indent=indent)


def plain(value: object) -> object:
    """The value made of nothing but what JSON knows."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return value


def queue_json(count: QueueCount) -> Mapping[str, object]:
    """One queue in numbers."""
    return {
        "queue": count.queue,
        "ready": count.ready,
        "delayed": count.delayed,
        "held": count.held,
        "done": count.done,
        "dead": count.dead,
        "oldest_ready_at": count.oldest_ready_at,
    }


def worker_json(worker: WorkerState, now: datetime) -> Mapping[str, object]:
    """One worker, and whether it still beats."""
    return {
        "id": worker.info.id,
        "host": worker.info.host,
        "pid": worker.info.pid,
        "slots": worker.info.slots,
        "beat_at": worker.beat_at,
        "until": worker.until,
        "beating": worker.until > now,
    }


def line_json(line: Line) -> Mapping[str, object]:
    """One line of the journal."""
    intent = line.intent
    return {
        "id": intent.id,
        "run": intent.run,
        "sweep": intent.sweep,
        "verb": intent.verb,
        "suspect": intent.suspect,
        "reason": intent.reason,
        "count": intent.count,
        "intended_at": line.intended_at,
        "outcome": None if line.outcome is None else line.outcome.value,
        "detail": line.detail,
        "settled_at": line.settled_at,
    }
