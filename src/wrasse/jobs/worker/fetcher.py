"""Claims jobs: enough to keep the slots busy, and little more.

A fast worker prefetches what it will start within AHEAD, measured by how fast attempts ended lately; a slow one claims
only what it has free slots for. Prefetched jobs that no slot has started within 1 s are released: the handlers got
slower, and another worker may be free.

When a job kills its worker, all jobs in flight there are rescued with it, and could be claimed together and killed
together until their rescues are spent. So of the jobs that were rescued several times a worker runs only one at a time:
the next death then identifies the job that caused it.

A queue whose breaker is open is not claimed from; after its cooldown one job of it is claimed as a probe, and more only
if that succeeds. The other queues continue.

Nothing is claimed unless heartbeats go out. A claim whose answer is unknown, because the backend did not answer or the
wait was cancelled, is repeated under the same request id, so that no job stays claimed by a worker that does not know
of it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from datetime import timedelta

from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.jobs.worker.breakers import Breakers
from wrasse.jobs.worker.completer import RETRY_BACKOFF, Completer, refused_by_breaker, released_suspect
from wrasse.jobs.worker.context import WorkerContext
from wrasse.jobs.worker.heartbeat import HeartbeatState
from wrasse.jobs.worker.queue_selector import QueueSelector
from wrasse.jobs.worker.running_job import InFlightJob, JobStage
from wrasse.jobs.worker.slots import Slots
from wrasse.ports.jobs import BATCH_MAX, ClaimedJob, Reason

AHEAD = 0.1  # seconds of work
_MEASURED = 0.1  # seconds over which the speed is measured
_UNSTARTED_MAX = 1.0  # seconds a claimed job may wait for a slot
_RESULT_BYTES_MAX = 64 << 20

_log = logging.getLogger("wrasse.jobs")


class Speed:
    """How many attempts ended per second lately."""

    __slots__ = ("_at", "_count", "per_second")

    def __init__(self, now: float) -> None:
        self._at = now
        self._count = 0
        self.per_second = 0.0

    def update(self, ended: int, now: float) -> None:
        """Updates the rate with the total number of ended attempts."""
        passed = now - self._at
        if passed <= 0:
            return
        weight = min(passed / _MEASURED, 1.0)
        self.per_second += weight * ((ended - self._count) / passed - self.per_second)
        self._at, self._count = now, ended


class Fetcher:
    """Claims jobs for one worker and feeds them to its slots."""

    def __init__(self, context: WorkerContext, slots: Slots, completer: Completer) -> None:
        self._jobs, self._claims, self._settings = context.jobs, context.claims, context.settings
        self._tally, self._clock, self._ids = context.telemetry.tally, context.clock, context.ids
        self._breakers, self._capacity, self._worker_id = context.breakers, context.capacity, context.info.id
        self._slots, self._completer = slots, completer
        self._selector = QueueSelector(self._settings.queues, self._settings.weights)
        self._speed = Speed(self._clock.monotonic())
        self._allowed = self._settings.timeout.total_seconds()
        self._request = ""  # of a claim whose answer is not known
        self._failed = 0
        self._wait: asyncio.Timeout | None = None
        self._delayed_suspect: InFlightJob | None = None  # claimed, and started once other suspects are released

    async def run(self, heartbeat: HeartbeatState) -> None:
        """Claims until cancelled."""
        while True:
            await heartbeat.until_sending()
            limit = self._limit()
            try:
                if limit > 0:
                    await self.claim(limit, self._settings.wait)
                else:
                    await self._until_capacity()
            except (StoreUnavailable, StoreBroken) as error:
                await self._unavailable(error)
            self._release_unstarted()

    async def claim(self, limit: int, wait: timedelta) -> int:
        """Claims at most `limit` jobs and feeds them to the slots; returns their number."""
        queues = self._selector.following()
        if self._breakers is not None:
            closed = self._breakers.closed(queues)
            if len(closed) < len(queues):
                return await self._claim_around(self._breakers, queues, closed, limit, wait)
        return await self._claim(queues, limit, wait)

    async def _claim_around(
        self, breakers: Breakers, queues: tuple[str, ...], closed: tuple[str, ...], limit: int, wait: timedelta
    ) -> int:
        """A claim while not every breaker is closed: one job per queue to probe, the rest from closed ones."""
        # An earlier claim may have got jobs: they are recovered whatever the state of their queue's breaker.
        count = await self._claim((), 1, timedelta(0)) if self._request else 0
        for queue in breakers.to_probe(queues):
            if count < limit:
                count += await self._claim((queue,), 1, timedelta(0))
        if closed and count < limit:
            # A cooldown that ends during the wait is noticed at its end.
            ends = breakers.until_probe()
            wait = min(wait, timedelta(seconds=ends)) if ends else wait
            return count + await self._claim(closed, limit - count, timedelta(0) if count else wait)
        if not count:
            await asyncio.sleep(self._settings.breaker_pause.total_seconds())
        return count

    async def _claim(self, queues: tuple[str, ...], limit: int, wait: timedelta) -> int:
        self._request = self._request or self._ids.new()
        try:
            async with asyncio.timeout(None) as self._wait:
                settings = self._settings
                claimed = await self._jobs.claim(
                    queues,
                    min(limit, BATCH_MAX),
                    worker=self._worker_id,
                    heartbeat_timeout=settings.heartbeat_timeout,
                    request=self._request,
                    wait=wait,
                    rates=settings.rates,
                )
        except TimeoutError:
            return 0  # cancelled: the request is repeated when heartbeats go out again
        finally:
            self._wait = None
        self._request = ""
        self._failed = 0
        for each in claimed.rejected:
            self._tally.fail(each.queue, Reason.INVALID_PAYLOAD)
            self._tally.dead.add(each.queue)
            extra = {"job_id": each.id, "queue": each.queue, "worker_id": self._worker_id}
            _log.error("an entry of queue %s was dead-lettered as invalid: %s", each.queue, each.error, extra=extra)
        self._feed(claimed.jobs)
        if self._delayed_suspect is not None:
            # The other suspects must be released before it starts.
            await self._completer.drained()
            self._start_delayed_suspect()
        return len(claimed.jobs)

    def cancel_wait(self) -> None:
        """Ends the wait of a claim in progress."""
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(0)

    async def recover(self) -> None:
        """Recovers the jobs that a cancelled claim may have got."""
        self._start_delayed_suspect()
        if self._request:
            # With no queue: the first answer is returned again, if there was one, and nothing new is claimed.
            with suppress(StoreUnavailable, StoreBroken):
                await self._claim((), 1, timedelta(0))

    def _limit(self) -> int:
        """How many jobs to claim now; also sets the low-water mark of the backlog."""
        self._speed.update(self._slots.ended, self._clock.monotonic())
        ahead = min(int(self._speed.per_second * AHEAD), self._claims.table.places)
        waiting = len(self._slots.backlog)
        self._slots.prefetch_low_water = ahead // 2
        self._capacity.clear()
        if waiting > ahead // 2 or self._completer.bytes > _RESULT_BYTES_MAX:
            return 0
        return min(self._slots.idle + ahead - waiting, self._claims.free)

    async def _until_capacity(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_UNSTARTED_MAX):
                await self._capacity.wait()

    def _feed(self, claimed: tuple[ClaimedJob, ...]) -> None:
        now = self._clock.monotonic()
        works = []
        suspected_poison: InFlightJob | None = None
        for claimed_job in claimed:
            timeout = claimed_job.job.timeout
            work = self._claims.add(claimed_job, now, self._allowed if timeout is None else timeout.total_seconds())
            self._tally.consumed.add(claimed_job.job.queue)
            if self._breakers is not None and not self._breakers.admit(work):
                # Claimed before the breaker opened, answered after.
                self._completer.add(work, refused_by_breaker(claimed_job))
            elif claimed_job.rescues < self._claims.isolate_after:
                works.append(work)
            elif self._claims.suspected_poison == 1:
                suspected_poison = work
            else:
                self._completer.add(work, released_suspect(claimed_job, random.random()))
                self._delayed_suspect = suspected_poison
        if suspected_poison is not None and self._delayed_suspect is None:
            works.append(suspected_poison)
        if works:
            self._slots.feed(works)

    def _start_delayed_suspect(self) -> None:
        work, self._delayed_suspect = self._delayed_suspect, None
        if work is not None and work.stage is JobStage.WAITING:
            self._slots.feed((work,))

    def _release_unstarted(self) -> None:
        backlog = self._slots.backlog
        if backlog and self._clock.monotonic() - backlog[0].since > _UNSTARTED_MAX:
            self._slots.release("was prefetched and not started within a second")

    async def _unavailable(self, error: StoreUnavailable | StoreBroken) -> None:
        self._failed += 1
        self._tally.unavailable += 1
        if self._failed == 1:
            broken = isinstance(error, StoreBroken)  # a person has to repair it; other work of the process continues
            text = f"{error.message}; {error.do}" if broken else error.message
            level = logging.ERROR if broken else logging.WARNING
            _log.log(level, "no jobs are claimed: %s", text, extra={"worker_id": self._worker_id})
        await asyncio.sleep(RETRY_BACKOFF.delay(self._failed, random.random()).total_seconds())
