"""A lease that clocks make useless is refused before it is granted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.leases.lease import Terms
from wrasse.leases.leases import LeasePolicy, Leases, TooShort

SECOND = timedelta(seconds=1)


async def test_a_lease_that_lasts_no_longer_than_clocks_may_be_off_is_refused() -> None:
    clock = ManualClock()
    memory = Memory(clock)
    leases = Leases(memory.records, memory.objects, clock, LeasePolicy(Terms(margin=SECOND)))
    with pytest.raises(TooShort, match="off by 1s"):
        await leases.acquire("a", "me", ttl=SECOND)
    assert await leases.acquire("a", "me", ttl=2 * SECOND)
