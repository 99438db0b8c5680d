"""Events of stream tasks: who waits on `queue`, progress on `progress`, the end on `terminal`; and of their sweep:
`gbe.events.system.sweep` when it changed something and every ten minutes, `gbe.events.system.error` once for each
malformed record.

Shapes and names are the origin's, with additions for workers. An event of a task is emitted with the write that it
reports, or not at all. An event of the sweep that cannot be published undoes nothing and is counted: the tasks were
moved, with their own events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreUnavailable
from wrasse.jobs.stream_tasks.fields import (
    ERRORS,
    SWEEPS,
    TASKS,
    Fields,
    id_in,
    progress_of,
    queue_of,
    terminal_of,
    wire_key,
)
from wrasse.ports.groups import DeadLetter, Delivery
from wrasse.ports.jobs import Budget, Cancel, DeadLetterJob, JobState, Move, Reason, Requeue, RequeueDead
from wrasse.ports.rules.job_transitions import StoredJob
from wrasse.ports.streams import Draft, Entry, Streams

SPENT = "retry budget exhausted"
SOURCE = "wrasse"
WATCHER = "watcher"  # the name of the origin's sweeper
EVERY = timedelta(minutes=10)  # between two reports of a sweep that had nothing to do


class EventCodec(Protocol):
    """Encodes events as entries and decodes them: the envelope belongs to streams."""

    def seal(self, subject: str, payload: bytes, key: str) -> Draft:
        """A message with this payload, ready to append; a non-empty key makes a repeat one entry."""
        ...

    def open(self, entry: Entry) -> bytes | None:
        """The payload of an entry; None if it carries no message."""
        ...

    def set_aside(self, delivery: Delivery, reason: str) -> DeadLetter:
        """The answer that dead-letters an unreadable entry."""
        ...


class TaskQueued(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task is ready for a worker."""

    task_id: str
    job_id: str
    org_id: str
    task_type: str
    params: msgspec.Raw
    retry_count: int
    key: str
    source: str
    id: str
    params_ref: str = ""
    reason: str = ""
    previous_worker: str = ""


class TaskProgress(msgspec.Struct, frozen=True):
    """A task has made progress."""

    task_id: str
    job_id: str
    task_type: str
    current_step: str
    fraction: float
    updated_at: int


class TaskCompleted(msgspec.Struct, frozen=True):
    """A task was completed."""

    task_id: str
    job_id: str
    task_type: str
    completed_at: int
    result_ref: str


class TaskFailed(msgspec.Struct, frozen=True):
    """A task is dead; `state` is failed or cancelled."""

    task_id: str
    job_id: str
    task_type: str
    failed_at: int
    error: str
    retry_count: int
    max_retries: int
    state: str
    reason: str


class BudgetSpent(msgspec.Struct, frozen=True):
    """A task was dead-lettered because it was stuck too often."""

    key: str
    reason: str = SPENT
    source: str = WATCHER


class SweepReport(msgspec.Struct, frozen=True):
    """What one run of a sweep did."""

    retried: int
    failed: int
    streams_trimmed: int = 0
    entries_trimmed: int = 0
    source: str = WATCHER


class MalformedTask(msgspec.Struct, frozen=True):
    """A malformed record: it is left as it is."""

    key: str
    reason: str
    source: str = WATCHER


class Said(msgspec.Struct, frozen=True):
    """One event to emit."""

    subject: str
    payload: bytes


class _Hint(msgspec.Struct, frozen=True):
    task_id: str = ""
    key: str = ""
    params: msgspec.Raw = msgspec.Raw(b"null")


def queued(stored: StoredJob, fields: Fields, *, source: str = SOURCE, reason: str = "", worker: str = "") -> Said:
    """The event that a task is ready."""
    info = stored.info
    retries = info.failures + info.rescues
    payload = stored.job.payload
    event = TaskQueued(
        task_id=info.id,
        job_id=fields.get("job_id", ""),
        org_id=fields.get("org_id", ""),
        task_type=info.queue,
        params=msgspec.Raw(payload if _is_json(payload) else b"null"),
        retry_count=retries,
        key=wire_key(info.queue, info.id),
        source=source,
        id=f"{info.id}:{retries}",
        params_ref=fields.get("params_ref", ""),
        reason=reason,
        previous_worker=worker,
    )
    return Said(queue_of(info.queue), msgspec.json.encode(event))


def progressed(stored: StoredJob, fields: Fields, at: datetime) -> Said:
    """The event of a task's progress."""
    info, progress = stored.info, stored.progress
    assert progress is not None, "there is progress to publish"
    event = TaskProgress(info.id, fields.get("job_id", ""), info.queue, progress.note, progress.fraction, _ms(at))
    return Said(progress_of(info.queue), msgspec.json.encode(event))


def ended(stored: StoredJob, fields: Fields, at: datetime, *, spent: bool = False) -> tuple[Said, ...]:
    """The events of a task's end; `spent` if a sweep dead-lettered it."""
    info = stored.info
    subject, job_id = terminal_of(info.queue), fields.get("job_id", "")
    if info.state is JobState.DONE:
        done = TaskCompleted(info.id, job_id, info.queue, _ms(at), fields.get("result_ref", ""))
        return (Said(subject, msgspec.json.encode(done)),)
    failed = TaskFailed(
        info.id,
        job_id,
        info.queue,
        _ms(at),
        error=SPENT if spent else info.error,
        retry_count=info.failures + info.rescues,
        max_retries=info.retries_max or 0,
        state="cancelled" if info.reason is Reason.CANCELLED else "failed",
        reason=info.reason.value if info.reason else "",
    )
    said = (Said(subject, msgspec.json.encode(failed)),)
    if not spent:
        return said
    return (*said, Said(ERRORS, msgspec.json.encode(BudgetSpent(wire_key(info.queue, info.id)))))


def after_attempt(before: StoredJob, after: StoredJob, fields: Fields, at: datetime) -> tuple[Said, ...]:
    """The events of the end of an attempt. A scheduled task is published when it becomes due."""
    if after.info.state is not JobState.READY:
        return ended(after, fields, at)
    return () if after.scheduled else (queued(after, fields, reason="retry", worker=before.info.worker),)


def after_move(before: StoredJob, after: StoredJob, move: Move, fields: Fields, at: datetime) -> tuple[Said, ...]:
    """The events of a move by a sweep or a person."""
    match move:
        case Requeue():
            source, reason = (WATCHER, "stuck") if move.spends is Budget.RESCUES else (SOURCE, "retry")
            event = queued(after, fields, source=source, reason=reason, worker=before.info.worker)
            return () if after.scheduled else (event,)
        case DeadLetterJob():
            return ended(after, fields, at, spent=move.reason is Reason.WORKER_DIED)
        case RequeueDead():
            return () if after.scheduled else (queued(after, fields, reason="revived"),)
        case Cancel():
            return ended(after, fields, at)


def hinted(payload: bytes, task_type: str) -> tuple[str, bytes]:
    """The id of the task that a queue event names, empty if it names none; and its parameters, which only the event of
    another program carries."""
    try:
        hint = msgspec.json.decode(payload, type=_Hint)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return "", b""
    params = bytes(hint.params)
    return hint.task_id or id_in(hint.key, task_type), b"" if params == b"null" else params


class TaskReports:
    """Publishes the results of the sweep of tasks."""

    def __init__(self, streams: Streams, codec: EventCodec, clock: Clock, malformed: Mapping[str, str]) -> None:
        self._streams = streams
        self._codec = codec
        self._clock = clock
        self._reported_at: float | None = None
        self._malformed = malformed  # reasons by key, found by readers of records
        self._reported: set[str] = set()
        self.lost = 0  # events that could not be published

    async def did(self, retried: int, failed: int) -> None:
        """The sweep changed something."""
        if retried or failed:
            await self._report(retried, failed)

    async def started(self) -> None:
        """The sweep has run; each malformed record is reported once."""
        if self._reported_at is None or self._clock.monotonic() - self._reported_at >= EVERY.total_seconds():
            await self._report(0, 0)
        fresh = {key: why for key, why in self._malformed.items() if key not in self._reported}
        self._reported = set(self._malformed)
        events = [MalformedTask(f"{TASKS.data}:{key}", why) for key, why in fresh.items()]
        await self._publish([self._codec.seal(ERRORS, msgspec.json.encode(event), "") for event in events])

    async def _report(self, retried: int, failed: int) -> None:
        self._reported_at = self._clock.monotonic()
        event = msgspec.json.encode(SweepReport(retried, failed))
        await self._publish([self._codec.seal(SWEEPS, event, "")])

    async def _publish(self, drafts: Sequence[Draft]) -> None:
        if not drafts:
            return
        try:
            await self._streams.append(drafts)
        except StoreUnavailable:
            self.lost += len(drafts)


def _ms(at: datetime) -> int:
    return to_micros(at) // 1_000


def _is_json(payload: bytes) -> bool:
    try:
        msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True
