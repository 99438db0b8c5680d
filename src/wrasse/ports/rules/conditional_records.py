"""Records of which every change is one conditional write: create, put and delete differ only in what it names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from wrasse.ports.records import (
    IndexedRecords,
    IndexEntry,
    SharedRecords,
    Written,
    check_record,
    refuse_emit,
    refuse_index_entry,
)
from wrasse.ports.streams import Draft, check_drafts


class RecordWrite(msgspec.Struct, frozen=True):
    """A write of one record: at this version (None: there is none), to this value (None: delete it)."""

    key: str
    at: str | None
    value: bytes | None
    due_at: datetime | None = None
    nonce: str | None = None
    entry_stays: bool = False
    emit: Sequence[Draft] = ()
    index_entry: IndexEntry | None = None


class ConditionalRecords(ABC):
    """The writes of Records, each as one RecordWrite; a backend adds `write` and the reads."""

    emits = False
    resolution = timedelta(0)

    @property
    def status_index(self) -> IndexedRecords | None:
        return None

    @property
    def shared(self) -> SharedRecords | None:
        return None

    async def create(
        self,
        key: str,
        value: bytes,
        *,
        due_at: datetime | None = None,
        nonce: str | None = None,
        emit: Sequence[Draft] = (),
        index_entry: IndexEntry | None = None,
    ) -> Written:
        self._check(key, value, emit, index_entry)
        return await self.write(RecordWrite(key, None, value, due_at, nonce, False, emit, index_entry))

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        at: str,
        due_at: datetime | None = None,
        nonce: str | None = None,
        entry_stays: bool = False,
        emit: Sequence[Draft] = (),
        index_entry: IndexEntry | None = None,
    ) -> Written:
        self._check(key, value, emit, index_entry)
        return await self.write(RecordWrite(key, at, value, due_at, nonce, entry_stays, emit, index_entry))

    async def leave(self, key: str, due_at: datetime) -> None:  # noqa: B027  # most have nothing to do
        """Nothing to do where the due time is part of the record."""

    async def delete(self, key: str, *, at: str, nonce: str | None = None) -> Written:
        return await self.write(RecordWrite(key, at, None, nonce=nonce))

    def _check(self, key: str, value: bytes, emit: Sequence[Draft], index_entry: IndexEntry | None) -> None:
        check_record(key, value)
        if emit:
            (check_drafts if self.emits else refuse_emit)(emit)
        if self.status_index is None:
            refuse_index_entry(index_entry)

    @abstractmethod
    async def write(self, asked: RecordWrite) -> Written:
        """Makes one conditional write; its outcome says whether the condition was met."""
