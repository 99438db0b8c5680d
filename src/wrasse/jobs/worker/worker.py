"""The worker: claims jobs, sends heartbeats, runs handlers, settles outcomes.

A worker sends heartbeats for a job from its claim until it is settled. Nothing is claimed before the first heartbeat.
When the backend is down, running handlers continue, their results are kept and settled when it is back, and the worker
needs no restart. A stop claims nothing new, releases jobs that no handler has started, lets the rest finish within its
grace, releases unfinished jobs without spending a retry, then deregisters.

If the process dies instead, its heartbeats stop, and the sweep `stuck_jobs` makes its jobs ready again.
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
from wrasse.jobs.worker.completer import Completer, ProgressReporter
from wrasse.jobs.worker.fetcher import Fetcher, FetchOptions
from wrasse.jobs.worker.heartbeat import Heartbeat
from wrasse.jobs.worker.queue_selector import QueueSelector
from wrasse.jobs.worker.running_job import InFlightJobs
from wrasse.jobs.worker.slots import Slots
from wrasse.ports.jobs import BATCH_MAX, Claim, JobQueue, Progress, Rate, WorkerInfo

_END_MAX = timedelta(seconds=5)  # for a handler that was cancelled, to end
_SETTLE_MAX = timedelta(seconds=10)  # to settle the last results
_PENDING_MAX = 10_000
_RETRY = RetryPolicy()

_log = logging.getLogger("wrasse.jobs")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works. `queues` are served in this order, all of the first before any of the second, unless there
    are `weights`. Of jobs that were rescued `isolate_after` times or more it runs one at a time. With `breaker`, a
    queue whose jobs keep failing is paused for a while."""

    queues: tuple[str, ...] = ("high", "low")
    concurrency: int = 16
    heartbeat_timeout: timedelta = timedelta(seconds=30)
    timeout: timedelta = timedelta(hours=1)
    retry: RetryPolicy = _RETRY
    wait: timedelta = timedelta(seconds=1)
    isolate_after: int = 2
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
    """A unique id for a worker of this process, without a colon."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(6)}"


class _Parts:
    """The components of one run of a worker."""

    def __init__(
        self, worker: Worker, jobs: JobQueue, handlers: Handlers, clock: Clock, settings: WorkerSettings
    ) -> None:
        tally, ids, capacity = worker.tally, Ids(clock), asyncio.Event()
        self.claims = InFlightJobs(
            settings.concurrency + 4 * BATCH_MAX, settings.heartbeat_timeout, settings.isolate_after
        )
        self.reporter = ProgressReporter(jobs, worker.info, settings.heartbeat_timeout)
        breakers = None if settings.breaker is None else worker.breakers
        self.completer = Completer(jobs, self.claims, tally, ids, capacity, self.reporter, breakers)
        retry, count = settings.retry, settings.concurrency
        self.slots = Slots(
            count, handlers, self.claims, self.completer, retry, tally, clock, worker, capacity, breakers, worker.spans
        )
        options = FetchOptions(
            QueueSelector(settings.queues, settings.weights),
            worker.info.id,
            settings.heartbeat_timeout,
            settings.timeout,
            settings.wait,
            settings.rates,
            settings.breaker_pause,
        )
        self.fetcher = Fetcher(
            jobs, options, self.claims, self.slots, self.completer, tally, clock, ids, capacity, breakers
        )


class Worker:
    """Runs handlers for the jobs of some queues."""

    def __init__(
        self,
        jobs: JobQueue,
        handlers: Handlers,
        clock: Clock,
        heartbeat: Heartbeat,
        settings: WorkerSettings | None = None,
        tally: Tally | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._jobs, self._handlers, self._clock, self._heartbeat = jobs, handlers, clock, heartbeat
        self.settings = settings or WorkerSettings()
        self.spans = spans
        self.tally = tally if tally is not None else Tally()
        self.info = WorkerInfo(worker_id(), socket.gethostname(), os.getpid(), self.settings.concurrency)
        breaker, queues = self.settings.breaker, self.settings.queues
        self.breakers = None if breaker is None else Breakers(queues, breaker, clock, self.info.id)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._claims: InFlightJobs | None = None
        self._reporter: ProgressReporter | None = None
        self._stop = asyncio.Event()
        self._grace_changed = asyncio.Event()  # set when the grace is shortened
        self._give_up_at: float | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop the worker runs in."""
        assert self._loop is not None, "only a running worker has a loop"
        return self._loop

    async def mine(self, claim: Claim) -> bool:
        """Whether the backend says a claim is current; the call is also a heartbeat for it."""
        return (await self._jobs.heartbeat(self.info, [claim], heartbeat_timeout=self.settings.heartbeat_timeout)).mine[
            0
        ]

    def note_group(self, claim: Claim, group: int) -> None:
        """Stores the process group of a command, which the heartbeat process ends if this process is killed."""
        if self._claims is not None:
            self._claims.note_group(claim, group)

    def note_progress(self, claim: Claim, progress: Progress) -> None:
        """Keeps a handler's progress until it is written."""
        if self._reporter is not None:
            self._reporter.note(claim, progress)

    def stop(self, grace: timedelta) -> None:
        """Ends `run`: nothing new is claimed, and handlers have `grace` to finish. A second call may shorten it."""
        at = self._clock.monotonic() + grace.total_seconds()
        self._give_up_at = at if self._give_up_at is None else min(at, self._give_up_at)
        self._stop.set()
        self._grace_changed.set()

    async def run(self) -> None:
        """Works until it is stopped. Cancelling it is a stop without grace."""
        self._loop = asyncio.get_running_loop()
        parts = _Parts(self, self._jobs, self._handlers, self._clock, self.settings)
        self._claims, self._reporter = parts.claims, parts.reporter
        try:
            async with asyncio.TaskGroup() as group:
                heartbeat = self._heartbeat.run(parts.claims.table, self.info, self.settings.heartbeat_timeout)
                runs = (parts.slots.run(), parts.completer.run(), parts.reporter.run(), heartbeat)
                slots, *others = (
                    group.create_task(task) for task in (*runs, self._cancel_gone(parts), self._cancel_waits(parts))
                )
                fetching = group.create_task(parts.fetcher.run(self._heartbeat.state))
                try:
                    await self._stop.wait()
                except asyncio.CancelledError:
                    if any(task.done() for task in (slots, fetching, *others)):
                        raise  # one of them failed: a restart is safe, continuing is not
                    self.stop(timedelta(0))
                    await self._wind_down(parts, fetching)
                    raise
                else:
                    await self._wind_down(parts, fetching)
                finally:
                    for task in others:
                        task.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        finally:
            self._claims = self._reporter = None
            parts.claims.close()
            await self._deregister()
            await self._handlers.close()

    async def run_pending(self) -> int:
        """Runs what is ready now, and what that makes ready, in this loop and without heartbeats; returns the number of
        attempts. For tests of handlers: scheduled jobs, also after a failure, stay."""
        self._loop = asyncio.get_running_loop()
        # No process dies here, so no job is isolated; and a test does not wait for a cooldown.
        settings = replace(self.settings, isolate_after=_PENDING_MAX, breaker=None)
        parts = _Parts(self, self._jobs, self._handlers, self._clock, settings)
        self._reporter = parts.reporter
        ran = 0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(parts.completer.run())
                group.create_task(parts.slots.run())
                while ran < _PENDING_MAX:
                    count = await parts.fetcher.claim(self.settings.concurrency, timedelta(0))
                    await parts.slots.quiet()
                    await parts.completer.drained()
                    if not count:
                        break
                    ran += count
                parts.slots.close()
                parts.completer.close()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        finally:
            self._reporter = None
            parts.claims.close()
            if parts.reporter.wrote:
                await self._deregister()
            await self._handlers.close()
        return ran

    async def _cancel_gone(self, parts: _Parts) -> None:
        """Cancels handlers whose claim is gone. Ended attempts are left to the completer, whose settle is refused."""
        while True:
            for entry in await self._heartbeat.state.gone():
                work = parts.claims.find(entry)
                if work is not None:
                    parts.slots.cut(work)

    async def _cancel_waits(self, parts: _Parts) -> None:
        """Ends the wait of a claim when heartbeats stop going out."""
        while True:
            await self._heartbeat.state.until_sending()
            await self._heartbeat.state.until_not_sending()
            parts.fetcher.cancel_wait()

    async def _wind_down(self, parts: _Parts, fetching: asyncio.Task[None]) -> None:
        fetching.cancel()
        await asyncio.wait([fetching])
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
            async with asyncio.timeout(_SETTLE_MAX.total_seconds()):
                await parts.completer.drained()
        if parts.completer.unsettled:
            _log.warning(
                "stopped before the results were settled; their jobs run again",
                extra={"worker_id": self.info.id, "count": parts.completer.unsettled},
            )

    async def _finish_within_grace(self, parts: _Parts) -> None:
        while self._give_up_at is not None and (left := self._give_up_at - self._clock.monotonic()) > 0:
            self._grace_changed.clear()
            async with asyncio.TaskGroup() as group:
                quiet, changed = group.create_task(parts.slots.quiet()), group.create_task(self._grace_changed.wait())
                await asyncio.wait((quiet, changed), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                quiet.cancel()
                changed.cancel()
            if quiet.done() and not quiet.cancelled():
                return

    async def _deregister(self) -> None:
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(_END_MAX.total_seconds()):
                await self._jobs.heartbeat(self.info, (), heartbeat_timeout=timedelta(0))
