"""What a guard asks of a backend: does it answer, is it still the same one, has it lost anything?

`health_sample` is one cheap round trip. It never raises anything but StoreUnavailable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from wrasse.ports.rules.check_result import Finding


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
