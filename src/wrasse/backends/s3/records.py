"""Records as objects in a bucket: `<data>/<stored name>`, found when due through `<index>/<bucket>/<stored name>`.

The port's promises hold between processes on any hosts and through lost replies; `record_objects.py` says how. `due`
looks at buckets that are over, so its cost follows what is due and a record shows at most one bucket width late;
within one bucket records come in the order of their names. A write asked again is answered as before for as long as
the record is there, and for an hour after it was deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from wrasse.backends.bucket.asked import Change, DueSpot, check_limit
from wrasse.backends.bucket.envelope import Kept
from wrasse.backends.s3.client import Client
from wrasse.backends.s3.conditions import Conditions
from wrasse.backends.s3.listing import Lister, nameable
from wrasse.backends.s3.record_objects import RecordObjects, stored_of
from wrasse.errors import UsageError
from wrasse.ports.page import Page
from wrasse.ports.records import Collection, Record, Written, check_record, key_of, refuse_emit, stored_name
from wrasse.ports.streams import Draft


class S3Records:
    """The port, for one collection."""

    def __init__(self, client: Client, conditions: Conditions, prefix: bytes, collection: Collection) -> None:
        self._client = client
        self._width = collection.width
        self._raw_keys = conditions.raw_keys
        self._records = RecordObjects(client, Lister(client, ordered=conditions.ordered), prefix, collection)

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
        return await self._write(Change(self._stored(key), None, bytes(value), due_at, nonce))

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        kept = await self._records.get(_stored(key), entering)
        return None if kept is None else Record(key, kept.value, kept.version, kept.due_at)

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
        return await self._write(Change(self._stored(key), at, bytes(value), due_at, nonce, entry_stays))

    async def leave(self, key: str, due_at: datetime) -> None:
        await self._records.leave(_stored(key), due_at)

    async def delete(self, key: str, *, at: str, nonce: str | None = None) -> Written:
        return await self._write(Change(_stored(key), at, None, None, nonce))

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        check_limit(limit)
        start = None if after is None else after.encode()
        found, more = await self._records.page(_stored(prefix), start, limit)
        return Page(
            items=tuple(_record(name, kept) for name, kept in found),
            cursors=tuple(name.decode() for name, _ in found),
            at=self._client.wire.time.now(),
            more=more,
        )

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        check_limit(limit)
        now = self._client.wire.time.now()
        spot = None if after is None else DueSpot.parse(after)
        found, more = await self._records.due(before or now, spot, limit)
        return Page(
            items=tuple(_record(spot.stored, kept) for spot, kept in found),
            cursors=tuple(str(spot) for spot, _ in found),
            at=now,
            more=more,
        )

    async def _write(self, change: Change) -> Written:
        outcome, version = await self._records.write(change)
        return Written(outcome, version, self._client.wire.time.now())

    def _stored(self, key: str) -> bytes:
        """The stored name of a record that is to be written."""
        stored = _stored(key)
        if not self._raw_keys and not nameable(stored) and stored not in (b".", b".."):
            raise UsageError(
                f"{self._client.where} does not keep keys like this one as they are",
                do="use no backslash, and at most 255 bytes, counting % and / three times",
            )
        return stored


def _stored(key: str) -> bytes:
    return stored_name(key).encode()


def _record(name: bytes, kept: Kept) -> Record:
    return Record(key_of(stored_of(name).decode()), kept.value, kept.version, kept.due_at)
