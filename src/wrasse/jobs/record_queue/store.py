"""Jobs as records, with their markers and parts: one conditional write for every change, and no garbage.

    enqueue   the marker; parts; the record, if there is none
    change    the new marker; the record at its version; then the old marker is deleted
    delete    the record at its version; then its marker. One with parts or follow-ups is first written as leaving,
              due ten seconds later: until then its writer finishes it, then any process that finds it

No write carries a nonce, so that a deleted record is gone at once. Each has a mark of its own instead, which shows
after an unclear answer whether the write was made.

    <root>/jobs/<key>.json                    the record: everything about one job; every change is one write of it
    <root>/ready/<queue>/<turn>.<key>.<mark>  the marker of a ready job, in the order of service
    <root>/done/<when>.<key>.<mark>.<queue>   the marker of a done job, by when it finished; likewise `dead`
    <root>/due/<minute>/<key>                 found when the deadline of a running job should have passed
    <root>/parts/<key>.<mark>                 a payload or result that is too large for the record

A marker is an empty object, so that one listing shows all jobs of a state. It is created before its record and deleted
after it. It counts only while the record has its mark.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import UNREADABLE, decoded, why
from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable, WrasseError
from wrasse.jobs.record_core.claims import MillisecondTime, read_apart, whole
from wrasse.jobs.record_core.record_names import JobForm, plain
from wrasse.ports.jobs import JobState
from wrasse.ports.objects import ObjectDelete, Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import pages
from wrasse.ports.records import Collection, Record, Records
from wrasse.ports.rules.job_transitions import StoredJob, check_stored

_MIDDLE = 1 << 63  # ranks below zero come first


@dataclass(frozen=True, slots=True)
class JobRecordNames:
    """The names below one root."""

    root: str = "jobs"

    @property
    def jobs(self) -> Collection:
        """The records of the jobs."""
        root = self.root
        return Collection(f"{root}/jobs", f"{root}/due", f"{root}/due/buckets.json", width=timedelta(minutes=1))

    @property
    def workers(self) -> Collection:
        """The records of their workers."""
        return Collection.named(f"{self.root}/workers", width=timedelta(minutes=1))

    @property
    def ids(self) -> Collection:
        """Ids that are remembered after their job is gone."""
        return Collection.named(f"{self.root}/ids")

    def folder(self, state: JobState) -> str:
        """The prefix of the markers of a state."""
        return f"{self.root}/{state.value}/"

    def queue(self, queue: str) -> str:
        """The prefix of the ready markers of one queue."""
        return f"{self.folder(JobState.READY)}{plain(queue)}/"

    def part(self, key: str, mark: str) -> str:
        """The name of a part that is too large for a record."""
        return f"{self.root}/parts/{key}.{mark}"

    def marker(self, stored: StoredJob, mark: str) -> str | None:
        """The name of a job's marker; a running one has none."""
        info, key = stored.info, plain(stored.info.id)
        if info.state is JobState.READY:
            return f"{self.queue(info.queue)}{stored.rank + _MIDDLE:020d}.{key}.{mark}"
        if info.state is JobState.RUNNING:
            return None
        return f"{self.folder(info.state)}{stored.index_position:020d}.{key}.{mark}.{plain(info.queue)}"


@dataclass(frozen=True, slots=True)
class ReadyMarker:
    """A parsed marker name. `position` is in nanoseconds where the job is ready, else when it
    finished."""

    name: str
    version: str
    position: int
    key: str
    mark: str
    queue: str
    made_at: datetime | None = None

    @property
    def ready_at(self) -> int:
        """Of a ready job: since when it is ready, in microseconds."""
        return abs(self.position) // 1_000


def read_marker(name: str, version: str, made_at: datetime | None = None) -> ReadyMarker | None:
    """The marker of this name; None if it is not one of ours."""
    folder, _, last = name.rpartition("/")
    parts = last.split(".")
    if len(parts) < 3 or not parts[0].isdigit():
        return None
    ready = len(parts) == 3
    position = int(parts[0]) - (_MIDDLE if ready else 0)
    queue = folder.rpartition("/")[2] if ready else parts[3]
    return ReadyMarker(name, version, position, parts[1], parts[2], queue, made_at)


INLINE_BYTES_MAX = 64 << 10  # beyond this a payload or a result is an object of its own
CHARGE = timedelta(seconds=10)  # during which the writer of a leaving job does what is left
STALE = timedelta(minutes=10)  # after which no write of a marker's record can be in progress
VERSIONS_MAX = 10_000
LATER_MAX = 64
_FAR = timedelta(days=366)  # further than any claim lasts


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Bytes that are stored beside the record."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """The content of a record. `mark` identifies the write that made it. One that is `leaving` is finished, and only
    its cleanup is left; `beside`: also that of data stored under its id elsewhere."""

    stored: StoredJob
    mark: str
    payload: StoredPart | None = None
    result: StoredPart | None = None
    leaving: bool = False
    beside: bool = False


@dataclass(frozen=True, slots=True)
class JobRecordRead:
    """A job's record as it was read or written."""

    key: str
    recorded: Recorded
    version: str
    due_at: datetime | None = None

    @property
    def stored(self) -> StoredJob:
        """The job."""
        return self.recorded.stored

    @property
    def leaving(self) -> bool:
        """Finished, with only its cleanup left."""
        return self.recorded.leaving

    @property
    def apart(self) -> bool:
        """Whether its payload or its result is an object."""
        return self.recorded.payload is not None or self.recorded.result is not None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that is not a job: its bytes and the reason. A version that is damaged too matches no write."""

    key: str
    value: bytes
    due_at: datetime | None
    error: str


class RecordedForm(msgspec.Struct):
    """A `Recorded` under the names it is stored by."""

    stored: JobForm
    mark: str
    payload: StoredPart | None = None
    result: StoredPart | None = None
    leaving: bool = False
    beside: bool = False


_decode_form = msgspec.json.Decoder(RecordedForm).decode


def encode_recorded(recorded: Recorded) -> bytes:
    """The bytes of a record."""
    return msgspec.json.encode(
        RecordedForm(
            JobForm.of(recorded.stored), recorded.mark, recorded.payload, recorded.result, recorded.leaving,
            recorded.beside,
        )
    )  # fmt: skip


def _decode(value: bytes) -> Recorded:
    form = _decode_form(value)
    return Recorded(form.stored.read(), form.mark, form.payload, form.result, form.leaving, form.beside)


def decode_recorded(key: str, value: bytes) -> Recorded:
    """The decoded record; StoreBroken with the reason if it is not a job."""
    try:
        recorded = decoded(_decode, value)
        check_stored(recorded.stored)
        if plain(recorded.stored.info.id) != key:
            raise ValueError(f"it is the record of {recorded.stored.info.id!r}, under the key of another job")
        return recorded
    except UNREADABLE as error:
        raise StoreBroken(
            f"the record {key!r} is not a job: {why(error)}", do="check what else writes to these records"
        ) from error


class RecordedStore:
    """The records, markers and parts of one queue root."""

    def __init__(self, records: Records, objects: Objects, names: JobRecordNames, clock: Clock) -> None:
        self._records, self._objects, self.names, self._clock = records, objects, names, clock
        self.time = MillisecondTime(clock, self._read_time)
        self._versions: OrderedDict[str, str] = OrderedDict()  # of markers that were made or seen here
        self._later: set[asyncio.Task[None]] = set()
        self.changes = 0

    async def get(self, id: str) -> JobRecordRead | None:
        """The job of this id."""
        return await self.load(plain(id))

    async def load(self, key: str, entering: datetime | None = None) -> JobRecordRead | None:
        """The job of this key; `entering`: the deadline of the claim about to be made."""
        return self.seen(await self._records.get(key, entering=entering))

    async def looked_at(self, key: str, entering: datetime | None = None) -> JobRecordRead | StoreBroken | None:
        """The same, for reads of many: StoreBroken is returned, so that it affects one record only."""
        try:
            return await self.load(key, entering)
        except StoreBroken as broken:
            return broken

    async def unreadable(self, key: str) -> Unreadable | None:
        """A record that is not a job, read from a listing, which skips damage; None if there is none."""
        page = await self._records.page(key, None, 1)
        read = [self._read_due(record) for record in page if record.key == key]
        return read[0] if read and isinstance(read[0], Unreadable) else None

    def seen(self, record: Record | None) -> JobRecordRead | None:
        """The job in a record."""
        if record is None:
            return None
        return JobRecordRead(record.key, decode_recorded(record.key, record.value), record.version, record.due_at)

    def _read_due(self, record: Record) -> JobRecordRead | Unreadable:
        try:
            return JobRecordRead(record.key, decode_recorded(record.key, record.value), record.version, record.due_at)
        except StoreBroken as broken:
            return Unreadable(record.key, record.value, record.due_at, broken.message)

    async def add(self, stored: StoredJob) -> JobRecordRead | None:
        """A new job; None if there is one of its id."""
        mark, key, begun = secrets.token_hex(5), plain(stored.info.id), self._clock.monotonic()
        marker = await self._mark_ready(stored, mark)
        payload, stored = await self._apart(key, mark, stored)
        recorded = Recorded(stored, mark, payload)
        written = await self._records.create(key, encode_recorded(recorded))
        self.time.heard(written.at)
        version = written.version
        if written.outcome is Outcome.UNKNOWN:
            version = await self._own(key, mark)
        if version is None:
            await self._drop(marker, payload)
            return None
        await self._mark_again(marker, begun)
        self.changes += 1
        return JobRecordRead(key, recorded, version)

    async def put(self, seen: JobRecordRead, after: StoredJob, at: datetime) -> JobRecordRead | None:
        """Changes a job that stays; None if its record has changed since."""
        return await self.write(seen, after)

    async def write(
        self,
        seen: JobRecordRead,
        after: StoredJob,
        *,
        leaving: bool = False,
        result: bytes | None = None,
        beside: bool = False,
    ) -> JobRecordRead | None:
        """Changes a job; None if its record has changed since."""
        mark, begun, before = secrets.token_hex(5), self._clock.monotonic(), seen.recorded
        marker = None if leaving else await self._mark_ready(after, mark)
        part = await self._part(seen.key, mark, result) if result is not None else before.result
        recorded = replace(before, stored=after, mark=mark, leaving=leaving, result=part, beside=beside)
        due_at = after.info.deadline
        if leaving or after.follow:
            due_at = await self.time.now() + CHARGE
        written = await self._records.put(seen.key, encode_recorded(recorded), at=seen.version, due_at=due_at)
        self.time.heard(written.at)
        version = written.version
        if written.outcome is Outcome.UNKNOWN:
            version = await self._own(seen.key, mark)
        if version is None:
            await self._drop(marker, part if part is not before.result else None)
            return None
        await self._mark_again(marker, begun)
        self.changes += 1
        old = self.names.marker(before.stored, before.mark)
        if old is not None and not before.leaving:
            await self.later(self._drop(old, None))
        if due_at is not None:
            # The time in a reply is as old as the reply: the elapsed time is subtracted.
            due_at -= timedelta(seconds=self._clock.monotonic() - begun)
        return JobRecordRead(seen.key, recorded, version, due_at)

    async def delete(self, seen: JobRecordRead) -> Outcome:
        """Deletes a job and its marker. Its parts were deleted before, or there are none."""
        deleted = await self._records.delete(seen.key, at=seen.version)
        self.time.heard(deleted.at)
        if deleted.outcome is Outcome.CONFLICT:
            return Outcome.CONFLICT
        self.changes += 1
        if (marker := self.names.marker(seen.stored, seen.recorded.mark)) is not None and not seen.recorded.leaving:
            await self.later(self._drop(marker, None))
        return deleted.outcome

    async def drop_parts(self, seen: JobRecordRead) -> None:
        """Deletes the parts stored beside the record."""
        for part in (seen.recorded.payload, seen.recorded.result):
            if part is not None:
                await self._objects.delete([ObjectDelete(part.name, part.version)])

    async def whole(self, seen: JobRecordRead) -> StoredJob:
        """The job with its payload and result, also those in parts."""
        stored, recorded = seen.stored, seen.recorded
        if recorded.payload is not None:
            payload = await read_apart(self._objects, recorded.payload.name)
            stored = replace(stored, job=replace(stored.job, payload=payload))
        if recorded.result is not None:
            stored = replace(stored, result=await read_apart(self._objects, recorded.result.name))
        return stored

    async def markers(self, prefix: str, after: str | None, limit: int) -> tuple[list[ReadyMarker], bool]:
        """Markers in order, and whether there are more. One request."""
        page = await self._objects.page(prefix, after, limit)
        self.time.heard(page.at)
        read = [read_marker(info.key, info.version, info.modified_at) for info in page]
        found = [marker for marker in read if marker is not None]
        for marker in found:
            self._note(marker.name, marker.version)
        return found, page.more

    async def counts(self, marker: ReadyMarker, seen: JobRecordRead | None, at: datetime) -> bool:
        """Whether a marker belongs to the record as it was read. An old one that does not is deleted, with the part
        that a crash left."""
        if seen is not None and seen.recorded.mark == marker.mark:
            return True
        if marker.made_at is not None and at - marker.made_at >= STALE:
            await self.later(self._forget(marker, seen))
        return False

    async def every_due(self) -> AsyncIterator[JobRecordRead | Unreadable]:
        """Every record in the due index: running jobs, and those with something left to do."""
        far = await self.time.now() + _FAR
        async for page in pages(lambda after: self._records.due(far, after, 1_000)):
            self.time.heard(page.at)
            for record in page:
                yield self._read_due(record)

    async def overdue(self, limit: int) -> tuple[list[JobRecordRead], datetime]:
        """Records that are due, or will be within the index's resolution. An unreadable one stays, for a person to
        repair or delete, and does not count towards the limit."""
        found: list[JobRecordRead] = []
        before = await self.time.now() + self._records.resolution
        async for page in pages(lambda after: self._records.due(before, after, limit)):
            # Its time is not noted: this runs beside other work, and a delayed answer would set the time back.
            found += [seen for seen in map(self._read_due, page) if isinstance(seen, JobRecordRead)]
            if len(found) >= limit:
                break
        return found[:limit], whole(page.at)

    async def later(self, work: Coroutine[None, None, None]) -> None:
        """Does this in the background; at once, if LATER_MAX tasks are pending."""
        if len(self._later) >= LATER_MAX:
            await _quietly(work)
            return
        task = asyncio.create_task(_quietly(work))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def finished(self) -> None:
        """Waits until all background work is done."""
        while self._later:
            await asyncio.wait([*self._later])

    async def _forget(self, marker: ReadyMarker, seen: JobRecordRead | None) -> None:
        await self._drop(marker.name, None)
        name = self.names.part(marker.key, marker.mark)
        parts = () if seen is None else (seen.recorded.payload, seen.recorded.result)
        if any(part is not None and part.name == name for part in parts):
            return
        head = await self._objects.head(name)
        if head is not None:
            await self._objects.delete([ObjectDelete(name, head.info.version)])

    async def _mark_ready(self, stored: StoredJob, mark: str) -> str | None:
        name = self.names.marker(stored, mark)
        if name is not None:
            made = await self._objects.create(name, b"")
            if made.outcome is Outcome.UNKNOWN:
                raise StoreUnavailable(
                    "it is unknown whether the marker of a job was written", do="try again; nothing was changed"
                )
            if made.version is not None:
                self._note(name, made.version)
        return name

    async def _mark_again(self, name: str | None, begun: float) -> None:
        """Makes a marker again whose record took so long that others may have deleted the marker as stale."""
        if name is not None and self._clock.monotonic() - begun > STALE.total_seconds() / 2:
            await self._objects.create(name, b"")

    async def _apart(self, key: str, mark: str, stored: StoredJob) -> tuple[StoredPart | None, StoredJob]:
        payload = stored.job.payload
        if len(payload) <= INLINE_BYTES_MAX:
            return None, stored
        return await self._part(key, mark, payload), replace(stored, job=replace(stored.job, payload=b""))

    async def _part(self, key: str, mark: str, data: bytes) -> StoredPart:
        name = self.names.part(key, mark)
        made = await self._objects.create(name, data)
        if made.version is None:
            raise StoreUnavailable("it is unknown whether the bytes of a job were written", do="try again")
        return StoredPart(name, made.version)

    async def _own(self, key: str, mark: str) -> str | None:
        """The version of the record, if it is the one that was written under this mark."""
        seen = await self.load(key)
        return seen.version if seen is not None and seen.recorded.mark == mark else None

    async def _drop(self, marker: str | None, part: StoredPart | None) -> None:
        if marker is not None:
            version = self._versions.pop(marker, None)
            if version is None:
                head = await self._objects.head(marker)
                version = None if head is None else head.info.version
            if version is not None:
                await self._objects.delete([ObjectDelete(marker, version)])
        if part is not None:
            await self._objects.delete([ObjectDelete(part.name, part.version)])

    async def _read_time(self) -> datetime:
        return (await self._objects.page(f"{self.names.root}/time/", None, 1)).at

    def _note(self, name: str, version: str) -> None:
        self._versions[name] = version
        if len(self._versions) > VERSIONS_MAX:
            self._versions.popitem(last=False)


async def _quietly(work: Coroutine[None, None, None]) -> None:
    with suppress(WrasseError):  # a marker that stays is ignored, and deleted once it is stale
        await work
