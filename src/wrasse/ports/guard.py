"""What pauses a run, and what guards ask of a backend: its health, and the locks that other programs take.

Promise. `health_sample` says whether the backend answers, is still the same one and has lost anything; it never raises
anything but StoreUnavailable. A lock of NamedLocks, one key with its owner's name and an expiry as other programs take
them, has one owner at a time; only the owner renews or releases it; one that is not renewed expires. It saves work and
protects nothing: each write of its holder has a precondition of its own.

Costs. One cheap round trip a call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from wrasse.ports.backend import Finding


class Guard(ABC):
    """Something that may pause a run before its next batch; one that cannot tell pauses it too. Most have no memory and
    have nothing to add: that is inherited."""

    __slots__ = ()
    name: str  # a short word: it labels a metric

    @abstractmethod
    async def pause_reason(self) -> str | None:
        """Why the run must not go on now, in one line, or None."""

    async def foreseen(self) -> str | None:
        """What `pause_reason` would say, for a dry run: it takes nothing."""
        return await self.pause_reason()

    async def release(self) -> None:  # noqa: B027  # most hold nothing
        """A run is over: what `pause_reason` took for it is released."""

    def recall(self, memory: str | None) -> None:  # noqa: B027  # most have nothing to take up
        """A run begins. Takes up what the last one, here or elsewhere, remembered; None if that was nothing."""

    def memory(self) -> str | None:
        """What the next run should know; the engine keeps it with the sweep's state."""
        return None

    def note(self) -> str:
        """What there is to say although the run goes on."""
        return ""


@dataclass(frozen=True, slots=True)
class HealthSample:
    """One answer of a backend about itself."""

    identity: str  # changes when the server restarts or another takes over; constant for an embedded one
    at: datetime  # the backend's clock
    evicted: int = 0  # how many keys it has dropped to make room; only ever grows within one identity


class HealthCheck(Protocol):
    """A backend that tells how it is."""

    async def health_sample(self) -> HealthSample:
        """The backend's identity, clock and evictions, now."""
        ...


class Examined(Protocol):
    """A backend whose server has settings of its own, some of which cost jobs."""

    async def examine(self) -> Sequence[Finding]:
        """What the doctor reports about them."""
        ...


class NamedLocks(Protocol):
    """Locks that other programs take by SET NX."""

    async def hold(self, key: str, owner: str, ttl: timedelta) -> str:
        """Takes the lock or renews it; returns the name of its owner then."""
        ...

    async def holder(self, key: str) -> str:
        """The name of its owner; empty if it is free."""
        ...

    async def release(self, key: str, owner: str) -> bool:
        """Releases it, if it is still this owner's."""
        ...
