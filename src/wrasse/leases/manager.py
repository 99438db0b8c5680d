"""The engine's own leases, on the same core as leased keys: which process runs a sweep or archives a stream."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.errors import UsageError
from wrasse.leases.core import LeaseCore
from wrasse.leases.lease import BARE, AcquireRequest, KeyRefused, Lease, Refusal, Terms, over
from wrasse.leases.wait_queue import NO_WAIT, Acquiring
from wrasse.ports.records import Records


class LeaseManager:
    """The engine's own leases: no state, no transactions, no index. `margin` bounds the error of this host's estimate
    of the store's clock."""

    __slots__ = ("_acquiring", "_core")

    def __init__(self, records: Records, clock: Clock, *, margin: timedelta = timedelta(0)) -> None:
        self._core = LeaseCore("", records, clock, codec=BARE, terms=Terms(margin))
        self._acquiring = Acquiring(clock, self._core.tally)

    async def acquire(self, key: str, owner: str, ttl: timedelta, *, wait: timedelta | None = NO_WAIT) -> Lease | None:
        """The lease, or None if another holder had it for the whole `wait` (None: for ever). A second acquire by the
        same owner is refused like any other."""
        if not owner or ttl <= timedelta(0):
            raise UsageError(f"a lease of {key!r} for {owner!r} over {ttl}", do="name an owner and a time above zero")
        request = AcquireRequest(owner, ttl, secrets.token_hex(8), "")
        try:
            record = await self._acquiring.acquired(self._core, key, request, wait, named=False)
        except KeyRefused as refused:
            if refused.code is Refusal.WAITING:
                return None
            raise
        return replace(record.granted, key=key)

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease | None:
        """Extends the lease to `ttl` from now, with the same token; None if it has ended or changed hands."""
        try:
            return replace((await self._core.renew(lease, ttl)).granted, key=lease.key)
        except KeyRefused:
            return None

    async def release(self, lease: Lease, *, commit: bool = True) -> bool:
        """Releases the key; False if the lease had ended. There is nothing to commit."""
        released = await self._core.roll_back(lease)
        self._acquiring.wake("", lease.key)
        return released

    async def get(self, key: str) -> Lease | None:
        """The current lease of a key; an expired one is cleared."""
        record = await self._core.read(key)
        if record is None or record.lease is None:
            return None
        at = await self.now()
        if not over(record.lease, at, self._core.terms):
            return replace(record.lease, key=key)
        await self._core.clear(
            key, record, at
        )  # a conflict means that another process acquired or cleared it: it was free
        return None

    async def now(self) -> datetime:
        """The store's time, rather a little late than early."""
        return await self._core.now()

    def term(self, lease: Lease) -> float:
        """The local monotonic time until which the holder may rely on a lease that was just granted or renewed."""
        return self._core.term(lease)
