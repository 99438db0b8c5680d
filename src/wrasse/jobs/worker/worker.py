"""The worker: claims jobs, runs their handlers, settles the outcomes, and sends heartbeats meanwhile.

A job passes through three components: the fetcher claims it and adds it to the backlog, a slot runs its handler, and
the completer settles its outcome. From its claim until it is settled it is in flight (`running_job`), which is when the
heartbeat process extends its claim.

Nothing is claimed before the first heartbeat. When the backend is down, running handlers continue, their results are
kept and settled when it is back, and the worker needs no restart. A stop claims nothing new, releases jobs that no
handler has started, lets the rest finish within its grace, releases unfinished jobs without spending a retry, then
deregisters.

If the process dies instead, its heartbeats stop, and the sweep `stuck_jobs` makes its jobs ready again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable, first_error
from wrasse.ids import Ids
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.worker.breakers import Breakers
from wrasse.jobs.worker.completer import Completer, ProgressReporter
from wrasse.jobs.worker.context import Telemetry, WorkerContext, WorkerSettings
from wrasse.jobs.worker.fetcher import Fetcher
from wrasse.jobs.worker.heartbeat import Heartbeat
from wrasse.jobs.worker.running_job import InFlightJobs
from wrasse.jobs.worker.slots import Slots
from wrasse.ports.jobs import BATCH_MAX, Claim, JobQueue, Progress, WorkerInfo

_END_MAX = 5.0  # seconds for a handler that was cancelled, to end
_SETTLE_MAX = 10.0  # seconds to settle the last results
_PENDING_MAX = 10_000

_log = logging.getLogger("wrasse.jobs")


def worker_id() -> str:
    """A unique id for a worker of this process, without a colon."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(6)}"


class _Components:
    """The components of one run: the fetcher claims, the slots run handlers, the completer settles."""

    def __init__(self, context: WorkerContext, handlers: Handlers, worker: Worker) -> None:
        self.claims = context.claims
        self.reporter = ProgressReporter(context)
        self.completer = Completer(context, self.reporter)
        self.slots = Slots(context, handlers, self.completer, worker)
        self.fetcher = Fetcher(context, self.slots, self.completer)


class Worker:
    """Runs handlers for the jobs of some queues."""

    def __init__(
        self,
        jobs: JobQueue,
        handlers: Handlers,
        clock: Clock,
        heartbeat: Heartbeat,
        settings: WorkerSettings | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._jobs, self._handlers, self._clock, self._heartbeat = jobs, handlers, clock, heartbeat
        self.settings, self._telemetry = settings or WorkerSettings(), telemetry or Telemetry()
        self.tally = self._telemetry.tally
        self.info = WorkerInfo(worker_id(), socket.gethostname(), os.getpid(), self.settings.concurrency)
        breaker, queues = self.settings.breaker, self.settings.queues
        self.breakers = None if breaker is None else Breakers(queues, breaker, clock, self.info.id)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: _Components | None = None
        self._stop = asyncio.Event()
        self._grace_changed = asyncio.Event()  # set when the grace is shortened
        self._give_up_at: float | None = None

    def stop(self, grace: timedelta) -> None:
        """Ends `run`: nothing new is claimed, and handlers have `grace` to finish. A second call may shorten it."""
        at = self._clock.monotonic() + grace.total_seconds()
        self._give_up_at = at if self._give_up_at is None else min(at, self._give_up_at)
        self._stop.set()
        self._grace_changed.set()

    async def run(self) -> None:
        """Works until it is stopped. Cancelling it is a stop without grace."""
        run = self._start(self.settings)
        try:
            async with asyncio.TaskGroup() as group:
                heartbeat = self._heartbeat.run(run.claims.table, self.info, self.settings.heartbeat_timeout)
                bodies = (run.slots.run(), run.completer.run(), run.reporter.run(), heartbeat)
                slots, *others = (
                    group.create_task(body) for body in (*bodies, self._cancel_gone(run), self._cancel_waits(run))
                )
                fetching = group.create_task(run.fetcher.run(self._heartbeat.state))
                try:
                    await self._stop.wait()
                except asyncio.CancelledError:
                    if any(task.done() for task in (slots, fetching, *others)):
                        raise  # one of them failed: a restart is safe, continuing is not
                    self.stop(timedelta(0))
                    await self._wind_down(run, fetching)
                    raise
                else:
                    await self._wind_down(run, fetching)
                finally:
                    for task in others:
                        task.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        finally:
            self._running = None
            run.claims.close()
            await self._deregister()
            await self._handlers.close()

    async def run_pending(self) -> int:
        """Runs what is ready now, and what that makes ready, in this loop and without heartbeats; returns the number of
        attempts. For tests of handlers: scheduled jobs, also after a failure, stay."""
        # No process dies here, so no job is isolated; and a test does not wait for a cooldown.
        run = self._start(replace(self.settings, isolate_after=_PENDING_MAX, breaker=None))
        ran = 0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.completer.run())
                group.create_task(run.slots.run())
                while ran < _PENDING_MAX:
                    count = await run.fetcher.claim(self.settings.concurrency, timedelta(0))
                    await run.slots.quiet()
                    await run.completer.drained()
                    if not count:
                        break
                    ran += count
                run.slots.close()
                run.completer.close()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        finally:
            self._running = None
            run.claims.close()
            if run.reporter.wrote:
                await self._deregister()
            await self._handlers.close()
        return ran

    def _start(self, settings: WorkerSettings) -> _Components:
        """Makes the components of a run. The heartbeat table has room for what runs and for what was prefetched."""
        places = settings.concurrency + 4 * BATCH_MAX
        context = WorkerContext(
            jobs=self._jobs,
            info=self.info,
            settings=settings,
            clock=self._clock,
            ids=Ids(self._clock),
            telemetry=self._telemetry,
            claims=InFlightJobs(places, settings.heartbeat_timeout, settings.isolate_after),
            breakers=None if settings.breaker is None else self.breakers,
            capacity=asyncio.Event(),
        )
        self._loop = asyncio.get_running_loop()
        self._running = _Components(context, self._handlers, self)
        return self._running

    async def _cancel_gone(self, run: _Components) -> None:
        """Cancels handlers whose claim is gone. Ended attempts are left to the completer, whose settle is refused."""
        while True:
            for entry in await self._heartbeat.state.gone():
                work = run.claims.find(entry)
                if work is not None:
                    run.slots.cut(work)

    async def _cancel_waits(self, run: _Components) -> None:
        """Ends the wait of a claim when heartbeats stop going out."""
        while True:
            await self._heartbeat.state.until_sending()
            await self._heartbeat.state.until_not_sending()
            run.fetcher.cancel_wait()

    async def _wind_down(self, run: _Components, fetching: asyncio.Task[None]) -> None:
        fetching.cancel()
        await asyncio.wait([fetching])
        await _at_most(_END_MAX, run.fetcher.recover())
        run.slots.release("the worker stopped")
        await self._finish_within_grace(run)
        run.slots.cut_all()
        await _at_most(_END_MAX, run.slots.quiet())
        run.slots.abandon("the worker stopped and the handler did not end")
        run.slots.close()
        await _at_most(_SETTLE_MAX, run.completer.drained())
        if run.completer.unsettled:
            _log.warning(
                "stopped before the results were settled; their jobs run again",
                extra={"worker_id": self.info.id, "count": run.completer.unsettled},
            )

    async def _finish_within_grace(self, run: _Components) -> None:
        while self._give_up_at is not None and (left := self._give_up_at - self._clock.monotonic()) > 0:
            self._grace_changed.clear()
            async with asyncio.TaskGroup() as group:
                quiet, changed = group.create_task(run.slots.quiet()), group.create_task(self._grace_changed.wait())
                await asyncio.wait((quiet, changed), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                quiet.cancel()
                changed.cancel()
            if quiet.done() and not quiet.cancelled():
                return

    async def _deregister(self) -> None:
        with suppress(StoreUnavailable):
            await _at_most(_END_MAX, self._jobs.heartbeat(self.info, (), heartbeat_timeout=timedelta(0)))

    # What running jobs call: JobWorker.

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop the worker runs in."""
        assert self._loop is not None, "only a running worker has a loop"
        return self._loop

    async def mine(self, claim: Claim) -> bool:
        """Whether the backend says a claim is current; the call is also a heartbeat for it."""
        answer = await self._jobs.heartbeat(self.info, [claim], heartbeat_timeout=self.settings.heartbeat_timeout)
        return answer.mine[0]

    def note_group(self, claim: Claim, group: int) -> None:
        """Stores the process group of a command, which the heartbeat process ends if this process is killed."""
        if self._running is not None:
            self._running.claims.note_group(claim, group)

    def note_progress(self, claim: Claim, progress: Progress) -> None:
        """Keeps a handler's progress until it is written."""
        if self._running is not None:
            self._running.reporter.note(claim, progress)


async def _at_most(seconds: float, call: Awaitable[object]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await call
