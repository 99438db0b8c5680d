"""What pauses a run before its next batch. A guard says why in one line; one that cannot tell pauses it too.

What a guard asks of a backend: does it answer, is it still the same one, has it lost anything?

`health_sample` is one cheap round trip. It never raises anything but StoreUnavailable.

Plain locks: one key with its owner's name and an end, as programs of other makers take them.

Promise. One owner at a time; only the owner renews or releases; a lock that nobody renews ends by itself. It saves work
and guards nothing: whoever relies on it also names what each of its writes expects.

Costs. One round trip a call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from wrasse.ports.backend import Finding


class Guard(ABC):
    """Something that may pause a run. Most remember nothing and have nothing to add: that is what they inherit."""

    __slots__ = ()
    name: str  # a short word: it labels a metric

    @abstractmethod
    async def pause_reason(self) -> str | None:
        """Why the run must not go on now, or None."""

    async def foreseen(self) -> str | None:
        """What `pause_reason` would say, for a dry run: nothing is taken."""
        return await self.pause_reason()

    async def release(self) -> None:  # noqa: B027  # most hold nothing
        """A run is over: what `pause_reason` took for it is given back."""

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
    """Something whose pulse can be felt."""

    async def health_sample(self) -> HealthSample:
        """The backend's identity, clock and evictions, now."""
        ...


class Examined(Protocol):
    """Something whose server has settings of its own, some of which cost jobs."""

    async def examine(self) -> Sequence[Finding]:
        """What the doctor is to tell about them."""
        ...


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
