"""An event loop whose time jumps: when every task waits, the next timer is due at once.

An hour of waiting costs nothing, and what happens in which order depends only on the code and its seeds, never on how
busy the machine is. `VirtualClock` is a host's clock on such a loop: its wall time may be off, drift and be set.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Stuck(RuntimeError):
    """Every task waits, and no timer will ever wake one."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio with virtual time. For one thread; there is no outside world."""

    def __init__(self) -> None:
        self.virtual = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.virtual

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is no thread to wait for, and a thread's answer would come from outside."""


class _Jump(selectors.SelectSelector):
    """Where the loop would sleep until its next timer, time moves there instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("every task waits and nothing will ever happen")
        self._loop.virtual += max(timeout, 0.0)
        return []


def run_virtual(story: Coroutine[Any, Any, T]) -> T:
    """Runs to the end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)


class VirtualClock:
    """A host's clock in virtual time. `drift` is how much faster than true time its wall clock runs, as a share."""

    def __init__(self, *, off: timedelta = timedelta(0), drift: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._off = off
        self._drift = drift
        self.latest = START  # the latest wall time it has shown to anybody

    def now(self) -> datetime:
        now = START + timedelta(seconds=self._loop.time() * (1 + self._drift)) + self._off
        self.latest = max(self.latest, now)
        return now

    def monotonic(self) -> float:
        return self._loop.time()

    def step(self, by: timedelta) -> None:
        """Sets the wall clock forwards or back, as an operator or NTP does."""
        self._off += by
