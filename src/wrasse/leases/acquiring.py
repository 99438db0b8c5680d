"""One acquire, from the first try until it has the key, is refused, or its caller goes away.

Whoever waits stands in a line of this process, and the first in line tries: when the key was given back here, or when
the lease in the way should have ended. A try is never given up half way, and no lease is left that nobody knows of.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.leases.afterwards import Afterwards
from wrasse.leases.keys import Keys
from wrasse.leases.meta import Kept
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.leases.rules import Asked, Busy, Held
from wrasse.leases.tally import LeaseTally
from wrasse.leases.waiting import Lines

NO_WAIT = timedelta(0)


class Acquiring:
    """Acquires of this process, in all namespaces. `wake` is told of a key that may have become free."""

    def __init__(
        self, lines: Lines, clock: Clock, afterwards: Afterwards, tally: LeaseTally, wake: Callable[[str, str], None]
    ) -> None:
        self._lines, self._clock, self._afterwards = lines, clock, afterwards
        self._tally, self._wake = tally, wake

    async def acquired(self, keys: Keys, key: str, asked: Asked, wait: timedelta | None, *, named: bool) -> Kept:
        """The key with the lease on it. Waits up to `wait` (None: for ever), then refuses. `named`: the caller chose
        the id of the lease, and may ask for it again."""
        line = f"{keys.namespace}/{key}"
        busy: Busy | None = None
        if not self._lines.busy(line):
            answer = await self._try(keys, key, asked, named)
            if isinstance(answer, Kept):
                return answer
            busy = answer
        self._tally.waited += 1
        if wait is not None and wait <= NO_WAIT:
            raise await self._waiting(keys, key, busy)
        try:
            async with self._lines.place(line) as place, asyncio.timeout(_seconds(wait)) as limit:
                while True:
                    left = None if busy is None else keys.when(busy.until) - self._clock.monotonic()
                    await place.turn(left, random.random())
                    if not place.first:
                        continue
                    ends = limit.when()
                    limit.reschedule(None)  # a try is never given up half way
                    answer = await self._try(keys, key, asked, named)
                    if isinstance(answer, Kept):
                        return answer
                    busy = answer
                    limit.reschedule(ends)
        except TimeoutError:
            raise await self._waiting(keys, key, None) from None

    async def _try(self, keys: Keys, key: str, asked: Asked, named: bool) -> Kept | Busy:
        """One try. If its caller goes away meanwhile, a lease that nobody knows of is given back; one whose id the
        caller chose stays, because the caller may ask for it again."""
        try:
            return await keys.try_acquire(key, asked)
        except asyncio.CancelledError:
            if not named:
                await self._afterwards.add(self._given_back(keys, key, asked))
            raise

    async def _given_back(self, keys: Keys, key: str, asked: Asked) -> None:
        """Asks once more and gives back: of two writes over one version only one counts, so that the one which may
        still be on its way changes nothing any more."""
        answer = await keys.try_acquire(key, asked)
        grant = answer.meta.grant if isinstance(answer, Kept) else None
        if grant is not None:
            await keys.release(Held(key, grant.id, grant.token, grant.transaction), commit=False, alone=True)
        self._wake(keys.namespace, key)

    async def _waiting(self, keys: Keys, key: str, busy: Busy | None) -> KeyRefused:
        if busy is None:
            kept = await keys.look(key)
            grant = None if kept is None else kept.meta.grant
            busy = None if grant is None else Busy(grant.until)
        left = 1.0 if busy is None else (busy.until - await keys.now()).total_seconds()
        return KeyRefused(Refusal.WAITING, f"{key!r} is held by somebody else", wait=max(left, 0.0))


def _seconds(wait: timedelta | None) -> float | None:
    return None if wait is None else wait.total_seconds()
