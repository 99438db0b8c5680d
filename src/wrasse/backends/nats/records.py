"""Records on NATS: messages of a JetStream key-value bucket, `<root>`, by collection and key.

The port's promises hold between processes on any hosts and through lost replies; `kv_records.py` says how. `due` looks
at buckets that are over, so its cost follows what is due and a record shows at most one bucket width late; within one
bucket records come in the order of their names. The server keeps no order of names: the first page of a listing asks
for all names of the collection, and later pages of the same listing go on from there. A write asked again is answered
as before for as long as the record is there, and for an hour after it was deleted.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime

from wrasse.backends.bucket.named_records import Change, DueSpot, check_limit
from wrasse.backends.nats.kv_bucket import Bucket
from wrasse.backends.nats.kv_bytes import Stored
from wrasse.backends.nats.kv_due import LISTING_KEPT, LISTING_LONG
from wrasse.backends.nats.kv_names import Names, namespace_subject
from wrasse.backends.nats.kv_records import RecordMessages
from wrasse.clock import Clock
from wrasse.ports.conditional_records import ConditionalRecords, RecordWrite
from wrasse.ports.namespaces import namespace_of
from wrasse.ports.page import Page
from wrasse.ports.records import Collection, Record, Written, stored_name


class NatsRecords(ConditionalRecords):
    """The port, for one collection."""

    def __init__(self, bucket: Bucket, collection: Collection, clock: Clock) -> None:
        self._bucket = bucket
        self.resolution = collection.width
        self._clock = clock
        self._records = RecordMessages(bucket, Names(bucket.root, collection.data), collection, clock)
        self._namespace = namespace_of(collection.data)  # that it has keys is noted before the first
        self._listing: tuple[float, str, list[str]] | None = None

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        stored = await self._records.get(key, entering)
        return None if stored is None else _record(key, stored)

    async def leave(self, key: str, due_at: datetime) -> None:
        await self._records.leave(key, due_at)

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        check_limit(limit)
        keys, at = await self._listed(prefix, after)
        found, more = await self._records.page(keys, limit)
        return Page(
            items=tuple(_record(key, stored) for key, stored in found),
            cursors=tuple(stored_name(key) for key, _ in found),
            at=at,
            more=more,
        )

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        check_limit(limit)
        spot = None if after is None else DueSpot.parse(after)
        found, more, at = await self._records.due(before, spot, limit)
        return Page(
            items=tuple(_record(key, stored) for _, key, stored in found),
            cursors=tuple(str(spot) for spot, _, _ in found),
            at=at,
            more=more,
        )

    async def _listed(self, prefix: str, after: str | None) -> tuple[list[str], datetime]:
        """The keys of a listing behind the cursor; a long one is asked for once, and read to its end."""
        known = self._listing
        fresh = known is not None and known[1] == prefix and self._clock.monotonic() - known[0] < LISTING_KEPT
        if after is not None and known is not None and fresh:
            return _behind(known[2], after), await self._bucket.time.now()
        keys, at = await self._records.keys(prefix)
        self._listing = (self._clock.monotonic(), prefix, keys) if len(keys) > LISTING_LONG else None
        return (keys if after is None else _behind(keys, after)), at

    async def write(self, asked: RecordWrite) -> Written:
        if asked.at is None and self._namespace is not None:
            await self._bucket.set(namespace_subject(self._bucket.root, self._namespace))
            self._namespace = None
        value = None if asked.value is None else bytes(asked.value)
        change = Change(b"", asked.at, value, asked.due_at, asked.nonce, asked.entry_stays)
        outcome, version = await self._records.write(asked.key, change)
        return Written(outcome, version, await self._bucket.time.now())


def _behind(keys: list[str], after: str) -> list[str]:
    return keys[bisect_right(keys, after.encode(), key=lambda key: stored_name(key).encode()) :]


def _record(key: str, stored: Stored) -> Record:
    return Record(key, stored.value, stored.version, stored.due_at)
