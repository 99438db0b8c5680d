"""Stream leases: one archiver per stream at a time. This avoids duplicate work; correctness depends on the commit
alone.

A lease is acquired when there is something to archive, renewed after half of its time while there still is, and
otherwise left to expire.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.leases.lease import Lease
from wrasse.leases.manager import LeaseManager

TTL = timedelta(seconds=30)
_PREFIX = "archive/"
_SUBJECT_BYTES_MAX = 200
_LEASES_MAX = 10_000  # beyond that, expired ones are removed


class StreamLeases:
    """The leases of one archiver."""

    def __init__(self, lease_manager: LeaseManager, owner: str, clock: Clock, ttl: timedelta = TTL) -> None:
        self._lease_manager = lease_manager
        self._owner = owner
        self._clock = clock
        self._ttl = ttl
        self._leases: dict[str, tuple[Lease, float]] = {}  # with its end by the monotonic clock
        self._refused_at: dict[str, float] = {}  # when the last acquire was refused

    async def mine(self, subject: str) -> bool:
        """Whether this archiver has the stream's lease; tries to acquire it."""
        now = self._clock.monotonic()
        lease, ends = self._leases.get(subject, (None, now))
        if ends - now > self._ttl.total_seconds() / 2:
            return True
        if lease is None and now - self._refused_at.get(subject, float("-inf")) < self._ttl.total_seconds() / 6:
            return False
        self._leases.pop(subject, None)
        self._refused_at.pop(subject, None)
        granted = await self._lease_manager.renew(lease, self._ttl) if lease is not None and ends > now else None
        if granted is None:
            granted = await self._lease_manager.acquire(lease_key(subject), self._owner, self._ttl)
        if granted is None:
            if len(self._refused_at) >= _LEASES_MAX:
                self._refused_at.clear()
            self._refused_at[subject] = self._clock.monotonic()
            return False
        if len(self._leases) >= _LEASES_MAX:
            self._leases = {key: held for key, held in self._leases.items() if held[1] > now}
        self._leases[subject] = (granted, self._lease_manager.term(granted))
        return True

    async def asked_again(self, subject: str) -> bool:
        """`mine` without the pause after a refusal."""
        self._refused_at.pop(subject, None)
        return await self.mine(subject)

    async def give_back(self) -> None:
        """Releases all leases, so that others need not wait."""
        while self._leases:
            await self.give_up(next(iter(self._leases)))

    async def give_up(self, subject: str) -> None:
        """Releases the lease of one stream; if that fails, it expires."""
        lease, ends = self._leases.pop(subject, (None, 0.0))
        if lease is not None and ends > self._clock.monotonic():
            with suppress(StoreUnavailable, StoreBroken):
                await self._lease_manager.release(lease)


def lease_key(subject: str) -> str:
    """The key of a stream's lease: its subject, or its hash where that is too long."""
    if len(subject.encode()) <= _SUBJECT_BYTES_MAX:
        return _PREFIX + subject
    return _PREFIX + hashlib.sha256(subject.encode()).hexdigest()
