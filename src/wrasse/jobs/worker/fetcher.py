"""Claiming jobs: enough to keep the slots busy, and hardly more.

A fast worker prefetches what it will start within AHEAD, measured by how fast it ended jobs just now; a slow one claims
only what it has free slots for. Prefetched jobs that no slot has started within 1 s are released: the handlers got
slower than they were, and another worker may be free.

When a job kills its worker, all that the worker held are rescued with it, and would be taken together and killed
together again until all their rescues are spent. So of the jobs that have been in several deaths a worker holds only
one at a time: the next death then tells which it was.

A queue whose breaker is open is left out; when its cooldown is over one job of it is claimed, and the rest only if that
went well. The other queues go on.

Nothing is claimed unless heartbeats go out. A claim whose answer is not known, because the backend did not answer or
because the wait was cut short, is asked again under the same request id, so that no job is held by a worker that does
not know.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.ids import Ids
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.breakers import Breakers
from wrasse.jobs.worker.completer import RETRY_BACKOFF, Completer
from wrasse.jobs.worker.heartbeat import HeartbeatState
from wrasse.jobs.worker.in_flight import InFlightJob, InFlightJobs, JobStage
from wrasse.jobs.worker.outcome import held_back, shut_out
from wrasse.jobs.worker.queue_selector import QueueSelector
from wrasse.jobs.worker.slots import Slots
from wrasse.ports.jobs import BATCH_MAX, ClaimedJob, JobQueue, Rate, Reason

AHEAD = 0.1  # seconds of work
_MEASURED = 0.1  # seconds over which the speed is measured
_UNSTARTED_MAX = 1.0  # seconds a claimed job may wait for a slot
_RESULT_BYTES_MAX = 64 << 20

_log = logging.getLogger("wrasse.jobs")


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """What a worker asks the backend for."""

    turns: QueueSelector  # which queues, and in which order
    worker: str
    heartbeat_timeout: timedelta
    timeout: timedelta  # of a job that has none of its own
    wait: timedelta  # how long one claim waits for a job
    rates: tuple[Rate, ...] = ()
    breaker_pause: timedelta = timedelta(seconds=0.1)  # how long to rest where every queue's breaker is open


class Speed:
    """How many attempts a second ended lately."""

    __slots__ = ("_at", "_count", "per_second")

    def __init__(self, now: float) -> None:
        self._at = now
        self._count = 0
        self.per_second = 0.0

    def look(self, ended: int, now: float) -> None:
        """Takes in how many have ended by now, in all."""
        passed = now - self._at
        if passed <= 0:
            return
        weight = min(passed / _MEASURED, 1.0)
        self.per_second += weight * ((ended - self._count) / passed - self.per_second)
        self._at, self._count = now, ended


class Fetcher:
    """Claims jobs for one worker and feeds them to its slots."""

    def __init__(
        self,
        jobs: JobQueue,
        asking: FetchOptions,
        claims: InFlightJobs,
        slots: Slots,
        settler: Completer,
        tally: Tally,
        clock: Clock,
        ids: Ids,
        room: asyncio.Event,
        breakers: Breakers | None = None,
    ) -> None:
        self._jobs, self._asking, self._claims, self._slots = jobs, asking, claims, slots
        self._settler, self._tally, self._clock, self._ids, self._room = settler, tally, clock, ids, room
        self._breakers = breakers
        self._speed = Speed(clock.monotonic())
        self._allowed = asking.timeout.total_seconds()
        self._request = ""  # of a claim whose answer is not known
        self._failed = 0
        self._wait: asyncio.Timeout | None = None
        self._kept_waiting: InFlightJob | None = None  # claimed, and not started before others are released

    async def run(self, beats: HeartbeatState) -> None:
        """Claims until cancelled."""
        while True:
            await beats.until_sending()
            limit = self._limit()
            try:
                if limit > 0:
                    await self.claim(limit, self._asking.wait)
                else:
                    await self._until_room()
            except (StoreUnavailable, StoreBroken) as error:
                await self._unavailable(error)
            self._shed()

    async def claim(self, limit: int, wait: timedelta) -> int:
        """One claim of at most so many, fed to the slots; gives how many came."""
        queues = self._asking.turns.following()
        if self._breakers is not None:
            closed = self._breakers.closed(queues)
            if len(closed) < len(queues):
                return await self._claim_around(self._breakers, queues, closed, limit, wait)
        return await self._claim(queues, limit, wait)

    async def _claim_around(
        self, breakers: Breakers, queues: tuple[str, ...], closed: tuple[str, ...], limit: int, wait: timedelta
    ) -> int:
        """A claim while not every breaker is closed: one job where one may be tried, and freely from the rest."""
        # What an earlier claim may have got is held already, and must be known whatever its queue's breaker says.
        taken = await self._claim((), 1, timedelta(0)) if self._request else 0
        for queue in breakers.to_probe(queues):
            if taken < limit:
                taken += await self._claim((queue,), 1, timedelta(0))
        if closed and taken < limit:
            # A cooldown that ends during the wait is noticed at its end.
            ends = breakers.until_probe()
            wait = min(wait, timedelta(seconds=ends)) if ends else wait
            return taken + await self._claim(closed, limit - taken, timedelta(0) if taken else wait)
        if not taken:
            await asyncio.sleep(self._asking.breaker_pause.total_seconds())
        return taken

    async def _claim(self, queues: tuple[str, ...], limit: int, wait: timedelta) -> int:
        self._request = self._request or self._ids.new()
        try:
            async with asyncio.timeout(None) as self._wait:
                asking = self._asking
                claimed = await self._jobs.claim(
                    queues,
                    min(limit, BATCH_MAX),
                    worker=asking.worker,
                    heartbeat_timeout=asking.heartbeat_timeout,
                    request=self._request,
                    wait=wait,
                    rates=asking.rates,
                )
        except TimeoutError:
            return 0  # cut short: the answer is asked for again when heartbeats go out
        finally:
            self._wait = None
        self._request = ""
        self._failed = 0
        for each in claimed.rejected:
            self._tally.fail(each.queue, Reason.INVALID_PAYLOAD)
            self._tally.dead.add(each.queue)
            told = {"job_id": each.id, "queue": each.queue, "worker_id": asking.worker}
            _log.error("an entry of queue %s was dead-lettered as invalid: %s", each.queue, each.error, extra=told)
        self._feed(claimed.jobs)
        if self._kept_waiting is not None:
            # The others must be out of harm's way before it starts.
            await self._settler.drained()
            self._start_kept_waiting()
        return len(claimed.jobs)

    def cut_short(self) -> None:
        """Ends a claim that waits for a job."""
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(0)

    async def recover(self) -> None:
        """Finds out what a claim that was cut short has taken after all."""
        self._start_kept_waiting()
        if self._request:
            # From no queue at all: the first answer comes again, if there was one, and nothing new is claimed.
            with suppress(StoreUnavailable, StoreBroken):
                await self._claim((), 1, timedelta(0))

    def _limit(self) -> int:
        """How many to ask for now; the backlog at which to ask again is noted."""
        self._speed.look(self._slots.ended, self._clock.monotonic())
        ahead = min(int(self._speed.per_second * AHEAD), self._claims.board.places)
        waiting = len(self._slots.backlog)
        self._slots.hungry_at = ahead // 2
        self._room.clear()
        if waiting > ahead // 2 or self._settler.bytes > _RESULT_BYTES_MAX:
            return 0
        return min(self._slots.idle + ahead - waiting, self._claims.free)

    async def _until_room(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_UNSTARTED_MAX):
                await self._room.wait()

    def _feed(self, claimed: tuple[ClaimedJob, ...]) -> None:
        now = self._clock.monotonic()
        works = []
        fragile: InFlightJob | None = None
        for one in claimed:
            timeout = one.job.timeout
            work = self._claims.add(one, now, self._allowed if timeout is None else timeout.total_seconds())
            self._tally.consumed.add(one.job.queue)
            if self._breakers is not None and not self._breakers.admit(work):
                # Taken by a call from before the breaker opened, whose answer came late.
                self._settler.add(work, shut_out(one))
            elif one.rescues < self._claims.alone_from:
                works.append(work)
            elif self._claims.fragile == 1:
                fragile = work
            else:
                self._settler.add(work, held_back(one, random.random()))
                self._kept_waiting = fragile
        if fragile is not None and self._kept_waiting is None:
            works.append(fragile)
        if works:
            self._slots.feed(works)

    def _start_kept_waiting(self) -> None:
        work, self._kept_waiting = self._kept_waiting, None
        if work is not None and work.stage is JobStage.WAITING:
            self._slots.feed((work,))

    def _shed(self) -> None:
        backlog = self._slots.backlog
        if backlog and self._clock.monotonic() - backlog[0].since > _UNSTARTED_MAX:
            self._slots.release("was prefetched and not started within a second")

    async def _unavailable(self, error: StoreUnavailable | StoreBroken) -> None:
        self._failed += 1
        self._tally.unavailable += 1
        if self._failed == 1:
            broken = isinstance(error, StoreBroken)  # a person has to mend it; what else the process does goes on
            text = f"{error.message}; {error.do}" if broken else error.message
            level = logging.ERROR if broken else logging.WARNING
            _log.log(level, "no jobs are claimed: %s", text, extra={"worker_id": self._asking.worker})
        await asyncio.sleep(RETRY_BACKOFF.delay(self._failed, random.random()).total_seconds())
