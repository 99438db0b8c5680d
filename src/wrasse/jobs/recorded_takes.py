"""Taking jobs that are kept as records: the first signs of a queue, each claimed by one conditional write.

What it costs on a bucket, for each job: its record is read while the entry of its deadline is made, and written: three
requests before the answer. A queue whose list has run out is listed, which is one more. The sign goes after the answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreBroken
from wrasse.jobs.recorded_names import Sign
from wrasse.jobs.recorded_ready import Ready
from wrasse.jobs.recorded_store import RecordedStore, Seen
from wrasse.ports import job_transitions as rules
from wrasse.ports.job import Hold, Place

ABREAST = 16  # claims at once
EXPIRED_EVERY = 10.0  # seconds between two looks at what is overdue while there is other work
POLL_FIRST = 0.05
POLL_GROWS = 1.5
_log = logging.getLogger("wrasse.jobs")


@dataclass(frozen=True, slots=True)
class Claim:
    """Who takes, for how long, and the request by which a claim is known again."""

    worker: str
    silence: timedelta
    request: str
    queues: tuple[str, ...]
    limit: int
    tried: list[str] = field(default_factory=list)  # keys of every claim that was begun

    def nonce(self, id: str) -> str:
        """The nonce of its hold on a job: the same if the same request asks again."""
        return hashlib.blake2b(f"{self.request}\0{id}".encode(), digest_size=8).hexdigest()


class RecordedTakes:
    """Takes jobs by their signs. `expire` sees to what is overdue; `poll_max` is the longest pause between two looks
    while nothing is there."""

    def __init__(
        self, store: RecordedStore, ready: Ready, clock: Clock, expire: Callable[[], Awaitable[int]], poll_max: float
    ) -> None:
        self._store, self._ready, self._clock, self._expire, self._poll_max = store, ready, clock, expire, poll_max
        self._expired_at = float("-inf")
        self._rung = asyncio.Event()
        self.waiting = 0

    def ring(self) -> None:
        """Something became ready here."""
        self._rung.set()

    async def take(self, claim: Claim, wait: timedelta) -> list[Seen]:
        """Up to the claim's limit, waiting for the first for as long as `wait`."""
        taken = await self._finishing(claim)
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
                    taken = await self._finishing(claim)
                    if taken:
                        return taken
                    limit.reschedule(ends)
        except TimeoutError:
            if not limit.expired():
                raise
            return []
        finally:
            self.waiting -= 1

    async def again(self, claim: Claim) -> list[Seen]:
        """What an earlier asking of this claim took and still holds."""
        found = [await self._store.load(key) for key in dict.fromkeys(claim.tried)]
        return [seen for seen in found if seen is not None and _is_ours(seen, claim)]

    async def _finishing(self, claim: Claim) -> list[Seen]:
        """Claims, to the end; cancelled, gives back what was claimed."""
        task = asyncio.ensure_future(self._look(claim))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            for seen in await task:
                await self._give_back(seen)
            raise

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
                    claim.tried.extend(sign.key for sign in signs)
                    found = await asyncio.gather(*(self._claim(claim, sign) for sign in signs))
                    taken += [seen for seen in found if seen is not None]
                elif not self._ready.ends(queue):
                    await self._ready.list(queue, on=True)
                elif not listed:
                    await self._ready.list(queue)
                    listed = True
                else:
                    break
        return taken

    async def _claim(self, claim: Claim, sign: Sign) -> Seen | None:
        """The job, held; None if it is not to be had."""
        at = await self._store.time.now()
        seen = await self._store.looked_at(sign.key, entering=at + claim.silence)
        if isinstance(seen, StoreBroken):
            self._ready.spent(sign)
            _log.error("a job is passed over: %s", seen)
            return None
        if not await self._store.counts(sign, seen, at) or seen is None:
            return None  # not yet written, or no longer so
        stored = seen.stored
        held = rules.take(stored, at, worker=claim.worker, nonce=claim.nonce(stored.state.id), silence=claim.silence)
        if held is None:
            return None
        written = await self._store.write(seen, held)
        self._ready.spent(sign)
        return written

    async def _give_back(self, seen: Seen) -> None:
        """Undoes a claim of which nobody was told: the attempt was none."""
        at, before = await self._store.time.now(), seen.stored.state
        state = replace(
            before, place=Place.READY, token=before.token + 1, attempts=before.attempts - 1, worker="", taken_at=None,
            beat_at=None, until=None,
        )  # fmt: skip
        await self._store.write(seen, replace(seen.stored, state=state, rank=-rules.back(at)))
        self.ring()

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


def _is_ours(seen: Seen, claim: Claim) -> bool:
    state = seen.stored.state
    return rules.holds(seen.stored, Hold(state.id, state.token, claim.nonce(state.id)))
