"""The wire format of stream tasks: records, names and index positions; pure.

A record is a flat object of texts with the design document's fields, and a few of our own. It is read and written here
and nowhere else. Unknown fields stay as they are. Instants are milliseconds since 1970, numbers are decimal. A record
that another program wrote has none of our fields: it is a task all the same, claimed by its `worker`, with `timeout_at`
as its deadline if there is one. A record without a state or a valid `updated_at` is malformed and reported, never
guessed.

Names are those of the design document: the record of a task is `gbe:state:tasks:<type>:<id>`, its type has the streams
`gbe.tasks.<type>.queue`, `.progress` and `.terminal`, and workers share the queue as `<type>-workers`.

An index status is a type and a state, scheduled tasks apart; the position is the order within the listing of a state.
An index entry and a listing's cursor have the same form, so the two cannot differ.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from wrasse.bounded import DURATION_SECONDS_MAX, UNREADABLE, VALUE_MAX, decoded, instant, integer
from wrasse.clock import EPOCH, from_micros, to_micros
from wrasse.errors import StoreBroken, UsageError
from wrasse.jobs.record_core.record_names import decode_history, encode_history, stored_status
from wrasse.ports.jobs import NOTHING, Job, JobInfo, JobState, JobStatus, Progress, Reason
from wrasse.ports.page import number_in
from wrasse.ports.records import Collection, IndexEntry
from wrasse.ports.rules.job_transitions import SettledRequest, StoredJob, back

ROOT = "gbe"
TASKS = Collection(
    data="gbe:state:tasks",
    index="gbe:state:tasks-due",
    buckets="gbe:state:tasks-due/buckets.json",
    width=timedelta(minutes=1),
    flat=True,
)
WORKERS = Collection.named("wrasse-tasks/workers", width=timedelta(minutes=1))
KNOWN_IDS = Collection.named("wrasse-tasks/ids")

ERRORS = f"{ROOT}.events.system.error"
SWEEPS = f"{ROOT}.events.system.sweep"

_TYPE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_task_type(task_type: str) -> None:
    """Refuses an invalid type, with the reason."""
    if not _TYPE.fullmatch(task_type):
        raise UsageError(
            f"the task type {task_type[:60]!r}", do="use 1 to 48 of a-z, 0-9 and -, with no - at either end"
        )


def check_task_id(id: str) -> None:
    """Refuses an invalid id, with the reason."""
    if not _ID.fullmatch(id):
        raise UsageError(f"the task id {id[:80]!r}", do="use 1 to 64 of A-Z, a-z, 0-9, _ and -")


def record_key(task_type: str, id: str) -> str:
    """The key of a task's record in its collection."""
    return f"{task_type}:{id}"


def wire_key(task_type: str, id: str) -> str:
    """The record's key on the wire."""
    return f"{TASKS.data}:{task_type}:{id}"


def names_in(key: str) -> tuple[str, str]:
    """Type and id of a record's key."""
    task_type, _, id = key.partition(":")
    return task_type, id


def id_in(wire: str, task_type: str) -> str:
    """The id in a record's name on the wire, whichever of the origin's two spellings it has; empty if it is none."""
    name = wire.replace(".", ":")
    start = wire_key(task_type, "")
    return name.removeprefix(start) if name.startswith(start) else ""


def queue_of(task_type: str) -> str:
    """The stream of ready tasks."""
    return f"{ROOT}.tasks.{task_type}.queue"


def progress_of(task_type: str) -> str:
    """The stream of progress."""
    return f"{ROOT}.tasks.{task_type}.progress"


def terminal_of(task_type: str) -> str:
    """The stream of ended tasks."""
    return f"{ROOT}.tasks.{task_type}.terminal"


def group_of(task_type: str) -> str:
    """The group of all workers of a type."""
    return f"{task_type}-workers"


Position = tuple[int, int, str]  # 0, or 1 among scheduled ones; the position; the id


def status_name(task_type: str, status: JobStatus) -> str:
    """The status of tasks of a type, as the index names it."""
    return f"{task_type}/{stored_status(status)}"


def statuses_of(state: JobState) -> tuple[JobStatus, ...]:
    """The statuses in a listing of a state, in order."""
    return (JobStatus.READY, JobStatus.SCHEDULED) if state is JobState.READY else (JobStatus(state.value),)


def index_entry_of(stored: StoredJob) -> IndexEntry:
    """The index entry of a task."""
    return IndexEntry(status_name(stored.info.queue, stored.status), stored.index_position)


def position_of(stored: StoredJob) -> Position:
    """A task's position in the listing of its state."""
    return int(stored.scheduled), stored.index_position, stored.info.id


def write_position(position: Position) -> str:
    """A cursor that continues after this position."""
    return ":".join(map(str, position))


def read_position(cursor: str) -> Position:
    """The position in a cursor."""
    status, _, rest = cursor.partition(":")
    number, _, id = rest.partition(":")
    return number_in(cursor, status), number_in(cursor, number), id


Fields = Mapping[str, str]
T = TypeVar("T")

BLOCKED = "blocked"
FAR = from_micros(253_402_300_799_000_000)  # in the year 9999: a blocked task waits for others, not for time
NAMED = ("job_id", "org_id", "task_name")  # fields that a producer gives as headers
_STATES = {
    BLOCKED: JobState.READY,
    "pending": JobState.READY,
    "claimed": JobState.RUNNING,
    "running": JobState.RUNNING,
    "completed": JobState.DONE,
    "failed": JobState.DEAD,
    "cancelled": JobState.DEAD,
}
_MILLISECOND = timedelta(milliseconds=1)


def state_of(stored: StoredJob, before: Fields) -> str:
    """The state's name on the wire."""
    info = stored.info
    match info.state:
        case JobState.READY:
            return BLOCKED if info.not_before == FAR and before.get("state") == BLOCKED else "pending"
        case JobState.RUNNING:
            return "claimed" if info.heartbeat_at == info.claimed_at else "running"
        case JobState.DONE:
            return "completed"
        case JobState.DEAD:
            return "cancelled" if info.reason is Reason.CANCELLED else "failed"


def encode_fields(stored: StoredJob, before: Fields, at: datetime) -> dict[str, str]:
    """The fields of a task, over those that were there before. Empty ones are left out."""
    info, job = stored.info, stored.job
    ours = {
        "state": state_of(stored, before),
        "task_type": info.queue,
        "task_id": info.id,
        **{name: job.headers.get(name, before.get(name, "")) for name in NAMED},
        "worker": info.worker,
        "current_step": stored.progress.note if stored.progress else before.get("current_step", ""),
        "created_at": _instant(info.created_at),
        "updated_at": _instant(at),
        "timeout_at": _instant(info.deadline),
        "failed_at": _instant(info.finished_at) if info.state is JobState.DEAD else "",
        "error": info.error,
        "retry_count": str(info.failures + info.rescues),
        "max_retries": "" if info.retries_max is None else str(info.retries_max),
        **_own(stored, before),
    }
    return {name: text for name, text in {**before, **ours}.items() if text}


def _own(stored: StoredJob, before: Fields) -> dict[str, str]:
    """The fields that the document does not have."""
    info, job = stored.info, stored.job
    return {
        "kind": info.kind,
        "priority": info.priority,
        "headers": _json(job.headers) if job.headers else "",
        "payload_b64": "" if before.get("params_ref") else base64.b64encode(job.payload).decode(),
        "payload_size": str(info.size),
        "timeout": _span(job.timeout),
        "keep": _span(job.keep or None),
        "lasting": "1" if job.lasting else "",
        "claim_token": str(info.token),
        "claim_nonce": info.nonce,
        "claimed_at": _instant(info.claimed_at),
        "beat_at": _instant(info.heartbeat_at),
        "attempts": str(info.attempts),
        "failures": str(info.failures),
        "interruptions": str(info.interruptions),
        "not_before": "" if state_of(stored, before) == BLOCKED else _instant(info.not_before),
        "finished_at": _instant(info.finished_at),
        "kept_until": _instant(info.kept_until),
        "reason": info.reason.value if info.reason else "",
        "rank": str(stored.rank),
        "history": encode_history(stored.history).decode() if stored.history else "",
        "result_b64": "-" if stored.result == b"" else base64.b64encode(stored.result or b"").decode(),
        "progress": _json(stored.progress) if stored.progress else "",
        "put_by": stored.enqueued_by,
        "settled_by": _json(stored.settled) if stored.settled else "",
        "follow": _json(stored.follow) if stored.follow else "",
    }


def decode_fields(task_type: str, id: str, fields: Fields) -> StoredJob:
    """The task in these fields; StoreBroken if they are none."""
    try:
        return _decode(task_type, id, fields)
    except UNREADABLE as why:
        raise StoreBroken(
            f"the record of task {id!r} of type {task_type!r} is malformed: {why}",
            do="check the program that wrote it, and repair or delete the record",
        ) from why


def _decode(task_type: str, id: str, fields: Fields) -> StoredJob:
    name = fields.get("state", "")
    if name not in _STATES:
        raise ValueError(f"its state is {name!r}")
    updated = _when(fields, "updated_at")
    if updated is None:
        raise ValueError("it has no updated_at")
    info = _state(task_type, id, fields, updated)
    headers = _of(fields, "headers", dict[str, str]) or {n: fields[n] for n in NAMED if fields.get(n)} or NOTHING
    job = Job(
        id,
        kind=info.kind,
        queue=task_type,
        priority=info.priority,
        payload=base64.b64decode(fields.get("payload_b64", ""), validate=True),
        headers=headers,
        timeout=_duration(fields, "timeout"),
        lasting=bool(fields.get("lasting")),
        keep=_duration(fields, "keep") or timedelta(0),
    )
    text = fields.get("result_b64", "")
    return StoredJob(
        job,
        info,
        rank=integer(fields["rank"], -VALUE_MAX, VALUE_MAX) if fields.get("rank") else back(updated),
        history=decoded(decode_history, fields["history"].encode()) if fields.get("history") else (),
        result=(b"" if text == "-" else base64.b64decode(text, validate=True)) if text else None,
        progress=_of(fields, "progress", Progress),
        enqueued_by=fields.get("put_by", ""),
        settled=_of(fields, "settled_by", tuple[SettledRequest, ...]) or (),
        follow=_of(fields, "follow", tuple[Job, ...]) or (),
    )


def _state(task_type: str, id: str, fields: Fields, updated: datetime) -> JobInfo:
    state = _STATES[fields["state"]]
    running, finished = state is JobState.RUNNING, state in (JobState.DONE, JobState.DEAD)
    retries, failures = _number(fields, "retry_count"), _number(fields, "failures")
    created = _when(fields, "created_at") or updated
    died = Reason.CANCELLED if fields["state"] == "cancelled" else Reason.FAILED
    return JobInfo(
        id=id,
        kind=fields.get("kind", ""),
        queue=task_type,
        priority=fields.get("priority", ""),
        size=_number(fields, "payload_size"),
        state=state,
        token=_number(fields, "claim_token"),
        nonce=fields.get("claim_nonce", ""),
        attempts=_number(fields, "attempts") or int(running),
        failures=failures,
        rescues=max(retries - failures, 0),
        interruptions=_number(fields, "interruptions"),
        created_at=created,
        not_before=FAR if fields["state"] == BLOCKED else _when(fields, "not_before"),
        worker=fields.get("worker", "") if state is not JobState.READY else "",
        claimed_at=(_when(fields, "claimed_at") or (updated if running else None))
        if state is not JobState.READY
        else None,
        # Our heartbeat writes both; another program's heartbeat is the newest change.
        heartbeat_at=updated if running else _when(fields, "beat_at"),
        deadline=_when(fields, "timeout_at") if running else None,
        finished_at=(_when(fields, "finished_at") or _when(fields, "failed_at") or updated) if finished else None,
        kept_until=_when(fields, "kept_until") if finished else None,
        reason=(Reason(fields["reason"]) if fields.get("reason") else died) if state is JobState.DEAD else None,
        error=fields.get("error", ""),
        retries_max=_number(fields, "max_retries") if fields.get("max_retries") else None,
    )


def read_flat(value: bytes) -> dict[str, str]:
    """The fields in a record's bytes; StoreBroken if they are no flat object."""
    try:
        return msgspec.json.decode(value, type=dict[str, str])
    except UNREADABLE as why:
        raise StoreBroken("the record of a task is no object of texts", do="check the program that wrote it") from why


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _of(fields: Fields, name: str, kind: type[T]) -> T | None:
    if not fields.get(name):
        return None
    return decoded(msgspec.json.Decoder(kind).decode, fields[name].encode())


def _instant(at: datetime | None) -> str:
    return "" if at is None else str(to_micros(at) // 1_000)


def _when(fields: Fields, name: str) -> datetime | None:
    text = fields.get(name, "")
    if not text:
        return None
    try:
        found = instant(text)
        if found < EPOCH:
            raise ValueError(f"{text!r} is before 1970")
        return found
    except ValueError as why:
        raise ValueError(f"field {name}: {why}") from None


def _number(fields: Fields, name: str) -> int:
    try:
        return integer(fields.get(name) or 0)
    except ValueError as why:
        raise ValueError(f"field {name}: {why}") from None


def _span(span: timedelta | None) -> str:
    """In milliseconds, rounded up: a short timeout stays one."""
    return "" if span is None else str(-(-span // _MILLISECOND))


def _duration(fields: Fields, name: str) -> timedelta | None:
    number = _number(fields, name)
    if number > DURATION_SECONDS_MAX * 1_000:
        raise ValueError(f"field {name}: {number} ms are more than 100 years")
    return _MILLISECOND * number if fields.get(name) else None
