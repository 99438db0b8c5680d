"""Waiting for a key: first come, first served among the waiters of one process.

Only the first in line looks at the store, at growing intervals that end when the lease in the way should; a release in
this process wakes it at once. Who leaves the line, because time is up or the caller went away, wakes the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

POLL_FIRST = 0.05  # seconds
POLL_MAX = 1.0
POLL_GROWS = 1.5


class Lines:
    """A line of waiters per key."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[str, deque[asyncio.Event]] = {}

    def busy(self, key: str) -> bool:
        """Whether somebody waits for this key already."""
        return key in self._lines

    def waiting(self) -> int:
        """How many wait, for any key."""
        return sum(len(line) for line in self._lines.values())

    def wake(self, key: str) -> None:
        """The key may be free: whoever is first should look."""
        if line := self._lines.get(key):
            line[0].set()

    @asynccontextmanager
    async def place(self, key: str) -> AsyncIterator[Place]:
        """A place at the end of the key's line, for the length of the block."""
        bell = asyncio.Event()
        line = self._lines.setdefault(key, deque())
        line.append(bell)
        try:
            yield Place(line, bell)
        finally:
            line.remove(bell)
            if line:
                line[0].set()
            elif self._lines.get(key) is line:
                del self._lines[key]


class Place:
    """One waiter's place in a line."""

    __slots__ = ("_bell", "_line", "_poll")

    def __init__(self, line: deque[asyncio.Event], bell: asyncio.Event) -> None:
        self._line, self._bell = line, bell
        self._poll = POLL_FIRST

    @property
    def first(self) -> bool:
        """Whether it is this one's turn to look."""
        return self._line[0] is self._bell

    async def turn(self, ends_in: float | None, jitter: float) -> None:
        """Until it is time to look again: woken, first in line and a while has passed, or the lease should be over.
        `jitter` from 0 to 1 parts the waiters of several processes."""
        pause: float | None = None
        if self.first:
            pause = self._poll * (0.5 + jitter / 2)
            if ends_in is not None:
                pause = min(pause, max(ends_in, 0.001))
            self._poll = min(self._poll * POLL_GROWS, POLL_MAX)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._bell.wait()
        self._bell.clear()
