"""Which job is next: signs in the order of service, listed when they run out, each claimed by one conditional write.

A list may be out of date at any moment: whoever takes a job by its sign reads the record, and of two who take one one
wins. So a list that is wrong costs a request and nothing else. Bounded: a page of signs for each queue.

What a take costs on a bucket, for each job: its record is read while the entry of its deadline is made, and written:
three requests before the answer. A queue whose list has run out is listed, which is one more. The sign goes after the
answer.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from wrasse.clock import Clock, from_micros, to_micros
from wrasse.errors import StoreBroken
from wrasse.jobs.record_core.claims import Claim, Claims
from wrasse.jobs.record_queue.names import Sign, read_sign
from wrasse.jobs.record_queue.store import RecordedStore, Seen

PAGE = 200
LISTED_FOR = 5.0  # seconds; then the list is read anew, since others may have put what goes first
SEEN_MAX = 10_000
QUEUES_MAX = 1_000
ABREAST = 16  # claims at once
EXPIRED_EVERY = 10.0  # seconds between two looks at what is overdue while there is other work
POLL_FIRST = 0.05
POLL_GROWS = 1.5
_log = logging.getLogger("wrasse.jobs")


@dataclass(slots=True)
class _List:
    signs: list[tuple[str, Sign]] = field(default_factory=list)  # by name, which is their order
    last: str | None = None  # what is after this is not known; None: all was
    listed_at: float = float("-inf")


class Ready:
    """The lists of all queues."""

    def __init__(self, store: RecordedStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lists: OrderedDict[str, _List] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()  # signs whose job was taken: they never count again

    def note(self, queue: str, sign: Sign) -> None:
        """A sign that this process made: it takes its place in a list that is known."""
        known = self._lists.get(queue)
        if known is not None and (known.last is None or sign.name < known.last) and len(known.signs) < 2 * PAGE:
            insort(known.signs, (sign.name, sign), key=lambda each: each[0])

    def spent(self, sign: Sign) -> None:
        """Its job was taken: it never counts again."""
        self._over[sign.name] = None
        if len(self._over) > SEEN_MAX:
            self._over.popitem(last=False)

    def fresh(self, queue: str) -> bool:
        """Whether a list is known and new enough to be served from."""
        known = self._lists.get(queue)
        return known is not None and self._clock.monotonic() - known.listed_at < LISTED_FOR

    def pop(self, queue: str, count: int, at: datetime) -> list[Sign]:
        """The next signs whose moment has come; they leave the list."""
        known = self._lists.get(queue)
        if known is None:
            return []
        found: list[Sign] = []
        now = to_micros(at)
        while known.signs and len(found) < count:
            sign = known.signs[0][1]
            if sign.turn > 0 and sign.ready_at > now:
                break
            del known.signs[0]
            if sign.name not in self._over:
                found.append(sign)
        return found

    def ends(self, queue: str) -> bool:
        """Whether all signs of the queue were listed."""
        known = self._lists.get(queue)
        return known is None or known.last is None

    async def list(self, queue: str, *, on: bool = False) -> None:
        """Lists a queue from its beginning, or goes `on` where the last listing stopped. One request."""
        known = self._lists.get(queue)
        after = known.last if on and known is not None else None
        signs, more = await self._store.signs(self._store.names.queue(queue), after, PAGE)
        fresh = _List([(sign.name, sign) for sign in signs], listed_at=self._clock.monotonic())
        fresh.last = signs[-1].name if more and signs else None
        self._lists[queue] = fresh
        if len(self._lists) > QUEUES_MAX:
            self._lists.popitem(last=False)

    def next_at(self, queue: str) -> datetime | None:
        """When the first job that is not ready yet becomes so, if one is known."""
        known = self._lists.get(queue)
        return from_micros(known.signs[0][1].ready_at) if known is not None and known.signs else None


class RecordedTakes(Claims[Seen]):
    """Takes jobs by their signs. `expire` sees to what is overdue; `poll_max` is the longest pause between two looks
    while nothing is there."""

    def __init__(
        self, store: RecordedStore, ready: Ready, clock: Clock, expire: Callable[[], Awaitable[int]], poll_max: float
    ) -> None:
        super().__init__(store)
        self._store, self._ready, self._clock, self._expire, self._poll_max = store, ready, clock, expire, poll_max
        self._expired_at = float("-inf")
        self._rung = asyncio.Event()
        self.waiting = 0

    def ring(self) -> None:
        """Something became ready here."""
        self._rung.set()

    def readied(self, seen: Seen) -> None:
        """A job that this process made ready takes its place in the list, and whoever waits looks."""
        name = self._store.names.sign(seen.stored, seen.recorded.mark)
        sign = None if name is None else read_sign(name, "")
        assert sign is not None, "what is ready has a sign"
        self._ready.note(seen.stored.state.queue, sign)
        self.ring()

    async def take(self, claim: Claim, wait: timedelta) -> list[Seen]:
        """Up to the claim's limit, waiting for the first for as long as `wait`."""
        taken = await self._to_the_end(self._look(claim))
        if taken or wait <= timedelta(0):
            return taken
        pause = POLL_FIRST
        self.waiting += 1
        try:
            async with asyncio.timeout(wait.total_seconds()) as limit:
                while True:
                    await self._nap(min(pause, await self._until_next(claim)))
                    pause = min(pause * POLL_GROWS, self._poll_max)
                    ends = limit.when()
                    limit.reschedule(None)  # a look is never given up half way
                    taken = await self._to_the_end(self._look(claim))
                    if taken:
                        return taken
                    limit.reschedule(ends)
        except TimeoutError:
            if not limit.expired():
                raise
            return []
        finally:
            self.waiting -= 1

    async def _look(self, claim: Claim) -> list[Seen]:
        """What is there; what is overdue is looked for when there is nothing else, or after the answer now and then."""
        taken = await self._now(claim)
        if not taken:
            return await self._now(claim) if await self._look_overdue() else []
        if self._clock.monotonic() - self._expired_at > EXPIRED_EVERY:
            await self._store.later(self._look_later())
        return taken

    async def _look_overdue(self) -> int:
        self._expired_at = self._clock.monotonic()
        return await self._expire()

    async def _look_later(self) -> None:
        if await self._look_overdue():
            self.ring()

    async def _now(self, claim: Claim) -> list[Seen]:
        """What is there now, queue by queue."""
        taken: list[Seen] = []
        for queue in claim.queues:
            listed = False
            if not self._ready.fresh(queue):
                await self._ready.list(queue)
                listed = True
            while len(taken) < claim.limit:
                at = await self._store.time.now()
                signs = self._ready.pop(queue, min(claim.limit - len(taken), ABREAST), at)
                if signs:
                    found = await asyncio.gather(*(self._claim_sign(claim, sign) for sign in signs))
                    taken += [seen for seen in found if seen is not None]
                elif not self._ready.ends(queue):
                    await self._ready.list(queue, on=True)
                elif not listed:
                    await self._ready.list(queue)
                    listed = True
                else:
                    break
        return taken

    async def _claim_sign(self, claim: Claim, sign: Sign) -> Seen | None:
        """The job, held; None if it is not to be had."""
        at = await self._store.time.now()
        seen = await self._store.looked_at(sign.key, entering=at + claim.silence)
        if isinstance(seen, StoreBroken):
            self._ready.spent(sign)
            _log.error("a job is passed over: %s", seen)
            return None
        if not await self._store.counts(sign, seen, at) or seen is None:
            return None  # not yet written, or no longer so
        if seen.stored.at(at).delayed:
            return None
        written = await self._claim(claim, seen)
        self._ready.spent(sign)
        return written

    async def _until_next(self, claim: Claim) -> float:
        """Seconds until a delayed job of these queues becomes ready, as far as it is known."""
        at = await self._store.time.now()
        known = [each for each in map(self._ready.next_at, claim.queues) if each is not None]
        return min([max((each - at).total_seconds(), 0.005) for each in known], default=self._poll_max)

    async def _nap(self, seconds: float) -> None:
        """Until something becomes ready here, or for so long. What was put since the last look is not slept over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()
