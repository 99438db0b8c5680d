"""Lessor: grants, renews and takes back leases; clears what has ended, inline.

At most one holder per key by the store, since every change names the version it read. Nothing here depends on a sweep:
whoever asks for a key whose lease has ended clears it on the way. A change whose reply was lost is asked again under
the same nonce, so that nobody is refused because of their own write.

Costs. acquire: one read and one write, and one more read per minute to learn the store's time. renew and release: one
write. get: one read, and one write where it clears an ended lease.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from dataclasses import replace
from datetime import datetime, timedelta

from wrasse.clock import Clock
from wrasse.errors import UsageError
from wrasse.leases.lease import Lease, decode, encode, holder, next_token
from wrasse.leases.writes import Writes
from wrasse.ports.records import Collection, Record, Records, Written

RACES_MAX = 8  # how often a lost race is run again before the key counts as held
POLL_FIRST = 0.05  # seconds
POLL_MAX = 1.0
NO_WAIT = timedelta(0)


def leases_in(namespace: str) -> Collection:
    """Where the leases of a namespace live. `.wrasse` is reserved for the engine's own."""
    index = f"{namespace}/.lease-index"
    return Collection(data=f"{namespace}/meta", index=index, buckets=f"{index}/buckets.json", tended=True)


class Lessor:
    """Leases on one collection of records. `margin` is how far this host's idea of the store's clock may be off:
    contenders wait that much longer, holders stop that much earlier. `indexed` leases carry their end as due time,
    so that a sweep finds those that nobody asks for again."""

    __slots__ = ("_clock", "_indexed", "_margin", "_records", "_writes")

    def __init__(
        self, records: Records, clock: Clock, *, margin: timedelta = timedelta(0), indexed: bool = True
    ) -> None:
        self._records = records
        self._clock = clock
        self._margin = margin
        self._indexed = indexed
        self._writes = Writes(records, clock)

    async def acquire(self, key: str, owner: str, ttl: timedelta, *, wait: timedelta | None = NO_WAIT) -> Lease | None:
        """The lease, or None if somebody else held it for the whole `wait` (None: for ever). The same owner asking
        twice is somebody else."""
        if not owner or ttl <= timedelta(0):
            raise UsageError(f"a lease of {key!r} for {owner!r} over {ttl}", do="name an owner and a time above zero")
        give_up = None if wait is None else self._clock.monotonic() + wait.total_seconds()
        poll = POLL_FIRST
        while True:
            granted, other = await self._try(key, owner, ttl)
            if granted is not None:
                return granted
            pause = random.uniform(poll / 2, poll)  # contenders that woke together part again
            if other is not None:
                ends = self._writes.monotonic(other.until + self._margin)
                pause = min(pause, max(0.0, ends - self._clock.monotonic()))
            if give_up is not None:
                left = give_up - self._clock.monotonic()
                if left <= 0:
                    return None
                pause = min(pause, left)
            await asyncio.sleep(max(pause, 0.001))
            poll = min(poll * 1.5, POLL_MAX)

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease | None:
        """The same lease with the same token, `ttl` from now; None if it is over or changed hands."""
        for _ in range(RACES_MAX):
            at = await self.now()
            if holder(lease, at) is None:
                return None
            longer = replace(lease, until=at + ttl)
            written = await self._put(lease, longer)
            if written:
                assert written.version is not None
                return replace(longer, version=written.version)
            current = await self._current(lease)
            if current is None:
                return None
            lease = current
        return None

    async def release(self, lease: Lease) -> bool:
        """Gives the key back at once; False if the lease was over or no longer ours."""
        for _ in range(RACES_MAX):
            written = await self._put(lease, replace(lease, owner=""))
            if written:
                return written.at < lease.until
            current = await self._current(lease)
            if current is None:
                return False
            lease = current
        return False

    async def get(self, key: str) -> Lease | None:
        """Who holds the key now; a lease that has ended is cleared on the way."""
        record = await self._records.get(key)
        if record is None:
            return None
        lease, _ = decode(record)
        if holder(lease, await self.now(), self._margin):
            return lease
        if lease.owner:
            # Losing this write means that somebody took or cleared the key meanwhile: either way it was free.
            await self._put(lease, replace(lease, owner=""))
        return None

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        return await self._writes.now()

    def term(self, lease: Lease) -> float:
        """Our monotonic time until which the holder of a lease that was just granted or renewed may rely on it."""
        return self._writes.monotonic(lease.until - self._margin)

    async def _try(self, key: str, owner: str, ttl: timedelta) -> tuple[Lease | None, Lease | None]:
        """Either the lease granted, or the one in the way as far as it is known."""
        grant = secrets.token_hex(8)
        for _ in range(RACES_MAX):
            record = await self._records.get(key)
            lease, written_by = (None, "") if record is None else decode(record)
            if written_by == grant:  # the reply to our own write never came
                return lease, None
            at = await self.now()
            if lease is not None and holder(lease, at, self._margin):
                return None, lease
            wanted = Lease(key, owner, next_token(lease, at), at + ttl, "")
            written = await self._grant(wanted, grant, record)
            if written:
                assert written.version is not None
                return replace(wanted, version=written.version), None
        return None, None

    async def _grant(self, wanted: Lease, grant: str, record: Record | None) -> Written:
        due_at = wanted.until if self._indexed else None
        version = None if record is None else record.version
        return await self._writes.write(wanted.key, encode(wanted, grant), version, due_at)

    async def _put(self, lease: Lease, changed: Lease) -> Written:
        due_at = changed.until if self._indexed and changed.owner else None
        return await self._writes.write(lease.key, encode(changed, ""), lease.version, due_at)

    async def _current(self, lease: Lease) -> Lease | None:
        """The lease as it is stored now, if it is still this grant: its token is given out only once."""
        record = await self._records.get(lease.key)
        if record is None:
            return None
        stored, _ = decode(record)
        return stored if (stored.token, stored.owner) == (lease.token, lease.owner) else None
