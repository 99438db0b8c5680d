"""The names that records of jobs and of workers have where they are stored: other ones than in the program.

Records are shared by workers of several versions, so their bytes stay what they were: the state of a job stands under
`place`, and a running one is `held`. Each name is translated where it stands and nowhere else: a header or a payload
with such a word in it stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from wrasse.ports.jobs import Attempt, JobState, WorkerState
from wrasse.ports.rules.job_transitions import JobStatus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredNames:
    """The stored names of an object's fields, of what is inside some of them, and of values."""

    fields: Mapping[str, str]
    inner: Mapping[str, StoredNames] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def write(self, value: Any) -> Any:
        """An object, or a list of them, as it is stored."""
        if isinstance(value, (list, tuple)):
            return [self.write(each) for each in value]
        written = {}
        for name, inside in value.items():
            if name in self.inner:
                inside = self.inner[name].write(inside)
            elif name in self.values:
                inside = self.values[name].get(inside, inside)
            written[self.fields.get(name, name)] = inside
        return written

    def read(self, value: Any) -> Any:
        """What `write` wrote, and anything else as it is, for the decoder to refuse."""
        if isinstance(value, list):
            return [self.read(each) for each in value]
        if not isinstance(value, dict):
            return value
        names = {stored: name for name, stored in self.fields.items()}
        found = {}
        for key, inside in value.items():
            name = names.get(key, str(key))
            if name == key and name in self.fields:
                continue  # a field of this name is not known where it is stored
            if name in self.inner:
                inside = self.inner[name].read(inside)
            elif name in self.values and isinstance(inside, str):
                inside = {b: a for a, b in self.values[name].items()}.get(inside, inside)
            found[name] = inside
        return found


_STATES = {JobState.RUNNING.value: "held"}
_STATUSES = {JobStatus.SCHEDULED: "delayed", JobStatus.RUNNING: "held"}
_ATTEMPT = StoredNames({"claimed_at": "taken_at"})
_WORKER = StoredNames({"heartbeat_at": "beat_at", "deadline": "until"})
_INFO = StoredNames(
    {"state": "place", "claimed_at": "taken_at", "heartbeat_at": "beat_at", "deadline": "until"},
    values={"state": _STATES},
)
_JOB = StoredNames({"info": "state", "enqueued_by": "put_by"}, inner={"info": _INFO, "history": _ATTEMPT})
_RECORD = StoredNames({}, inner={"stored": _JOB})


def stored_status(status: JobStatus) -> str:
    """What a status is called in the name of an index."""
    return _STATUSES.get(status, status.value)


def encode_job_record(recorded: object) -> bytes:
    """The bytes of a record that has a job under `stored`."""
    return _encode(recorded, _RECORD)


def job_record_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Reads what `encode_job_record` wrote; a ValidationError for bytes that are no such record."""
    return lambda value: _decode(value, _RECORD, kind)


def encode_worker(worker: WorkerState) -> bytes:
    """The bytes of a worker's record."""
    return _encode(worker, _WORKER)


def decode_worker(value: bytes) -> WorkerState:
    """A worker from its record; a ValidationError for bytes that are none."""
    return _decode(value, _WORKER, WorkerState)


def encode_history(history: tuple[Attempt, ...]) -> bytes:
    """A job's history as JSON."""
    return _encode(history, _ATTEMPT)


def decode_history(value: bytes) -> tuple[Attempt, ...]:
    """The history that `encode_history` wrote; a ValidationError for what is none."""
    return _decode(value, _ATTEMPT, tuple[Attempt, ...])


def _encode(value: object, names: StoredNames) -> bytes:
    return msgspec.json.encode(names.write(msgspec.to_builtins(value)))


def _decode(value: bytes, names: StoredNames, kind: type[T]) -> T:
    return msgspec.convert(names.read(msgspec.json.decode(value)), kind)
