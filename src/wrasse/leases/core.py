"""Leases by compare-and-set: acquire, renew, release, clear. Used by the engine's own leases and by keys with state.

The store guarantees at most one holder per key, since every change names the version that it read. Nothing depends on a
sweep: an operation that finds an expired lease clears it first.

Costs, depending on whether the key is cached in this process. acquire: one read and one write, plus one read per minute
for the store's time; renew and release: one write, or a read and a write.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from wrasse.clock import Clock
from wrasse.leases.lease import (
    KEYS,
    RECHECK_AFTER,
    AcquireRequest,
    Busy,
    KeyCodec,
    KeyRecord,
    KeyRefused,
    Lease,
    Terms,
    acquire,
    check_expected,
    check_holder,
    cleared,
    over,
    released,
    renewed,
)
from wrasse.leases.store import RACES_MAX, KeyStore, LeaseTally, contended
from wrasse.ports.records import Collection, Records

EXACT = Terms()

Change = Callable[[KeyRecord, datetime], KeyRecord | None]


def leases_in(namespace: str) -> Collection:
    """The collection of a namespace's leases. `.wrasse` is reserved for the engine's own."""
    index = f"{namespace}/.lease-index"
    return Collection(data=f"{namespace}/meta", index=index, buckets=f"{index}/buckets.json", tended=True)


class Changed(msgspec.Struct, frozen=True):
    """A change of a leased key: its record before and after."""

    before: KeyRecord
    after: KeyRecord


class LeaseCore:
    """The leases in one collection of records. Subclasses override what happens when a lease is cleared."""

    def __init__(
        self,
        namespace: str,
        records: Records,
        clock: Clock,
        *,
        codec: KeyCodec = KEYS,
        terms: Terms = EXACT,
        tally: LeaseTally | None = None,
    ) -> None:
        self.namespace, self.clock, self.terms = namespace, clock, terms
        self.tally = tally if tally is not None else LeaseTally()
        self.store = KeyStore(records, clock, self.tally, codec)

    async def now(self) -> datetime:
        """The store's time, rather a little late than early."""
        return await self.store.now()

    def term(self, lease: Lease) -> float:
        """The local monotonic time until which the holder may rely on a lease that was just granted or renewed."""
        return self.store.monotonic(lease.expires_at - self.terms.margin)

    def when(self, instant: datetime) -> float:
        """The local monotonic time before which the store's clock cannot show this instant."""
        return self.store.monotonic(instant)

    async def read(self, key: str) -> KeyRecord | None:
        """Reads the key's record from the store."""
        return await self.store.read(key)

    async def try_acquire(self, key: str, request: AcquireRequest) -> KeyRecord | Busy:
        """One attempt: the key with the new lease, or when the other holder's lease ends."""
        cached = self._cached_free_key(key, request)
        for _ in range(RACES_MAX):
            record = cached if cached is not None else await self.store.read(key, entering=request.ttl)
            cached = None
            wanted = acquire(record, request, await self.store.now(), self.terms)
            if isinstance(wanted, Busy) or wanted is record:
                return wanted
            ended = record if record is not None and record.lease is not None else None
            if ended is not None and not await self._may_clear(key, ended):
                continue
            granted = await self.store.store(key, wanted, entry_stays=ended is not None)
            if granted is not None:
                self._granted(request.id)
                if ended is not None:
                    await self._ended(ended)
                return granted
        return Busy(await self.now() + timedelta(milliseconds=100))

    async def renew(self, lease: Lease, ttl: timedelta) -> KeyRecord:
        """Extends the lease to `ttl` from now; the token stays."""
        return (await self.change(lease, lambda record, at: renewed(record, ttl, at))).after

    async def roll_back(self, lease: Lease) -> bool:
        """Releases a key and discards what is staged; False if the lease had ended or belongs to another holder."""
        try:
            await self.change(lease, released, entry_stays=True)
        except KeyRefused:
            return False
        return True

    async def clear(self, key: str, record: KeyRecord, at: datetime) -> KeyRecord | None:
        """Clears an expired lease; None if the record has changed since."""
        if not await self._may_clear(key, record):
            return self.store.cached(key)
        stored = await self.store.store(key, cleared(record, at, at + RECHECK_AFTER), entry_stays=True)
        if stored is not None:
            await self._ended(record)
        return stored

    async def checked(self, lease: Lease, if_version: int | None = None, if_etag: str | None = None) -> KeyRecord:
        """The record, if the caller is the holder and expects this version; the cached record is checked first."""
        record = self.store.cached_with_lease(lease.key, lease.id)
        for fresh in (record is None, True):
            record = await self.store.read(lease.key) if fresh or record is None else record
            try:
                check_holder(record, lease, await self.store.now(), self.terms)
                assert record is not None, "a leased key has a record"
                check_expected(record, if_version, if_etag)
                return record
            except KeyRefused:
                if not fresh:
                    continue  # the cached record may be stale
                await self._clear_if_expired(lease.key, record)
                raise
        raise AssertionError("the second read returns or raises")

    async def change(
        self, lease: Lease, change: Change, *, record: KeyRecord | None = None, entry_stays: bool = False
    ) -> Changed:
        """One change by the holder. After a version conflict with a change of our own (a renewal) it is tried again."""
        record = record if record is not None else self.store.cached_with_lease(lease.key, lease.id)
        for _ in range(RACES_MAX):
            at = await self.store.now()
            if record is None or self._refused(record, lease, at):
                record = await self.checked(lease)
                at = await self.store.now()
            wanted = change(record, at)
            if wanted is None:
                return Changed(record, record)
            stored = await self.store.store(lease.key, wanted, entry_stays=entry_stays)
            if stored is not None:
                return Changed(record, stored)
            record = None
        raise contended(repr(lease.key))

    def _cached_free_key(self, key: str, request: AcquireRequest) -> KeyRecord | None:
        """The cached record of a free key, where it is probably still valid."""
        return None

    async def _may_clear(self, key: str, record: KeyRecord) -> bool:
        """Whether an expired lease may be cleared now."""
        return True

    def _granted(self, id: str) -> None:
        """Called after a lease was granted."""

    async def _ended(self, before: KeyRecord) -> None:
        """Called after an expired lease was cleared or replaced."""
        self.tally.cleared += 1

    async def _cleared(self, key: str, lease: Lease) -> None:
        """Called after an operation found and cleared an expired lease."""

    def _refused(self, record: KeyRecord, lease: Lease, at: datetime) -> bool:
        try:
            check_holder(record, lease, at, self.terms)
        except KeyRefused:
            return True
        return False

    async def _clear_if_expired(self, key: str, record: KeyRecord | None) -> None:
        at = await self.now()
        if record is None or record.lease is None or not over(record.lease, at, self.terms):
            return
        if await self.clear(key, record, at) is not None:
            await self._cleared(key, record.lease)
