"""The records of leases and transactions: conditional reads and writes, an LRU cache, and the store's time.

A write whose reply was lost is retried with the same nonce. The store recognises a write that it has already carried
out and returns its first answer, so that no caller is refused because of its own write. Every answer also contains the
store's time, so that it is rarely requested separately.

Cached records may be stale. The cache only saves reads: every write names the version it is based on, and a refusal is
given only after a read.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from msgspec.structs import replace

from wrasse.clock import EPOCH, Clock
from wrasse.errors import StoreUnavailable
from wrasse.leases.lease import KEYS, KeyCodec, KeyRecord, decode
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Records, Written
from wrasse.ports.rules.store_time import StoreTime

ATTEMPTS_MAX = 3  # attempts per write
RACES_MAX = 16  # attempts after a version conflict
CACHED_MAX = 10_000

T = TypeVar("T")


class LeaseTally:
    """Counters of leased keys since the process began, read by metrics. `cleared` counts expired leases, found by an
    operation or by a sweep; `waited` counts acquires that had to wait. `replays` counts replay runs, and `replayed` the
    transactions they finished."""

    __slots__ = (
        "acquired", "cleared", "committed", "decisions_deleted", "entries_deleted", "released", "renewed", "replayed",
        "replays", "transactions_committed", "transactions_rolled_back", "waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.acquired = self.waited = self.renewed = self.committed = self.released = 0
        self.cleared = self.entries_deleted = 0
        self.transactions_committed = self.transactions_rolled_back = 0
        self.replays = self.replayed = self.decisions_deleted = 0


class Recent(Generic[T]):
    """An LRU cache of values by name; beyond `most` the least recently used is evicted."""

    __slots__ = ("_most", "_values")

    def __init__(self, most: int = CACHED_MAX) -> None:
        self._values: OrderedDict[str, T] = OrderedDict()
        self._most = most

    def get(self, name: str) -> T | None:
        """The cached value."""
        value = self._values.get(name)
        if value is not None:
            self._values.move_to_end(name)
        return value

    def note(self, name: str, value: T) -> T:
        """Caches the value, and returns it."""
        self._values[name] = value
        self._values.move_to_end(name)
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return value

    def forget(self, name: str) -> None:
        """Removes the value from the cache."""
        self._values.pop(name, None)


class LeaseRecords:
    """The records of one collection, and the store's time. Writes that are not `named` have no nonce: a retry may get
    `conflict` because of its own write, so the caller must be able to tell from the record that it was made."""

    __slots__ = ("_clock", "_named", "_time", "records")

    def __init__(self, records: Records, clock: Clock, *, named: bool = True) -> None:
        self.records = records
        self._named = named
        self._clock = clock
        self._time = StoreTime(clock, self._read_time)

    async def write(
        self, key: str, value: bytes, at: str | None, due_at: datetime | None, *, entry_stays: bool = False
    ) -> Written:
        """Writes over the version `at`, or creates the record if that is None."""
        nonce = self._nonce()
        if at is None:
            return await self._ask(lambda: self.records.create(key, value, due_at=due_at, nonce=nonce))
        return await self._ask(
            lambda: self.records.put(key, value, at=at, due_at=due_at, nonce=nonce, entry_stays=entry_stays)
        )

    async def delete(self, key: str, at: str) -> Written:
        """Deletes the version `at`."""
        nonce = self._nonce()
        return await self._ask(lambda: self.records.delete(key, at=at, nonce=nonce))

    async def now(self) -> datetime:
        """The store's time, rather a little late than early."""
        at = self._time.earliest()
        return at if at is not None else await self._time.now()

    async def _read_time(self) -> datetime:
        # The cheapest read whose answer has the store's time: nothing has been due since 1970.
        return (await self.records.due(EPOCH, None, 1)).at

    def monotonic(self, instant: datetime) -> float:
        """The local monotonic time before which the store's clock cannot show this instant."""
        return self._time.monotonic(instant)

    def _nonce(self) -> str | None:
        return secrets.token_hex(8) if self._named else None

    async def _ask(self, write: Callable[[], Awaitable[Written]]) -> Written:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            started = self._clock.monotonic()
            try:
                written = await write()
            except StoreUnavailable:
                if attempt == ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(random.uniform(0.02, 0.05) * attempt)
            else:
                self._time.note(written.at, started)
                return written
        raise AssertionError("the last attempt returns or raises")


class KeyStore(LeaseRecords):
    """The records of keys, with a cache."""

    __slots__ = ("_cache", "_codec", "index_apart", "tally")

    def __init__(self, records: Records, clock: Clock, tally: LeaseTally, codec: KeyCodec = KEYS) -> None:
        super().__init__(records, clock)
        self._cache: Recent[KeyRecord] = Recent()
        self._codec = codec
        self.tally = tally
        # With a separate due index, the entry of an ended lease also stands for the second check.
        self.index_apart = records.resolution > timedelta(0)

    def cached(self, key: str) -> KeyRecord | None:
        """The cached record."""
        return self._cache.get(key)

    def cached_with_lease(self, key: str, lease: str) -> KeyRecord | None:
        """The cached record, if it has this lease."""
        record = self._cache.get(key)
        return record if record is not None and record.lease is not None and record.lease.id == lease else None

    def leaving_deleted(self, key: str, record: KeyRecord) -> None:
        """The objects in `leaving` are deleted: the next change made here need not carry them."""
        if record.leaving and self._cache.get(key) == record:
            self._cache.note(key, replace(record, leaving=()))

    async def read(self, key: str, entering: timedelta | None = None) -> KeyRecord | None:
        """Reads the record. `entering`: a lease of this duration is about to follow, so its index entry is written as
        well."""
        due_at = None if entering is None or not self._codec.indexed else await self.now() + entering
        record = await self.records.get(key, entering=due_at)
        if record is None:
            self._cache.forget(key)
            return None
        return self._cache.note(key, decode(record, self._codec))

    async def store(self, key: str, record: KeyRecord, *, entry_stays: bool = False) -> KeyRecord | None:
        """Writes a record over the version it was made from; None after a conflict. After an unknown outcome the record
        is read to find out."""
        value = self._codec.encode(record)
        written = await self.write(key, value, record.stored or None, self._due_at(record), entry_stays=entry_stays)
        if written:
            assert written.version is not None, "what is written has a version"
            return self._cache.note(key, replace(record, stored=written.version))
        self._cache.forget(key)
        if written.outcome is Outcome.CONFLICT:
            return None
        current = await self.read(key)
        return current if current is not None and self._codec.encode(current) == value else None

    async def drop(self, key: str, version: str) -> Outcome:
        """Deletes the record at this version."""
        deleted = await self.delete(key, version)
        self._cache.forget(key)
        return deleted.outcome

    async def leave(self, key: str, due_at: datetime) -> None:
        """Deletes an outdated index entry."""
        await self.records.leave(key, due_at)
        self.tally.entries_deleted += 1

    def _due_at(self, record: KeyRecord) -> datetime | None:
        """When a sweep should check the key."""
        if not self._codec.indexed:
            return None
        if record.lease is not None:
            return record.lease.expires_at
        return None if self.index_apart else record.recheck_at


def contended(what: str) -> StoreUnavailable:
    """Too many version conflicts on one record."""
    return StoreUnavailable(
        f"{what} had a version conflict in each of {RACES_MAX} attempts", do="see what else writes there"
    )
