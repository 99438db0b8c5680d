"""The records of stream tasks, written together with their events.

If records and streams are one database, record and events are one write. Elsewhere the events are stored in the record,
which is then due at once: its writer delivers them, and after a crash the next search of due records does. Then each
event is delivered at least once, and there is still exactly one claim.

Parameters and results beyond INLINE_MAX are objects, and the record names them: a claim check.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from wrasse.bounded import UNREADABLE
from wrasse.errors import StoreBroken, TooLarge
from wrasse.jobs.record_core.claims import MillisecondTime, read_apart
from wrasse.jobs.stream_tasks.events import EventCodec, Said
from wrasse.jobs.stream_tasks.fields import (
    FAR,
    Fields,
    decode_fields,
    encode_fields,
    index_entry_of,
    names_in,
    queue_of,
    read_flat,
    record_key,
)
from wrasse.ports.jobs import JobState
from wrasse.ports.objects import ObjectDelete, Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import IndexEntry, Record, Records
from wrasse.ports.rules.job_transitions import StoredJob
from wrasse.ports.streams import Draft, Streams

INLINE_MAX = 128 << 10
THRESHOLD = timedelta(minutes=5)  # of a type without settings
_OUTBOX = "outbox"
_NO_FIELDS: Fields = {}


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it was read. `outbox`: events that are stored but not delivered yet."""

    stored: StoredJob
    fields: Fields = field(default_factory=lambda: _NO_FIELDS)
    version: str = ""
    due_at: datetime | None = None
    outbox: tuple[Said, ...] = ()

    @property
    def key(self) -> str:
        """The key of its record."""
        return record_key(self.stored.info.queue, self.stored.info.id)

    @property
    def leaving(self) -> bool:
        """A finished task stays until a sweep deletes it."""
        return False

    @property
    def apart(self) -> bool:
        """Whether its parameters or its result are an object."""
        return "params_ref" in self.fields or "result_ref" in self.fields


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record that is not a task, and why."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class TaskRetention:
    """How long finished tasks are kept before they are due for deletion."""

    done: timedelta
    dead: timedelta


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of a store of tasks. `thresholds`: by type, how long a task without a deadline may run."""

    records: Records
    streams: Streams
    objects: Objects | None
    codec: EventCodec
    emits: bool
    thresholds: Mapping[str, timedelta]
    kept: TaskRetention | None = None
    threshold: timedelta = THRESHOLD


class TaskStore:
    """The records of all tasks."""

    def __init__(self, parts: StoreParts, time: MillisecondTime) -> None:
        self._records = parts.records
        self.status_index = parts.records.status_index
        self._streams = parts.streams
        self._objects = parts.objects
        self._codec = parts.codec
        self.emits = parts.emits  # whether a record and its events are one write
        self._thresholds, self._threshold = parts.thresholds, parts.threshold
        self._keyed = parts.streams.dedup_window > timedelta(0)
        self._kept = parts.kept
        self.time = time
        self.changes = 0  # writes of this process, which invalidate cached counts

    async def get(self, task_type: str, id: str) -> Task | None:
        """One task, without parts in objects; StoreBroken if its record is malformed."""
        return await self.load(record_key(task_type, id))

    async def load(self, key: str) -> Task | None:
        """The task of this record."""
        record = await self._records.get(key)
        return None if record is None else self.read(record)

    def read(self, record: Record) -> Task:
        """The task in a record; StoreBroken if it is malformed. One that was claimed without a deadline gets that of
        its type, counted from its newest change."""
        task = read_task(record)
        info = task.stored.info
        if info.state is not JobState.RUNNING or info.deadline is not None or info.heartbeat_at is None:
            return task
        deadline = info.heartbeat_at + self._thresholds.get(info.queue, self._threshold)
        return replace(task, stored=replace(task.stored, info=replace(info, deadline=deadline)))

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        """Records by name."""
        page = await self._records.page(prefix, after, limit)
        self.time.heard(page.at)
        return page

    async def due(self, after: str | None, limit: int, *, within: timedelta = timedelta(0)) -> Page[Record]:
        """Records that are due now or within this time, earliest first; also some that are due within the resolution of
        the index, which would otherwise be found late."""
        ahead = within + self._records.resolution
        before = await self.time.now() + ahead if ahead else None
        page = await self._records.due(before, after, limit)
        self.time.heard(page.at)
        return page

    async def create(
        self, stored: StoredJob, at: datetime, *, nonce: str, fields: Fields, said: Sequence[Said]
    ) -> bool | None:
        """Writes a new task; False if its id exists, None if the outcome is unknown."""
        task = Task(stored, fields)
        value, due_at, drafts = self._prepared(task, at, said)
        written = await self._records.create(
            task.key, value, due_at=due_at, nonce=nonce, emit=drafts, index_entry=self._index_entry(stored)
        )
        self.time.heard(written.at)
        self.changes += 1
        if written.outcome is Outcome.UNKNOWN:
            return None
        if not written:
            return False
        if said and not self.emits:
            assert written.version is not None, "a record that was written has a version"
            await self.deliver(replace(task, version=written.version, outbox=tuple(said)), at)
        return True

    async def put(self, task: Task, stored: StoredJob, at: datetime, said: Sequence[Said] = ()) -> Task | None:
        """Writes the new state of a task; None after a conflict, or if the outcome is unknown."""
        changed = await self.change(task, stored, at, said)
        return changed if isinstance(changed, Task) else None

    async def change(
        self, task: Task, stored: StoredJob, at: datetime, said: Sequence[Said] = ()
    ) -> Task | Literal[Outcome.CONFLICT, Outcome.UNKNOWN]:
        """Writes the new state of a task; `conflict` if it has changed since it was read, `unknown` if it is unclear
        whether this write was made. Pending events stay pending, except hints of a task that is no longer ready."""
        said = (*(each for each in task.outbox if not _is_outdated_hint(each, stored)), *said)
        changed = replace(task, stored=stored, outbox=())
        value, due_at, drafts = self._prepared(changed, at, said)
        nonce = secrets.token_hex(8)
        written = await self._records.put(
            task.key,
            value,
            at=task.version,
            due_at=due_at,
            nonce=nonce,
            emit=drafts,
            index_entry=self._index_entry(stored),
        )
        self.time.heard(written.at)
        self.changes += 1
        after = replace(changed, fields=read_flat(value), due_at=due_at)
        version = written.version
        if written.outcome is Outcome.UNKNOWN:
            version = await self._made(task, after)
            if version is None:
                return Outcome.UNKNOWN
        if version is None or version == task.version:
            return Outcome.CONFLICT
        after = replace(after, version=version)
        if said and not self.emits:
            return await self.deliver(replace(after, outbox=tuple(said)), at) or after
        return after

    def _index_entry(self, stored: StoredJob) -> IndexEntry | None:
        return None if self.status_index is None else index_entry_of(stored)

    async def _made(self, task: Task, after: Task) -> str | None:
        """The version of a record after a write with unknown outcome: the new one if the record is what was written,
        the old one if it is what was read; None if it is gone or was changed since."""
        record = await self._records.get(task.key)
        if record is None or record.version == task.version:
            return None if record is None else record.version
        same = _without_outbox(read_flat(record.value)) == _without_outbox(after.fields)
        return record.version if same else None

    async def deliver(self, task: Task, at: datetime) -> Task | None:
        """Appends a record's pending events, then removes them from it; None if it has changed since."""
        # Appended first: a crash in between appends again, under the same keys.
        keys = [f"{task.key}:{task.version}:{n}" if self._keyed else "" for n in range(len(task.outbox))]
        drafts = [
            self._codec.seal(said.subject, said.payload, key) for said, key in zip(task.outbox, keys, strict=True)
        ]
        await self._streams.append(drafts)
        return await self.put(replace(task, fields=_without_outbox(task.fields), outbox=()), task.stored, at)

    async def delete(self, task: Task) -> Outcome:
        """Deletes a task, if it has not changed, and its objects."""
        written = await self._records.delete(task.key, at=task.version)
        self.time.heard(written.at)
        self.changes += 1
        if written and self._objects is not None:
            await self._forget(task)
        return written.outcome

    async def whole(self, task: Task) -> StoredJob:
        """The task with parameters and result, also those in objects."""
        stored = task.stored
        payload = await self._read(task.fields.get("params_ref", ""))
        result = await self._read(task.fields.get("result_ref", ""))
        if payload is not None:
            stored = replace(stored, job=replace(stored.job, payload=payload))
        return stored if result is None else replace(stored, result=result)

    async def check_in(self, task_key: str, name: str, data: bytes) -> str:
        """Stores bytes too large for a record as an object; returns its key, or an empty text if they fit the
        record."""
        if len(data) <= INLINE_MAX:
            return ""
        if self._objects is None:
            raise TooLarge(
                f"{len(data)} bytes of {name} for a task",
                do=f"name backends.objects for more than {INLINE_MAX} bytes, or put the data elsewhere",
            )
        key = f"tasks/{task_key.replace(':', '/')}/{name}-{secrets.token_hex(8)}"
        await self._objects.create(key, data)
        return key

    def _prepared(
        self, task: Task, at: datetime, said: Sequence[Said]
    ) -> tuple[bytes, datetime | None, Sequence[Draft]]:
        """The bytes of a record, when it is due, and what is emitted with it."""
        fields = encode_fields(task.stored, _without_outbox(task.fields), at)
        due_at = due_of(task.stored, at, self._kept)
        if not said or self.emits:
            drafts = [self._codec.seal(each.subject, each.payload, "") for each in said]
            return msgspec.json.encode(fields), due_at, drafts
        fields[_OUTBOX] = base64.b64encode(msgspec.json.encode(tuple(said))).decode()
        return msgspec.json.encode(fields), at, ()

    async def _read(self, key: str) -> bytes | None:
        if not key:
            return None
        if self._objects is None:
            raise StoreBroken(f"a task names the object {key!r}", do="name backends.objects, where it is stored")
        return await read_apart(self._objects, key)

    async def _forget(self, task: Task) -> None:
        assert self._objects is not None, "called only with objects"
        for key in filter(None, (task.fields.get("params_ref"), task.fields.get("result_ref"))):
            # Only objects made for this task: a reference of another program may be shared.
            head = await self._objects.head(key) if key.startswith(f"tasks/{task.key.replace(':', '/')}/") else None
            if head is not None:
                await self._objects.delete([ObjectDelete(key, head.info.version)])


def read_task(record: Record) -> Task:
    """The task in a record; StoreBroken if it is malformed."""
    fields = read_flat(record.value)
    text = fields.get(_OUTBOX, "")
    try:
        outbox = msgspec.json.decode(base64.b64decode(text), type=tuple[Said, ...]) if text else ()
    except UNREADABLE as why:
        raise StoreBroken(f"the events of task {record.key!r} are malformed", do="repair or delete the record") from why
    return Task(decode_fields(*names_in(record.key), fields), fields, record.version, record.due_at, outbox)


def due_of(stored: StoredJob, at: datetime, kept: TaskRetention | None = None) -> datetime | None:
    """When a task is due for a search: a running one at its deadline, a scheduled one when it becomes ready, a released
    one and one with follow-ups at once, a finished one when its retention ends; any other ready one never."""
    info = stored.info
    if stored.follow:
        return at
    match info.state:
        case JobState.RUNNING:
            return info.deadline
        case JobState.READY:
            if stored.scheduled:
                return None if info.not_before == FAR else info.not_before
            return at if stored.served_next else None
        case JobState.DONE | JobState.DEAD:
            if kept is None or info.finished_at is None:
                return None
            span = kept.done if info.state is JobState.DONE else kept.dead
            return (info.kept_until or info.finished_at) + span


def _is_outdated_hint(said: Said, stored: StoredJob) -> bool:
    return said.subject == queue_of(stored.info.queue) and stored.info.state is not JobState.READY


def _without_outbox(fields: Fields) -> Fields:
    return {name: text for name, text in fields.items() if name != _OUTBOX}
