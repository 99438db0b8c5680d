"""Leases by compare-and-set: acquire, renew, release, clear. Both the engine's own leases and keys with state use this.

At most one holder per key by the store, since every change names the version that it read. Nothing depends on a sweep:
an operation that meets a lease which has ended clears it first.

Costs, where this process has seen the key or not. acquire: one read and one write, and one more read per minute to
learn the store's time; renew and release: one write, or a read and a write.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from wrasse.clock import Clock
from wrasse.leases.lease import (
    KEYS,
    LOOK_AGAIN,
    AcquireRequest,
    Busy,
    KeyCodec,
    KeyRecord,
    Lease,
    Terms,
    acquire,
    check_expected,
    check_held,
    cleared,
    over,
    released,
    renewed,
)
from wrasse.leases.refusal import KeyRefused
from wrasse.leases.store import RACES_MAX, KeyStore, LeaseTally, contended
from wrasse.ports.records import Collection, Records

EXACT = Terms()

Change = Callable[[KeyRecord, datetime], KeyRecord | None]


def leases_in(namespace: str) -> Collection:
    """Where the leases of a namespace live. `.wrasse` is reserved for the engine's own."""
    index = f"{namespace}/.lease-index"
    return Collection(data=f"{namespace}/meta", index=index, buckets=f"{index}/buckets.json", tended=True)


class Changed(msgspec.Struct, frozen=True):
    """A change of a held key: its record before and after."""

    before: KeyRecord
    after: KeyRecord


class LeaseCore:
    """The leases in one collection of records. What stands on top overrides what happens around a clearing."""

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
        """The store's time, a little late rather than early."""
        return await self.store.now()

    def term(self, lease: Lease) -> float:
        """Our monotonic time until which the holder may rely on a lease that was just granted or renewed."""
        return self.store.monotonic(lease.expires_at - self.terms.margin)

    def when(self, instant: datetime) -> float:
        """Our monotonic time before which the store's clock cannot show this instant."""
        return self.store.monotonic(instant)

    async def look(self, key: str) -> KeyRecord | None:
        """The key's record as it is now."""
        return await self.store.read(key)

    async def try_acquire(self, key: str, asked: AcquireRequest) -> KeyRecord | Busy:
        """One try: the key with our lease on it, or until when somebody else has it."""
        seen = self._seen(key, asked)
        for _ in range(RACES_MAX):
            record = seen if seen is not None else await self.store.read(key, entering=asked.ttl)
            seen = None
            wanted = acquire(record, asked, await self.store.now(), self.terms)
            if isinstance(wanted, Busy) or wanted is record:
                return wanted
            ended = record if record is not None and record.lease is not None else None
            if ended is not None and not await self._may_clear(key, ended):
                continue
            granted = await self.store.store(key, wanted, entry_stays=ended is not None)
            if granted is not None:
                self._granted(asked.id)
                if ended is not None:
                    await self._ended(ended)
                return granted
        return Busy(await self.now() + timedelta(milliseconds=100))

    async def renew(self, held: Lease, ttl: timedelta) -> KeyRecord:
        """The same lease with the same token, `ttl` from now."""
        return (await self.change(held, lambda record, at: renewed(record, ttl, at))).after

    async def give_back(self, held: Lease) -> bool:
        """Gives a key back at once, without what is staged; False if the lease was over or is another's."""
        try:
            await self.change(held, released, entry_stays=True)
        except KeyRefused:
            return False
        return True

    async def clear(self, key: str, record: KeyRecord, at: datetime) -> KeyRecord | None:
        """Clears a lease that has ended; None if the record is another by now."""
        if not await self._may_clear(key, record):
            return self.store.remembered(key)
        stored = await self.store.store(key, cleared(record, at, at + LOOK_AGAIN), entry_stays=True)
        if stored is not None:
            await self._ended(record)
        return stored

    async def checked(self, held: Lease, if_version: int | None = None, if_etag: str | None = None) -> KeyRecord:
        """The key, if the caller holds it and saw this version of it; what this process remembers is asked first."""
        record = self.store.mine(held.key, held.id)
        for fresh in (record is None, True):
            record = await self.store.read(held.key) if fresh or record is None else record
            try:
                check_held(record, held, await self.store.now(), self.terms)
                assert record is not None, "a held key has a record"
                check_expected(record, if_version, if_etag)
                return record
            except KeyRefused:
                if not fresh:
                    continue  # what this process remembers may be out of date
                await self._clear_if_over(held.key, record)
                raise
        raise AssertionError("the second look answers or raises")

    async def change(
        self, held: Lease, change: Change, *, record: KeyRecord | None = None, entry_stays: bool = False
    ) -> Changed:
        """One change by the holder. A race that is lost to a change of our own (a renewal) is run again."""
        record = record if record is not None else self.store.mine(held.key, held.id)
        for _ in range(RACES_MAX):
            at = await self.store.now()
            if record is None or self._refused(record, held, at):
                record = await self.checked(held)
                at = await self.store.now()
            wanted = change(record, at)
            if wanted is None:
                return Changed(record, record)
            stored = await self.store.store(held.key, wanted, entry_stays=entry_stays)
            if stored is not None:
                return Changed(record, stored)
            record = None
        raise contended(repr(held.key))

    def _seen(self, key: str, asked: AcquireRequest) -> KeyRecord | None:
        """What is remembered of a key that is free, where that is likely still so."""
        return None

    async def _may_clear(self, key: str, record: KeyRecord) -> bool:
        """Whether a lease that has ended may be cleared now."""
        return True

    def _granted(self, id: str) -> None:
        """A lease was granted."""

    async def _ended(self, before: KeyRecord) -> None:
        """A lease that had ended was cleared, or replaced by the next."""
        self.tally.cleared += 1

    async def _cleared(self, key: str, lease: Lease) -> None:
        """A lease that an operation met was cleared."""

    def _refused(self, record: KeyRecord, held: Lease, at: datetime) -> bool:
        try:
            check_held(record, held, at, self.terms)
        except KeyRefused:
            return True
        return False

    async def _clear_if_over(self, key: str, record: KeyRecord | None) -> None:
        at = await self.now()
        if record is None or record.lease is None or not over(record.lease, at, self.terms):
            return
        if await self.clear(key, record, at) is not None:
            await self._cleared(key, record.lease)
