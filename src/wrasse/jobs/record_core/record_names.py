"""The stored names of records of jobs and workers, which differ from those in the program.

Records are shared by workers of several versions, so their bytes stay what they were: the state of a job stands under
`place`, and a running one is `held`. Each form in here is a class of the program once more, with the stored names of
its fields; a header or a payload with such a word in it stays as it is. `plain` makes any text a part of a key that
every store accepts.

`RecordedIds` are the ids that are refused although their job is gone, one record each.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from operator import attrgetter
from typing import Self

import msgspec

from wrasse.jobs.record_core.claims import MillisecondTime
from wrasse.ports.jobs import Attempt, Job, JobInfo, JobState, JobStatus, Progress, Reason, WorkerInfo, WorkerState
from wrasse.ports.records import Records
from wrasse.ports.rules.job_transitions import SettledRequest, StoredJob

_STATES = {state: "held" if state is JobState.RUNNING else state.value for state in JobState}
_FROM_STORED = {text: state for state, text in _STATES.items()}
_STATUSES = {JobStatus.SCHEDULED: "delayed", JobStatus.RUNNING: "held"}
_OLD_MAX = 100  # removed by one call of keep
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,80}")


def stored_status(status: JobStatus) -> str:
    """What a status is called in the name of an index."""
    return _STATUSES.get(status, status.value)


class AttemptForm(msgspec.Struct, rename={"claimed_at": "taken_at"}):
    """An `Attempt`."""

    number: int
    worker: str
    claimed_at: datetime
    ended_at: datetime
    reason: Reason
    error: str = ""

    @classmethod
    def of(cls, attempt: Attempt) -> Self:
        """The stored form."""
        return cls(*_attempt_values(attempt))

    def read(self) -> Attempt:
        """The attempt."""
        return Attempt(self.number, self.worker, self.claimed_at, self.ended_at, self.reason, self.error)


class InfoForm(
    msgspec.Struct,
    rename={"state": "place", "claimed_at": "taken_at", "heartbeat_at": "beat_at", "deadline": "until"},
):
    """A `JobInfo`."""

    id: str
    kind: str
    queue: str
    priority: str
    size: int
    state: str
    token: int
    nonce: str
    attempts: int
    failures: int
    rescues: int
    interruptions: int
    created_at: datetime
    not_before: datetime | None = None
    worker: str = ""
    claimed_at: datetime | None = None
    heartbeat_at: datetime | None = None
    deadline: datetime | None = None
    finished_at: datetime | None = None
    kept_until: datetime | None = None
    reason: Reason | None = None
    error: str = ""
    retries_max: int | None = None

    @classmethod
    def of(cls, info: JobInfo) -> Self:
        """What is known of a job, as it is stored."""
        form = cls(*_info_values(info))
        form.state = _STATES[info.state]
        return form

    def read(self) -> JobInfo:
        """What is known of the job; a ValidationError for a state that is none."""
        self.state = _FROM_STORED.get(self.state, self.state)
        return msgspec.convert(self, JobInfo, from_attributes=True)


class JobForm(msgspec.Struct, rename={"info": "state", "enqueued_by": "put_by"}):
    """A `StoredJob`."""

    job: Job
    info: InfoForm
    rank: int = 0
    history: tuple[AttemptForm, ...] = ()
    result: bytes | None = None
    progress: Progress | None = None
    enqueued_by: str = ""
    settled: tuple[SettledRequest, ...] = ()
    follow: tuple[Job, ...] = ()

    @classmethod
    def of(cls, stored: StoredJob) -> Self:
        """A job as it is stored."""
        history = tuple([AttemptForm.of(each) for each in stored.history])
        return cls(
            stored.job, InfoForm.of(stored.info), stored.rank, history, stored.result, stored.progress,
            stored.enqueued_by, stored.settled, stored.follow,
        )  # fmt: skip

    def read(self) -> StoredJob:
        """The job; a ValidationError where it is none."""
        history = tuple([each.read() for each in self.history])
        return StoredJob(
            self.job, self.info.read(), self.rank, history, self.result, self.progress,
            self.enqueued_by, self.settled, self.follow,
        )  # fmt: skip


class WorkerForm(msgspec.Struct, rename={"heartbeat_at": "beat_at", "deadline": "until"}):
    """A `WorkerState`."""

    info: WorkerInfo
    heartbeat_at: datetime
    deadline: datetime


_attempt_values = attrgetter(*AttemptForm.__struct_fields__)
_info_values = attrgetter(*InfoForm.__struct_fields__)
_decode_worker = msgspec.json.Decoder(WorkerForm).decode
_decode_history = msgspec.json.Decoder(tuple[AttemptForm, ...]).decode


def encode_worker(worker: WorkerState) -> bytes:
    """The bytes of a worker's record."""
    return msgspec.json.encode(WorkerForm(worker.info, worker.heartbeat_at, worker.deadline))


def decode_worker(value: bytes) -> WorkerState:
    """A worker from its record; a ValidationError for bytes that are none."""
    form = _decode_worker(value)
    return WorkerState(form.info, form.heartbeat_at, form.deadline)


def encode_history(history: tuple[Attempt, ...]) -> bytes:
    """A job's history as JSON."""
    return msgspec.json.encode([AttemptForm.of(each) for each in history])


def decode_history(value: bytes) -> tuple[Attempt, ...]:
    """The history that `encode_history` wrote; a ValidationError for what is none."""
    return tuple([each.read() for each in _decode_history(value)])


class RecordedIds:
    """Ids of lasting jobs that were deleted, each with its expiry."""

    def __init__(self, records: Records, time: MillisecondTime) -> None:
        self._records, self._time = records, time

    async def known(self, id: str, at: datetime) -> bool:
        """Whether this id is still refused."""
        record = await self._records.get(plain(id))
        return record is not None and record.due_at is not None and record.due_at > at

    async def keep(self, id: str, expires_at: datetime) -> None:
        """Stores the id of a job that is about to be deleted, and removes some expired ids."""
        key = plain(id)
        found = await self._records.get(key)
        if found is None:
            await self._records.create(key, b"{}", due_at=expires_at)
        else:
            await self._records.put(key, b"{}", at=found.version, due_at=expires_at)
        at = await self._time.now()
        for record in await self._records.due(None, None, _OLD_MAX):
            if record.due_at is not None and record.due_at <= at:
                await self._records.delete(record.key, at=record.version)


def plain(text: str) -> str:
    """A text as part of a name that every store accepts: itself where that is plain, else a digest."""
    if _PLAIN.fullmatch(text):
        return text
    return "~" + hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
