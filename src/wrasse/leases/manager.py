"""The engine's own leases, on the same core as leased keys: who runs a sweep, who archives a stream."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.errors import UsageError
from wrasse.leases.core import LeaseCore
from wrasse.leases.lease import BARE, AcquireRequest, Lease, Terms, over
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.leases.wait_queue import NO_WAIT, Acquiring
from wrasse.ports.records import Records


class LeaseManager:
    """The engine's own leases: no state, no transactions, no index. `margin` is how far this host's idea of the store's
    clock may be off."""

    __slots__ = ("_acquiring", "_core")

    def __init__(self, records: Records, clock: Clock, *, margin: timedelta = timedelta(0)) -> None:
        self._core = LeaseCore("", records, clock, codec=BARE, terms=Terms(margin))
        self._acquiring = Acquiring(clock, self._core.tally)

    async def acquire(self, key: str, owner: str, ttl: timedelta, *, wait: timedelta | None = NO_WAIT) -> Lease | None:
        """The lease, or None if somebody else held it for the whole `wait` (None: for ever). The same owner asking
        twice is somebody else."""
        if not owner or ttl <= timedelta(0):
            raise UsageError(f"a lease of {key!r} for {owner!r} over {ttl}", do="name an owner and a time above zero")
        asked = AcquireRequest(owner, ttl, secrets.token_hex(8), "")
        try:
            record = await self._acquiring.acquired(self._core, key, asked, wait, named=False)
        except KeyRefused as refused:
            if refused.code is Refusal.WAITING:
                return None
            raise
        return replace(record.held, key=key)

    async def renew(self, held: Lease, ttl: timedelta) -> Lease | None:
        """The same lease with the same token, `ttl` from now; None if it is over or changed hands."""
        try:
            return replace((await self._core.renew(held, ttl)).held, key=held.key)
        except KeyRefused:
            return None

    async def release(self, held: Lease, *, commit: bool = True) -> bool:
        """Gives the key back at once; False if the lease was over or no longer ours. There is nothing to commit."""
        released = await self._core.give_back(held)
        self._acquiring.wake("", held.key)
        return released

    async def get(self, key: str) -> Lease | None:
        """Who holds the key now; a lease that has ended is cleared on the way."""
        record = await self._core.look(key)
        if record is None or record.lease is None:
            return None
        at = await self.now()
        if not over(record.lease, at, self._core.terms):
            return replace(record.lease, key=key)
        await self._core.clear(key, record, at)  # if that is lost, somebody took or cleared it: it was free
        return None

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        return await self._core.now()

    def term(self, held: Lease) -> float:
        """Our monotonic time until which the holder may rely on a lease that was just granted or renewed."""
        return self._core.term(held)
