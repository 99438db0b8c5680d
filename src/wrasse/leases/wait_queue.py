"""Waiting for a key: first come, first served among the waiters of one process.

Only the first in line looks at the store, at growing intervals that end when the lease in the way should; a release in
this process wakes it at once. Who leaves the line, because time is up or the caller went away, wakes the next.
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
from wrasse.leases.background import BackgroundTasks
from wrasse.leases.core import LeaseCore
from wrasse.leases.lease import AcquireRequest, Busy, KeyRecord
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.leases.store import LeaseTally

POLL_FIRST = 0.05  # seconds
POLL_MAX = 1.0
POLL_GROWS = 1.5
NO_WAIT = timedelta(0)


class WaitQueues:
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
    async def place(self, key: str) -> AsyncIterator[WaiterPlace]:
        """A place at the end of the key's line, for the length of the block."""
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
    """One waiter's place in a line."""

    __slots__ = ("_line", "_poll", "_wakeup")

    def __init__(self, line: deque[asyncio.Event], wakeup: asyncio.Event) -> None:
        self._line, self._wakeup = line, wakeup
        self._poll = POLL_FIRST

    @property
    def first(self) -> bool:
        """Whether it is this one's turn to look."""
        return self._line[0] is self._wakeup

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
                await self._wakeup.wait()
        self._wakeup.clear()


class Acquiring:
    """Acquires of this process, in all namespaces, from the first try until they have the key, are refused, or their
    caller goes away. A try is never given up half way, and no lease is left without a holder that knows of it."""

    def __init__(self, clock: Clock, tally: LeaseTally, background: BackgroundTasks | None = None) -> None:
        self._clock, self._tally = clock, tally
        self._background = background if background is not None else BackgroundTasks()
        self.lines = WaitQueues()
        self.heard: list[Callable[[str, str], None]] = []  # told of each key that may have become free

    def wake(self, namespace: str, key: str) -> None:
        """The key may be free: the first waiter should look."""
        self.lines.wake(f"{namespace}/{key}")
        for each in self.heard:
            each(namespace, key)

    async def acquired(
        self, keys: LeaseCore, key: str, asked: AcquireRequest, wait: timedelta | None, *, named: bool
    ) -> KeyRecord:
        """The key with the lease on it. Waits up to `wait` (None: for ever), then refuses. `named`: the caller chose
        the id of the lease, and may ask for it again."""
        line = f"{keys.namespace}/{key}"
        busy: Busy | None = None
        if not self.lines.busy(line):
            answer = await self._try(keys, key, asked, named)
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
                    limit.reschedule(None)  # a try is never given up half way
                    answer = await self._try(keys, key, asked, named)
                    if isinstance(answer, KeyRecord):
                        return answer
                    busy = answer
                    limit.reschedule(ends)
        except TimeoutError:
            raise await self._waiting(keys, key, None) from None

    async def _try(self, keys: LeaseCore, key: str, asked: AcquireRequest, named: bool) -> KeyRecord | Busy:
        """One try. If its caller goes away meanwhile, a lease that nobody knows of is given back; one whose id the
        caller chose stays, because the caller may ask for it again."""
        try:
            return await keys.try_acquire(key, asked)
        except asyncio.CancelledError:
            if not named:
                await self._background.add(self._given_back(keys, key, asked))
            raise

    async def _given_back(self, keys: LeaseCore, key: str, asked: AcquireRequest) -> None:
        """Asks once more and gives back: of two writes over one version only one counts, so that the one which may
        still be on its way changes nothing any more."""
        answer = await keys.try_acquire(key, asked)
        if isinstance(answer, KeyRecord):
            await keys.give_back(replace(answer.held, key=key))
        self.wake(keys.namespace, key)

    async def _waiting(self, keys: LeaseCore, key: str, busy: Busy | None) -> KeyRefused:
        if busy is None:
            record = await keys.look(key)
            busy = None if record is None or record.lease is None else Busy(record.lease.expires_at)
        left = 1.0 if busy is None else (busy.until - await keys.now()).total_seconds()
        return KeyRefused(Refusal.WAITING, f"{key!r} is held by somebody else", wait=max(left, 0.0))
