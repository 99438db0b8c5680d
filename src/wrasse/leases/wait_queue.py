"""Waiting for a key: first come, first served among the waiters of one process.

Only the first waiter polls the store, at growing intervals that end when the current lease should expire; a release in
this process wakes it at once. A waiter that leaves the queue, by timeout or cancellation, wakes the next one.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.leases.cleanup import BackgroundTasks
from wrasse.leases.core import LeaseCore
from wrasse.leases.lease import AcquireRequest, Busy, KeyRecord, KeyRefused, Refusal
from wrasse.leases.store import LeaseTally

POLL_FIRST = 0.05  # seconds
POLL_MAX = 1.0
POLL_GROWS = 1.5
NO_WAIT = timedelta(0)


class WaitQueues:
    """A queue of waiters per key."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[str, deque[asyncio.Event]] = {}

    def busy(self, key: str) -> bool:
        """Whether this key has waiters."""
        return key in self._lines

    def waiting(self) -> int:
        """How many wait, for any key."""
        return sum(len(line) for line in self._lines.values())

    def wake(self, key: str) -> None:
        """The key may be free: wakes its first waiter."""
        if line := self._lines.get(key):
            line[0].set()

    @asynccontextmanager
    async def place(self, key: str) -> AsyncIterator[WaiterPlace]:
        """A place at the end of the key's queue, for the length of the block."""
        wakeup = asyncio.Event()
        line = self._lines.setdefault(key, deque())
        line.append(wakeup)
        try:
            yield WaiterPlace(line, wakeup)
        finally:
            line.remove(wakeup)
            if line:
                line[0].set()
            elif self._lines.get(key) is line:
                del self._lines[key]


class WaiterPlace:
    """One waiter's place in a queue."""

    __slots__ = ("_line", "_poll", "_wakeup")

    def __init__(self, line: deque[asyncio.Event], wakeup: asyncio.Event) -> None:
        self._line, self._wakeup = line, wakeup
        self._poll = POLL_FIRST

    @property
    def first(self) -> bool:
        """Whether this waiter is first, and polls."""
        return self._line[0] is self._wakeup

    async def turn(self, ends_in: float | None, jitter: float) -> None:
        """Waits until the next poll: woken, poll interval over while first, or the current lease should have ended.
        `jitter` from 0 to 1 spreads the waiters of several processes."""
        pause: float | None = None
        if self.first:
            pause = self._poll * (0.5 + jitter / 2)
            if ends_in is not None:
                pause = min(pause, max(ends_in, 0.001))
            self._poll = min(self._poll * POLL_GROWS, POLL_MAX)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wakeup.wait()
        self._wakeup.clear()


class Acquiring:
    """The acquires of this process, in all namespaces, from the first attempt until granted, refused or cancelled. An
    attempt is never interrupted, so that no lease is granted to a caller that does not know of it."""

    def __init__(self, clock: Clock, tally: LeaseTally, background: BackgroundTasks | None = None) -> None:
        self._clock, self._tally = clock, tally
        self._background = background if background is not None else BackgroundTasks()
        self.lines = WaitQueues()
        self.listeners: list[Callable[[str, str], None]] = []  # told of each key that may have become free

    def wake(self, namespace: str, key: str) -> None:
        """The key may be free: wakes its first waiter."""
        self.lines.wake(f"{namespace}/{key}")
        for each in self.listeners:
            each(namespace, key)

    async def acquired(
        self, keys: LeaseCore, key: str, request: AcquireRequest, wait: timedelta | None, *, named: bool
    ) -> KeyRecord:
        """The key with the new lease. Waits up to `wait` (None: for ever), then refuses. `named`: the caller chose the
        id of the lease, and may retry with it."""
        line = f"{keys.namespace}/{key}"
        busy: Busy | None = None
        if not self.lines.busy(line):
            answer = await self._try(keys, key, request, named)
            if isinstance(answer, KeyRecord):
                return answer
            busy = answer
        self._tally.waited += 1
        if wait is not None and wait <= NO_WAIT:
            raise await self._waiting(keys, key, busy)
        seconds = None if wait is None else wait.total_seconds()
        try:
            async with self.lines.place(line) as place, asyncio.timeout(seconds) as limit:
                while True:
                    left = None if busy is None else keys.when(busy.until) - self._clock.monotonic()
                    await place.turn(left, random.random())
                    if not place.first:
                        continue
                    ends = limit.when()
                    limit.reschedule(None)  # an attempt is never interrupted
                    answer = await self._try(keys, key, request, named)
                    if isinstance(answer, KeyRecord):
                        return answer
                    busy = answer
                    limit.reschedule(ends)
        except TimeoutError:
            raise await self._waiting(keys, key, None) from None

    async def _try(self, keys: LeaseCore, key: str, request: AcquireRequest, named: bool) -> KeyRecord | Busy:
        """One attempt. If its caller is cancelled meanwhile, the lease is released; one whose id the caller chose
        stays, because the caller may retry with that id."""
        try:
            return await keys.try_acquire(key, request)
        except asyncio.CancelledError:
            if not named:
                await self._background.add(self._release_unclaimed(keys, key, request))
            raise

    async def _release_unclaimed(self, keys: LeaseCore, key: str, request: AcquireRequest) -> None:
        """Acquires with the same request once more, then releases: of two writes over one version only one succeeds, so
        that a write still on its way has no effect."""
        answer = await keys.try_acquire(key, request)
        if isinstance(answer, KeyRecord):
            await keys.roll_back(replace(answer.granted, key=key))
        self.wake(keys.namespace, key)

    async def _waiting(self, keys: LeaseCore, key: str, busy: Busy | None) -> KeyRefused:
        if busy is None:
            record = await keys.read(key)
            busy = None if record is None or record.lease is None else Busy(record.lease.expires_at)
        left = 1.0 if busy is None else (busy.until - await keys.now()).total_seconds()
        return KeyRefused(Refusal.WAITING, f"{key!r} is held by somebody else", wait=max(left, 0.0))
