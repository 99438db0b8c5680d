"""For the tests of programs that use wrasse: a clock that a test moves, an app in memory, and the promises of a sweep.

    case = SweepCase(lambda world: OldUploads(world.store.objects), plant, claim, held=("uploads/new",))
    assert (await check_sweep(case)).actions == 2

`check_sweep` fails with a sentence about what the sweep does wrong. Every name here is public.
"""

from __future__ import annotations

from wrasse.api.app import App, connect
from wrasse.clock import Clock, ManualClock
from wrasse.testing.properties import Checked, SweepCase, World, check_sweep

__all__ = ["Checked", "ManualClock", "SweepCase", "World", "check_sweep", "memory_app"]


def memory_app(clock: Clock | None = None) -> App:
    """An app on memory alone, for tests of handlers; with a ManualClock, the test moves the time."""
    return connect("memory:", clock=clock)
