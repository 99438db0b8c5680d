"""Turns: one archiver per stream at a time, by an ordinary lease. This saves work; safety comes from the commit alone.

A lease is taken when there is something to archive, renewed when half of it is over and there still is, and else left
to end by itself.
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
_HELD_MAX = 10_000  # beyond that, those that ended are forgotten


class StreamLeases:
    """The leases of one archiver."""

    def __init__(self, lease_manager: LeaseManager, owner: str, clock: Clock, ttl: timedelta = TTL) -> None:
        self._lease_manager = lease_manager
        self._owner = owner
        self._clock = clock
        self._ttl = ttl
        self._held: dict[str, tuple[Lease, float]] = {}  # with its end by our monotonic clock
        self._asked: dict[str, float] = {}  # when we were refused last

    async def mine(self, subject: str) -> bool:
        """Whether it is our turn on this stream; asks for it if it is nobody's."""
        now = self._clock.monotonic()
        lease, ends = self._held.get(subject, (None, now))
        if ends - now > self._ttl.total_seconds() / 2:
            return True
        if lease is None and now - self._asked.get(subject, float("-inf")) < self._ttl.total_seconds() / 6:
            return False
        self._held.pop(subject, None)
        self._asked.pop(subject, None)
        granted = await self._lease_manager.renew(lease, self._ttl) if lease is not None and ends > now else None
        if granted is None:
            granted = await self._lease_manager.acquire(lease_key(subject), self._owner, self._ttl)
        if granted is None:
            if len(self._asked) >= _HELD_MAX:
                self._asked.clear()
            self._asked[subject] = self._clock.monotonic()
            return False
        if len(self._held) >= _HELD_MAX:
            self._held = {key: held for key, held in self._held.items() if held[1] > now}
        self._held[subject] = (granted, self._lease_manager.term(granted))
        return True

    async def asked_again(self, subject: str) -> bool:
        """`mine`, for someone who waits: also if we were refused a moment ago."""
        self._asked.pop(subject, None)
        return await self.mine(subject)

    async def give_back(self) -> None:
        """Gives back what is held, so that others need not wait."""
        while self._held:
            await self.give_up(next(iter(self._held)))

    async def give_up(self, subject: str) -> None:
        """Gives back one stream, if it is held; what cannot be given back ends by itself."""
        lease, ends = self._held.pop(subject, (None, 0.0))
        if lease is not None and ends > self._clock.monotonic():
            with suppress(StoreUnavailable, StoreBroken):
                await self._lease_manager.release(lease)


def lease_key(subject: str) -> str:
    """The key of a stream's lease: its subject, or where that is too long for a key, what stands for it."""
    if len(subject.encode()) <= _SUBJECT_BYTES_MAX:
        return _PREFIX + subject
    return _PREFIX + hashlib.sha256(subject.encode()).hexdigest()
