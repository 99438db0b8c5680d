"""Wakes one worker or consumer that waits in this process, for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta


class Wakeup:
    """Wakes one waiter: when something happened to one of its names, and when its time is over."""

    __slots__ = ("_event", "late", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.late = False  # whether its time is over
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Wakes the waiter now."""
        self._event.set()

    def expire(self) -> None:
        """Wakes the waiter for the last time."""
        self.late = True
        self._event.set()

    async def fired(self, within: float | None = None) -> None:
        """Waits for the next wakeup, or for `within` seconds. In any case bounded by `expire`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._event.wait()
        self._event.clear()


@contextmanager
def registered(wakeups: set[Wakeup], names: Iterable[str], wait: timedelta) -> Iterator[Wakeup]:
    """A wakeup in this set, which fires after `wait` at the latest."""
    wakeup = Wakeup(names)
    timer = asyncio.get_running_loop().call_later(wait.total_seconds(), wakeup.expire)
    wakeups.add(wakeup)
    try:
        yield wakeup
    finally:
        timer.cancel()
        wakeups.discard(wakeup)
