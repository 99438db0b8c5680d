"""Records as JSON files: `<data>/<stored name>.json`, found when due through `<index>/<bucket>/<stored name>`.

The port's promises hold between processes and through a crash at any point; `record_files.py` says how. `due` looks at
buckets that are over, so its cost follows what is due and a record shows at most one bucket width late; within one
bucket records come in the order of their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from wrasse.backends.bucket.asked import Change, DueSpot, check_limit
from wrasse.backends.bucket.envelope import Kept
from wrasse.backends.directory.record_files import RecordFiles
from wrasse.backends.directory.threads import Threads
from wrasse.clock import Clock
from wrasse.ports.page import Page
from wrasse.ports.records import Record, Written, check_record, key_of, refuse_emit, stored_name
from wrasse.ports.streams import Draft


class DirectoryRecords:
    """The port, for one collection."""

    def __init__(self, threads: Threads, clock: Clock, records: RecordFiles, width: timedelta) -> None:
        self._threads = threads
        self._clock = clock
        self._records = records
        self._width = width

    @property
    def emits(self) -> bool:
        return False

    @property
    def resolution(self) -> timedelta:
        return self._width

    async def create(
        self,
        key: str,
        value: bytes,
        *,
        due_at: datetime | None = None,
        nonce: str | None = None,
        emit: Sequence[Draft] = (),
    ) -> Written:
        check_record(key, value)
        refuse_emit(emit)
        return await self._write(Change(_stored(key), None, bytes(value), due_at, nonce))

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        kept = await self._threads.run(lambda: self._records.get(_stored(key)))
        return None if kept is None else _record(_stored(key), kept)

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
    ) -> Written:
        check_record(key, value)
        refuse_emit(emit)
        return await self._write(Change(_stored(key), at, bytes(value), due_at, nonce, entry_stays))

    async def leave(self, key: str, due_at: datetime) -> None:
        await self._threads.run(lambda: self._records.leave(_stored(key), due_at))

    async def delete(self, key: str, *, at: str, nonce: str | None = None) -> Written:
        return await self._write(Change(_stored(key), at, None, None, nonce))

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        check_limit(limit)
        start = None if after is None else after.encode()
        found = await self._threads.run(lambda: self._records.page(_stored(prefix), start, limit))
        return Page(
            items=tuple(_record(stored, kept) for stored, kept in found.found),
            cursors=tuple(stored.decode() for stored, _ in found.found),
            at=self._clock.now(),
            more=found.more,
        )

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        check_limit(limit)
        now = self._clock.now()
        spot = None if after is None else DueSpot.parse(after)
        found, more = await self._threads.run(lambda: self._records.due(before or now, spot, limit))
        return Page(
            items=tuple(_record(spot.stored, kept) for spot, kept in found),
            cursors=tuple(str(spot) for spot, _ in found),
            at=now,
            more=more,
        )

    async def _write(self, change: Change) -> Written:
        outcome, version = await self._threads.run(lambda: self._records.write(change))
        return Written(outcome, version, self._clock.now())


def _stored(key: str) -> bytes:
    return stored_name(key).encode()


def _record(stored: bytes, kept: Kept) -> Record:
    return Record(key_of(stored.decode()), kept.value, kept.version, kept.due_at)
