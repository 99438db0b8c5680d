"""Records that are stored by name, with a separate due index: what a directory and S3 have in common.

`due` reads buckets that have passed, so its cost follows what is due and a record shows at most one bucket width late;
within one bucket records come in the order of their names.

A record's file or object has its value, version and due time, and its last writes. The value is stored as it is if it
is JSON that the file returns byte for byte, so that people and other tools can read it; else in base64. The last
NONCES_KEPT writes, each with the version it made, answer retries after a lost reply. They outlive the record: the
directory keeps them in its tombstones, and on S3 a deleted record stays for a while, marked `gone`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from wrasse.bounded import UNREADABLE, decoded, why
from wrasse.clock import EPOCH
from wrasse.errors import UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit, number_in
from wrasse.ports.records import NONCES_KEPT, Record, Written, key_of, stored_name
from wrasse.ports.rules.conditional_records import ConditionalRecords, RecordWrite

CORRUPT = "damaged"  # the version of a record that cannot be read, in a listing
Write = tuple[str | None, str | None]  # its nonce, and the version it made: None for a delete
Answer = tuple[Outcome, str | None]  # to a change: its outcome, and the version it made
_FORMS = (
    (timedelta(hours=1), "%Y%m%d%H"),
    (timedelta(minutes=1), "%Y%m%d%H%M"),
    (timedelta(seconds=1), "%Y%m%d%H%M%S"),
)
_SOME_BUCKET = re.compile(r"\d{10}(\d\d){0,2}", re.ASCII).fullmatch  # of any width
_decode_buckets = msgspec.json.Decoder(list[str]).decode


class LastWrites(msgspec.Struct, frozen=True, gc=False):
    """The last writes to one key, oldest first. `whole` while none has been dropped."""

    kept: tuple[Write, ...] = ()
    whole: bool = True

    def and_then(self, nonce: str | None, version: str | None) -> LastWrites:
        """One more write."""
        return LastWrites((*self.kept, (nonce, version))[-NONCES_KEPT:], self.whole and len(self.kept) < NONCES_KEPT)

    def answer(self, nonce: str | None, at: str | None, current: str | None) -> tuple[Outcome, str | None] | None:
        """The answer to a write that expects version `at` (None: no record) and finds `current`, with the version made;
        None if the write is to be made now."""
        if nonce is not None:
            for known, version in self.kept:
                if known == nonce:
                    return Outcome.DONE, version
        if at == current:
            return None
        # A write without a nonce is never retried. With one, it may have been made, and dropped since.
        certain = nonce is None or self.whole or (at is not None and any(version == at for _, version in self.kept))
        return (Outcome.CONFLICT if certain else Outcome.UNKNOWN), None


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The content of a record's file."""

    value: bytes
    version: str
    due_at: datetime | None
    writes: LastWrites
    gone: bool = False  # deleted: only its writes count


@dataclass(frozen=True, slots=True)
class RecordChange:
    """A write to one record: at this version (None: there is none), to this value (None: delete it)."""

    stored: bytes
    at: str | None
    value: bytes | None
    due_at: datetime | None
    nonce: str | None
    entry_stays: bool = False


@dataclass(frozen=True, slots=True)
class DueCursor:
    """A position in the due index: after this name in this bucket."""

    due_bucket: str
    stored: bytes

    def __str__(self) -> str:
        return f"{self.due_bucket}:{self.stored.decode()}"

    @classmethod
    def parse(cls, cursor: str) -> DueCursor:
        """The position of a cursor."""
        due_bucket, colon, stored = cursor.partition(":")
        number_in(cursor, due_bucket if colon else "")
        return cls(due_bucket, stored.encode(errors="surrogatepass"))


class NamedRecords(Protocol):
    """The interface of a store of records by stored name."""

    async def get(self, stored: bytes, entering: datetime | None = None) -> StoredRecord | None:
        """The record of this name."""
        ...

    async def write(self, change: RecordChange) -> Answer:
        """Makes one change."""
        ...

    async def leave(self, stored: bytes, due_at: datetime) -> None:
        """Removes an entry that a change left, unless the record needs it again."""
        ...

    async def page(
        self, prefix: bytes, after: bytes | None, limit: int
    ) -> tuple[Sequence[tuple[bytes, StoredRecord]], bool]:
        """Records whose stored name starts with `prefix`, in order; and whether there are more."""
        ...

    async def due(
        self, horizon: datetime, after: DueCursor | None, limit: int
    ) -> tuple[Sequence[tuple[DueCursor, StoredRecord]], bool]:
        """Records whose bucket has passed at the horizon, earliest bucket first, and whether there are more."""
        ...


class DueBucketRecords(ConditionalRecords):
    """One collection of records, as the port has them."""

    def __init__(self, records: NamedRecords, width: timedelta, now: Callable[[], datetime]) -> None:
        self._records, self.resolution, self._now = records, width, now

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        kept = await self._records.get(stored_name(key).encode(), entering)
        return None if kept is None else Record(key, kept.value, kept.version, kept.due_at)

    async def leave(self, key: str, due_at: datetime) -> None:
        await self._records.leave(stored_name(key).encode(), due_at)

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        check_limit(limit, "records")
        start = None if after is None else after.encode()
        found, more = await self._records.page(stored_name(prefix).encode(), start, limit)
        shown = tuple(self._record(name, kept) for name, kept in found)
        return Page(shown, tuple(name.decode() for name, _ in found), self._now(), more)

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        check_limit(limit, "records")
        cursor = None if after is None else DueCursor.parse(after)
        found, more = await self._records.due(before or self._now(), cursor, limit)
        shown = tuple(self._record(cursor.stored, kept) for cursor, kept in found)
        return Page(shown, tuple(str(cursor) for cursor, _ in found), self._now(), more)

    async def write(self, asked: RecordWrite) -> Written:
        name, value = stored_name(asked.key).encode(), asked.value
        if value is not None:
            value = bytes(value)
            self._check_name(name)
        change = RecordChange(name, asked.at, value, asked.due_at, asked.nonce, asked.entry_stays)
        outcome, version = await self._records.write(change)
        return Written(outcome, version, self._now())

    def _check_name(self, name: bytes) -> None:
        """Refuses a name that the store could not keep."""

    def _record(self, name: bytes, kept: StoredRecord) -> Record:
        return Record(key_of(name.decode()), kept.value, kept.version, kept.due_at)


class DueBuckets:
    """Maps instants to buckets; pure. A bucket is named for its beginning, as short as the width allows."""

    def __init__(self, width: timedelta) -> None:
        form = next((form for unit, form in _FORMS if width > timedelta(0) and width % unit == timedelta(0)), None)
        if form is None:
            raise UsageError(f"buckets of {width.total_seconds()} s", do="use whole seconds, minutes or hours")
        self._form = form
        self._width = width
        self._last = (-1, "")  # a cache of the last bucket and its name: consecutive calls mostly need the same one

    def due_bucket(self, due_at: datetime) -> str:
        """The bucket of this instant."""
        number = (due_at - EPOCH) // self._width
        last, name = self._last
        if number != last:
            name = (EPOCH + number * self._width).strftime(self._form)
            self._last = (number, name)
        return name

    def is_over(self, due_bucket: str, horizon: datetime) -> bool:
        """Whether everything in the bucket is due at the horizon."""
        return horizon - self.begin(due_bucket) >= self._width

    def is_one(self, due_bucket: str) -> bool:
        """Whether this is a name that `due_bucket` returns."""
        try:
            return self.due_bucket(self.begin(due_bucket)) == due_bucket
        except (ValueError, OverflowError):
            return False

    def begin(self, due_bucket: str) -> datetime:
        """The first instant of a bucket."""
        return datetime.strptime(due_bucket, self._form).replace(tzinfo=EPOCH.tzinfo)

    def parse(self, packed: bytes) -> list[str] | None:
        """The list of buckets in these bytes, in order; None if they are no list, which is then made again from the
        folders of the buckets, and ValueError if it is a list of another width, whose folders would not be found."""
        try:
            listed = decoded(_decode_buckets, packed)
        except ValueError:
            return None
        strange = [each for each in listed if not self.is_one(each)]
        if any(_SOME_BUCKET(each) for each in strange):
            raise ValueError("not the buckets of this width")
        return None if strange else sorted(listed)

    def pack(self, listed: Sequence[str]) -> bytes:
        """The bytes of a list of buckets."""
        return msgspec.json.encode(listed)


class _RecordFile(msgspec.Struct, omit_defaults=True):
    version: str
    due_at: datetime | None = None
    writes: list[Write] = []
    whole: bool = False
    gone: bool = False
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    base64: bytes | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_RecordFile).decode


def pack(kept: StoredRecord) -> bytes:
    """The bytes of the file."""
    file = _RecordFile(kept.version, kept.due_at, list(kept.writes.kept), kept.writes.whole, kept.gone)
    if _stands_as_it_is(kept.value):
        file.value = msgspec.Raw(kept.value)
    else:
        file.base64 = kept.value
    return msgspec.json.encode(file)


def listed(packed: bytes) -> StoredRecord:
    """The record in these bytes for a listing, which skips a corrupt one: its value is then the raw bytes, which the
    reader of the value finds invalid, under a version that no write matches."""
    try:
        return unpack(packed)
    except ValueError:
        return StoredRecord(packed, CORRUPT, None, LastWrites(whole=False))


def unpack(packed: bytes) -> StoredRecord:
    """The record in these bytes; ValueError if wrasse did not write them."""
    try:
        file = _decode(packed)
    except UNREADABLE as error:
        raise ValueError(why(error)) from error
    if isinstance(file.value, msgspec.Raw):
        value = bytes(file.value)
    elif isinstance(file.base64, bytes):
        value = file.base64
    else:
        raise ValueError("neither value nor base64")
    return StoredRecord(value, file.version, file.due_at, LastWrites(tuple(file.writes), file.whole), file.gone)


def _stands_as_it_is(value: bytes) -> bool:
    if value != value.strip(b" \t\r\n"):
        return False  # spaces around a value would be lost
    try:
        msgspec.json.decode(value)
        value.decode()
    except UNREADABLE:
        return False
    return True
