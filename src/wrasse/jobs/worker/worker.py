"""Take, beat, call the handler, finish.

A worker holds a job from the claim until the backend has said how it ended, and sends heartbeats for it all that time.
Nothing is taken before the first heartbeat. When the backend is down, running handlers go on, what they finish is kept
and told when it is back, and the worker needs no restart. A stop claims nothing new, releases at once what no handler
has started, lets the rest finish within its grace, releases what did not without spending a retry, and
deregisters.

If the process dies instead, its heartbeats stop, and the sweep `stuck_jobs` gives its jobs to the next worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from wrasse.breaker import BreakerSettings
from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable, UsageError, first_error
from wrasse.ids import Ids
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.tally import Tally
from wrasse.jobs.trace import Spans
from wrasse.jobs.worker.breakers import Breakers
from wrasse.jobs.worker.completer import Completer
from wrasse.jobs.worker.fetcher import Fetcher, FetchOptions
from wrasse.jobs.worker.heartbeat import Heartbeat
from wrasse.jobs.worker.in_flight import InFlightJobs
from wrasse.jobs.worker.progress import ProgressReporter
from wrasse.jobs.worker.queue_selector import QueueSelector
from wrasse.jobs.worker.slots import Slots
from wrasse.ports.jobs import BATCH_MAX, Claim, JobQueue, Progress, Rate, WorkerInfo

_END_MAX = timedelta(seconds=5)  # for a handler that was cancelled, to end
_TELL_MAX = timedelta(seconds=10)  # for the backend to hear the last results
_PENDING_MAX = 10_000
_RETRY = RetryPolicy()

_log = logging.getLogger("wrasse.jobs")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works. `queues` are served in this order, all of the first before any of the second, unless there
    are `weights`. Of jobs that were rescued `alone_from` times or more it holds one at a time. With `breaker`, a queue
    whose jobs keep failing is left alone for a while."""

    queues: tuple[str, ...] = ("high", "low")
    concurrency: int = 16
    heartbeat_timeout: timedelta = timedelta(seconds=30)
    timeout: timedelta = timedelta(hours=1)
    retry: RetryPolicy = _RETRY
    wait: timedelta = timedelta(seconds=1)
    alone_from: int = 2
    weights: Mapping[str, int] = field(default_factory=dict)
    rates: tuple[Rate, ...] = ()
    breaker: BreakerSettings | None = None
    breaker_pause: timedelta = timedelta(seconds=0.1)

    def __post_init__(self) -> None:
        if not self.queues:
            raise UsageError("a worker without queues", do="name at least one queue")
        if self.concurrency < 1:
            raise UsageError(f"a worker with {self.concurrency} slots", do="give it at least one")
        if min(self.heartbeat_timeout, self.timeout) <= timedelta(0):
            raise UsageError("a heartbeat timeout or timeout of zero", do="give a duration greater than zero")


def worker_id() -> str:
    """A name for a worker of this process: no two are ever the same, and none holds a colon."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(6)}"


class _Parts:
    """What one run of a worker is made of."""

    def __init__(
        self, worker: Worker, jobs: JobQueue, handlers: Handlers, clock: Clock, settings: WorkerSettings
    ) -> None:
        tally, ids, room = worker.tally, Ids(clock), asyncio.Event()
        self.claims = InFlightJobs(
            settings.concurrency + 4 * BATCH_MAX, settings.heartbeat_timeout, settings.alone_from
        )
        self.teller = ProgressReporter(jobs, worker.info, settings.heartbeat_timeout)
        breakers = None if settings.breaker is None else worker.breakers
        self.settler = Completer(jobs, self.claims, tally, ids, room, self.teller, breakers)
        retry, count = settings.retry, settings.concurrency
        self.slots = Slots(
            count, handlers, self.claims, self.settler, retry, tally, clock, worker, room, breakers, worker.spans
        )
        asking = FetchOptions(
            QueueSelector(settings.queues, settings.weights),
            worker.info.id,
            settings.heartbeat_timeout,
            settings.timeout,
            settings.wait,
            settings.rates,
            settings.breaker_pause,
        )
        self.fetcher = Fetcher(jobs, asking, self.claims, self.slots, self.settler, tally, clock, ids, room, breakers)


class Worker:
    """Runs handlers for the jobs of some queues."""

    def __init__(
        self,
        jobs: JobQueue,
        handlers: Handlers,
        clock: Clock,
        beats: Heartbeat,
        settings: WorkerSettings | None = None,
        tally: Tally | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._jobs, self._handlers, self._clock, self._heartbeat = jobs, handlers, clock, beats
        self.settings = settings or WorkerSettings()
        self.spans = spans
        self.tally = tally if tally is not None else Tally()
        self.info = WorkerInfo(worker_id(), socket.gethostname(), os.getpid(), self.settings.concurrency)
        breaker, queues = self.settings.breaker, self.settings.queues
        self.breakers = None if breaker is None else Breakers(queues, breaker, clock, self.info.id)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._claims: InFlightJobs | None = None
        self._teller: ProgressReporter | None = None
        self._stop = asyncio.Event()
        self._patience = asyncio.Event()  # the grace was changed
        self._give_up_at: float | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop the worker runs in."""
        assert self._loop is not None, "only a running worker has handlers that ask"
        return self._loop

    async def mine(self, claim: Claim) -> bool:
        """Asks the backend whether a claim is current, and sends heartbeats for it by the way."""
        return (await self._jobs.heartbeat(self.info, [claim], heartbeat_timeout=self.settings.heartbeat_timeout)).mine[
            0
        ]

    def note_group(self, claim: Claim, group: int) -> None:
        """Posts the process group that a command runs in, for the heartbeat process to end if this process is
        killed."""
        if self._claims is not None:
            self._claims.note_group(claim, group)

    def note_progress(self, claim: Claim, progress: Progress) -> None:
        """Keeps what a handler says until it is told to the backend."""
        if self._teller is not None:
            self._teller.note(claim, progress)

    def stop(self, grace: timedelta) -> None:
        """Ends `run`: nothing new is claimed, and handlers have `grace` to finish. A second call may shorten it."""
        at = self._clock.monotonic() + grace.total_seconds()
        self._give_up_at = at if self._give_up_at is None else min(at, self._give_up_at)
        self._stop.set()
        self._patience.set()

    async def run(self) -> None:
        """Works until it is stopped. Cancelling it is a stop without grace."""
        self._loop = asyncio.get_running_loop()
        parts = _Parts(self, self._jobs, self._handlers, self._clock, self.settings)
        self._claims, self._teller = parts.claims, parts.teller
        try:
            async with asyncio.TaskGroup() as group:
                beats = self._heartbeat.run(parts.claims.board, self.info, self.settings.heartbeat_timeout)
                runs = (parts.slots.run(), parts.settler.run(), parts.teller.run(), beats)
                slots, *others = (group.create_task(task) for task in (*runs, self._heed(parts), self._pause(parts)))
                taking = group.create_task(parts.fetcher.run(self._heartbeat.state))
                try:
                    await self._stop.wait()
                except asyncio.CancelledError:
                    if any(task.done() for task in (slots, taking, *others)):
                        raise  # one of them failed: a restart is safe, going on is not
                    self.stop(timedelta(0))
                    await self._wind_down(parts, taking)
                    raise
                else:
                    await self._wind_down(parts, taking)
                finally:
                    for task in others:
                        task.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        finally:
            self._claims = self._teller = None
            parts.claims.close()
            await self._goodbye()
            await self._handlers.close()

    async def run_pending(self) -> int:
        """Runs what is ready now, and what that makes ready, in this loop and without heartbeats; gives how many
        attempts that took. For tests of handlers: what is scheduled, also by a failure, stays."""
        self._loop = asyncio.get_running_loop()
        # No process dies here, so nothing is held back for fear of it; and nobody comes back after a cooldown.
        settings = replace(self.settings, alone_from=_PENDING_MAX, breaker=None)
        parts = _Parts(self, self._jobs, self._handlers, self._clock, settings)
        self._teller = parts.teller
        ran = 0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(parts.settler.run())
                group.create_task(parts.slots.run())
                while ran < _PENDING_MAX:
                    taken = await parts.fetcher.claim(self.settings.concurrency, timedelta(0))
                    await parts.slots.quiet()
                    await parts.settler.drained()
                    if not taken:
                        break
                    ran += taken
                parts.slots.close()
                parts.settler.close()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        finally:
            self._teller = None
            parts.claims.close()
            if parts.teller.wrote:
                await self._goodbye()
            await self._handlers.close()
        return ran

    async def _heed(self, parts: _Parts) -> None:
        """Cuts handlers whose claim is gone. What has ended by itself is left to the settler, which will be told."""
        while True:
            for gone in await self._heartbeat.state.gone():
                work = parts.claims.find(gone)
                if work is not None:
                    parts.slots.cut(work)

    async def _pause(self, parts: _Parts) -> None:
        """Ends a claim that waits when heartbeats stop going out."""
        while True:
            await self._heartbeat.state.until_sending()
            await self._heartbeat.state.until_not_sending()
            parts.fetcher.cut_short()

    async def _wind_down(self, parts: _Parts, taking: asyncio.Task[None]) -> None:
        taking.cancel()
        await asyncio.wait([taking])
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_MAX.total_seconds()):
                await parts.fetcher.recover()
        parts.slots.release("the worker stopped")
        await self._finish_within_grace(parts)
        parts.slots.cut_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_MAX.total_seconds()):
                await parts.slots.quiet()
        parts.slots.abandon("the worker stopped and the handler did not end")
        parts.slots.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_TELL_MAX.total_seconds()):
                await parts.settler.drained()
        if parts.settler.unsettled:
            _log.warning(
                "stopped before the backend took the results; their jobs run again",
                extra={"worker_id": self.info.id, "count": parts.settler.unsettled},
            )

    async def _finish_within_grace(self, parts: _Parts) -> None:
        while self._give_up_at is not None and (left := self._give_up_at - self._clock.monotonic()) > 0:
            self._patience.clear()
            async with asyncio.TaskGroup() as group:
                quiet, changed = group.create_task(parts.slots.quiet()), group.create_task(self._patience.wait())
                await asyncio.wait((quiet, changed), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                quiet.cancel()
                changed.cancel()
            if quiet.done() and not quiet.cancelled():
                return

    async def _goodbye(self) -> None:
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(_END_MAX.total_seconds()):
                await self._jobs.heartbeat(self.info, (), heartbeat_timeout=timedelta(0))
