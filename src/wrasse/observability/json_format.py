"""Values as JSON, the same in every command and on every page: ISO times, durations in seconds. And bytes of jobs as
text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from wrasse.duration import format_duration
from wrasse.engine.report import Report
from wrasse.jobs.worker.breakers import ShutQueue
from wrasse.ports.jobs import JobInfo, JobRecord, JobState, QueueCount, WorkerState
from wrasse.ports.journal import Line
from wrasse.ports.streams import GroupState, StreamState


def to_json(value: object, *, indent: int | None = None) -> str:
    """The value as JSON text."""
    return json.dumps(plain(value), ensure_ascii=False, indent=indent)


def plain(value: object) -> object:
    """The value converted to JSON types."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return value


def picked(value: object, names: str) -> dict[str, object]:
    """The attributes of a value under their own names; `names` is separated by spaces."""
    return {name: getattr(value, name) for name in names.split()}


def queue_json(count: QueueCount) -> Mapping[str, object]:
    """The numbers of one queue."""
    return picked(count, "queue ready scheduled running done dead oldest_ready_at")


def worker_json(worker: WorkerState, now: datetime) -> Mapping[str, object]:
    """One worker, and whether it still sends heartbeats."""
    facts = {**picked(worker.info, "id host pid slots"), **picked(worker, "heartbeat_at deadline")}
    return {**facts, "alive": worker.deadline > now}


def shut_json(shut: ShutQueue) -> Mapping[str, object]:
    """A queue that a worker has paused because its breaker is not closed."""
    return picked(shut, "queue state worker since")


def line_json(line: Line) -> Mapping[str, object]:
    """One line of the journal."""
    intent = picked(line.intent, "id run sweep verb suspect reason count")
    return {**intent, **picked(line, "intended_at outcome detail settled_at")}


def stream_json(state: StreamState) -> Mapping[str, object]:
    """The numbers of one stream."""
    first, last = state.first, state.last
    return {
        **picked(state, "subject length bytes appended"),
        "first": None if first is None else str(first),
        "last": None if last is None else str(last),
        "oldest_at": None if first is None else first.at,
        "groups": [group_json(group) for group in state.groups],
    }


def group_json(group: GroupState) -> Mapping[str, object]:
    """One group and its position."""
    facts = picked(group, "name floor delivered pending oldest_pending_at lag consumers")
    return {**facts, "floor": str(group.floor), "delivered": str(group.delivered)} | (
        {"invalid": group.invalid} if group.invalid else {}
    )


def state_json(info: JobInfo) -> Mapping[str, object]:
    """Everything about a job but its payload."""
    facts = picked(
        info,
        "id kind queue priority state size attempts failures rescues interruptions token created_at not_before "
        "worker claimed_at heartbeat_at deadline finished_at reason error",
    )
    return facts | {"state": info.status}


def record_json(record: JobRecord) -> Mapping[str, object]:
    """A complete job, with its bytes in base 64 and, if they are UTF-8, as text."""
    job, progress = record.job, record.progress
    return {
        **state_json(record.info),
        **picked(job, "headers timeout lasting unique group"),
        "payload_b64": base64.b64encode(job.payload).decode(),
        "payload": text_of(job.payload),
        "kept_until": record.info.kept_until,
        "progress": None if progress is None else picked(progress, "fraction note at"),
        "result": None if record.result is None else text_of(record.result),
        "history": [picked(each, "number worker claimed_at ended_at reason error") for each in record.history],
    }


def text_of(data: bytes) -> str | None:
    """The bytes as text; None if they are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def glimpse(data: bytes, chars: int = 60) -> str:
    """The beginning of a payload."""
    text = text_of(data[: chars * 4]) if len(data) <= chars * 4 else data[: chars * 4].decode(errors="ignore")
    if text is None or not text.isprintable():
        return data[: chars // 2].hex() + ("…" if len(data) > chars // 2 else "")
    return text[:chars] + ("…" if len(text) > chars or len(data) > chars * 4 else "")


def when(info: JobInfo) -> tuple[str, datetime]:
    """The most relevant time of a job in its state, and its meaning."""
    if info.state is JobState.RUNNING and info.claimed_at is not None:
        return "claimed", info.claimed_at
    if info.finished_at is not None:
        return "finished", info.finished_at
    if info.not_before is not None:
        return "due", info.not_before
    return "enqueued", info.created_at


def report_json(report: Report) -> Mapping[str, object]:
    """One report; a dry run's with its plan."""
    answer = picked(
        report,
        "run sweep started_at ended_at seen kept planned done conflict failed unknown stopped_by why "
        "errors notes dry_run",
    )
    answer["took_seconds"] = report.took
    if report.dry_run:
        answer["plan"] = [picked(each, "verb suspect reason") for each in report.plan]
    return answer


def ago(at: datetime | None, now: datetime) -> str:
    """The distance to now, rounded for people."""
    if at is None:
        return ""
    away = abs(now - at)
    if away < timedelta(seconds=1):
        return "now"
    step = next(unit for unit in (86_400, 3_600, 60, 1) if away.total_seconds() >= unit or unit == 1)
    below = {86_400: 3_600, 3_600: 60, 60: 1, 1: 1}[step]
    text = format_duration(timedelta(seconds=int(away.total_seconds()) // below * below))
    return f"{text} ago" if at <= now else f"in {text}"
