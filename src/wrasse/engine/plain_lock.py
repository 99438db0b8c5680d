"""The lock that the sweeper of the design document takes on Redis: held, and renewed, before each batch of a run, so
that a sweeper of the origin and ours do not run at the same time. It ends by itself when no run renews it."""

from __future__ import annotations

from datetime import timedelta

from wrasse.ports.plain_locks import PlainLocks

DOCUMENT_LOCK = "gbe:lock:sweeper"


class PlainLockGuard:
    """Holds a run while somebody else has the lock."""

    name = "sweeper_lock"
    __slots__ = ("_locks", "_owner", "_ttl")

    def __init__(self, locks: PlainLocks, owner: str, ttl: timedelta) -> None:
        self._locks = locks
        self._owner = owner
        self._ttl = ttl

    async def held(self) -> str | None:
        holder = await self._locks.hold(DOCUMENT_LOCK, self._owner, self._ttl)
        return None if holder == self._owner else f"{DOCUMENT_LOCK} is held by {holder}"
