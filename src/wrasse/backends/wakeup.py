"""What wakes one taker that waits in this process, and for how long it may be woken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta


class Wakeup:
    """Wakes one taker: when something happened to one of its names, and when its time is over."""

    __slots__ = ("_event", "late", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.late = False  # its time is over
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wakes the taker now."""
        self._event.set()

    def expire(self) -> None:
        """Wakes the taker for the last time."""
        self.late = True
        self._event.set()

    async def rung(self, within: float | None = None) -> None:
        """Waits for the next ring, or for so many seconds. In any case bounded by `expire`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._event.wait()
        self._event.clear()


@contextmanager
def hung(wakeups: set[Wakeup], names: Iterable[str], wait: timedelta) -> Iterator[Wakeup]:
    """A bell among these, which rings at the latest after `wait`."""
    wakeup = Wakeup(names)
    timer = asyncio.get_running_loop().call_later(wait.total_seconds(), wakeup.expire)
    wakeups.add(wakeup)
    try:
        yield wakeup
    finally:
        timer.cancel()
        wakeups.discard(wakeup)
