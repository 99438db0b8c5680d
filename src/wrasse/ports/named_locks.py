"""Plain locks: one key with its owner's name and an end, as programs of other makers take them.

Promise. One owner at a time; only the owner renews or releases; a lock that nobody renews ends by itself. It saves work
and guards nothing: whoever relies on it also names what each of its writes expects.

Costs. One round trip a call.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol


class PlainLocks(Protocol):
    """The port."""

    async def hold(self, key: str, owner: str, ttl: timedelta) -> str:
        """Takes the lock or renews it; gives the name of whoever holds it then."""
        ...

    async def holder(self, key: str) -> str:
        """The name of whoever holds it; empty if nobody does."""
        ...

    async def release(self, key: str, owner: str) -> bool:
        """Lets go of it, if it is still this owner's."""
        ...
