"""Our values as JSON has them, the same in every command and on every page: ISO instants, durations in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from wrasse.clock import from_micros
from wrasse.jobs.breakers import ShutQueue
from wrasse.ports.jobs import QueueCount, WorkerState
from wrasse.ports.journal import Line
from wrasse.ports.streams import GroupState, StreamState


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


def shut_json(shut: ShutQueue) -> Mapping[str, object]:
    """A queue that a worker leaves alone because its breaker is not closed."""
    return {"queue": shut.queue, "state": shut.state, "worker": shut.worker, "since": shut.since}


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


def stream_json(state: StreamState) -> Mapping[str, object]:
    """One stream in numbers."""
    return {
        "subject": state.subject,
        "length": state.length,
        "bytes": state.bytes,
        "appended": state.appended,
        "first": None if state.first is None else str(state.first),
        "last": None if state.last is None else str(state.last),
        "oldest_at": None if state.first is None else from_micros(state.first.ms * 1_000),
        "groups": [group_json(group) for group in state.groups],
    }


def group_json(group: GroupState) -> Mapping[str, object]:
    """One group: how far it is."""
    return {
        "name": group.name,
        "floor": str(group.floor),
        "delivered": str(group.delivered),
        "pending": group.pending,
        "oldest_pending_at": group.oldest_pending_at,
        "lag": group.lag,
        "consumers": group.consumers,
    }
