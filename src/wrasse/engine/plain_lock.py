"""The lock that the sweeper of the design document takes on Redis: held, and renewed, before each batch of a run, so
that a sweeper of the origin and ours do not run at the same time. It ends by itself when no run renews it.

All processes of ours are one owner: which of them runs is what the lease of the sweep says, and a process that was
killed must not keep the next one from its work.
"""

from __future__ import annotations

from datetime import timedelta

from wrasse.ports.guard import Guard
from wrasse.ports.plain_locks import PlainLocks

DOCUMENT_LOCK = "gbe:lock:sweeper"
OWNER = "wrasse"


class PlainLockGuard(Guard):
    """Holds a run while somebody else has the lock."""

    name = "sweeper_lock"
    __slots__ = ("_locks", "_ttl")

    def __init__(self, locks: PlainLocks, ttl: timedelta) -> None:
        self._locks = locks
        self._ttl = ttl

    async def held(self) -> str | None:
        holder = await self._locks.hold(DOCUMENT_LOCK, OWNER, self._ttl)
        return None if holder == OWNER else f"{DOCUMENT_LOCK} is held by {holder}"
