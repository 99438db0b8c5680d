"""Records that are stored by name, with a separate due index: what a directory and S3 have in common.

`due` reads buckets that have passed, so its cost follows what is due and a record shows at most one bucket width late;
within one bucket records come in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from wrasse.backends.record_files.envelope import StoredRecord
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit, number_in
from wrasse.ports.records import Record, Written, key_of, stored_name
from wrasse.ports.rules.conditional_records import ConditionalRecords, RecordWrite

Answer = tuple[Outcome, str | None]  # to a change: its outcome, and the version it made


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
    """The port, for one collection."""

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
