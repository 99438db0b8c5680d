"""The concurrency slots of a worker: each is a task that lives as long as the worker and runs one handler at a time.

A slot makes no task per job: a handler that never waits costs a function call, and a new task would cost more than a
small handler does. Each handler is awaited in a context of its own, which keeps its context variables from the next
one. One timer serves all timeouts: it is set to the earliest deadline, and moves only when that is reached.

An attempt can be cancelled from outside: its time is up, its claim is gone, or the worker stops. The handler is
cancelled; whatever it raises then, the reason stands; if it completes all the same, it is completed.

Plain functions run in threads: one thread per slot, made when it is first needed. A thread cannot be cancelled: its job
is settled, and the slot stays busy until the thread returns. When the worker stops, the job is released.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from datetime import timedelta
from functools import partial
from math import inf
from types import coroutine
from typing import Any

from wrasse.jobs.handlers import CallNext, Handler, Handlers, InThread, Middleware
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.trace import JobSpan, outcome_of
from wrasse.jobs.worker.completer import (
    CancelReason,
    Completer,
    encoded,
    exhausted_resource,
    interrupted,
    no_handler,
    outcome_for_error,
    refused_by_breaker,
)
from wrasse.jobs.worker.context import WorkerContext
from wrasse.jobs.worker.running_job import InFlightJob, JobStage, JobWorker, RunningJob
from wrasse.ports.jobs import ClaimedJob, Complete, Settlement
from wrasse.threads import HandlerThread, cancelled


@coroutine
def run_in_context(body: Coroutine[Any, Any, object], context: Context) -> Generator[Any, Any, object]:
    """Runs every step of `body` inside `context`, in the task that awaits this."""
    step: Callable[[Any], Any] = body.send
    sent: Any = None
    while True:
        try:
            awaited = context.run(step, sent)
        except StopIteration as stop:
            return stop.value
        try:
            sent, step = (yield awaited), body.send
        except BaseException as raised:
            sent, step = raised, body.throw


_EXHAUSTED_PAUSE = RetryPolicy(
    base=timedelta(milliseconds=500), max=timedelta(seconds=5)
)  # pauses of a slot when a resource ran out
_log = logging.getLogger("wrasse.worker")
_BURST_MAX = 0.002  # seconds of handlers that never wait, before other tasks of the loop run


class _Slot:
    __slots__ = ("cut", "deadline", "lingering", "running", "task", "thread", "work")

    def __init__(self, number: int) -> None:
        self.task: asyncio.Task[None] | None = None
        self.work: InFlightJob | None = None  # while its handler runs
        self.running: RunningJob | None = None
        self.deadline = inf
        self.cut: CancelReason | None = None
        self.lingering: asyncio.Future[object] | None = None  # a thread that may outlive its attempt
        self.thread = HandlerThread(f"wrasse-slot-{number}")


class Slots:
    """Runs handlers for the jobs it is fed, and passes their outcomes to the completer."""

    def __init__(self, context: WorkerContext, handlers: Handlers, completer: Completer, worker: JobWorker) -> None:
        self._handlers, self._completer, self._worker = handlers, completer, worker
        self._claims, self._clock, self._retry = context.claims, context.clock, context.settings.retry
        self._tally, self._spans = context.telemetry.tally, context.telemetry.spans
        self._breakers, self._capacity = context.breakers, context.capacity
        self._slots = [_Slot(number) for number in range(context.settings.concurrency)]
        self._idle: list[asyncio.Future[None]] = []
        self._quiet = asyncio.Event()
        self._stopping = self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._burst_ends = 0.0
        self._exhausted = 0  # attempts in a row that ended because a resource of the machine ran out
        self.backlog: deque[InFlightJob] = deque()
        self.ended = 0  # attempts so far
        self.prefetch_low_water = 0  # a backlog of at most this many signals capacity

    @property
    def idle(self) -> int:
        """How many slots wait for a job."""
        return len(self._idle)

    def feed(self, works: Iterable[InFlightJob]) -> None:
        """Adds jobs to run."""
        self.backlog.extend(works)
        self._quiet.clear()
        self._wake(len(self.backlog))

    def cut(self, work: InFlightJob) -> None:
        """Cancels an attempt whose claim is gone, unless it has ended by itself."""
        if work.stage is JobStage.WAITING:
            if work in self.backlog:
                self.backlog.remove(work)
            self._completer.forget(work)
        for slot in self._slots:
            if slot.work is work and slot.cut is None:
                self._cut(slot, CancelReason.GONE)

    def cut_all(self) -> None:
        """Cancels every running attempt because the worker stops, and no longer waits for threads of ended attempts."""
        self._stopping = True
        for slot in self._slots:
            if slot.work is not None:
                if slot.cut is None:
                    self._cut(slot, CancelReason.STOPPED)
            elif slot.lingering is not None and slot.task is not None:
                slot.task.cancel()

    def release(self, error: str) -> int:
        """Releases the jobs that no slot has started, without spending a retry; returns their number."""
        count = len(self.backlog)
        # Each goes before all ready jobs, so the last released is claimed first: back to front keeps their order.
        while self.backlog:
            work = self.backlog.pop()
            self._completer.add(work, interrupted(work.claimed, error))
        return count

    def _release_queue(self, first: InFlightJob) -> None:
        """Releases the jobs prefetched from a queue whose breaker has opened since."""
        queue = first.claimed.job.queue
        affected = [first, *(work for work in self.backlog if work.claimed.job.queue == queue)]
        kept = [work for work in self.backlog if work.claimed.job.queue != queue]
        self.backlog.clear()
        self.backlog.extend(kept)
        for work in reversed(affected):  # see release
            self._completer.add(work, refused_by_breaker(work.claimed))

    def abandon(self, error: str) -> int:
        """Releases the jobs of handlers that did not end after their cancellation; returns their number."""
        left = [slot.work for slot in self._slots if slot.work is not None and slot.work.stage is JobStage.RUNNING]
        for work in left:
            self._completer.add(work, interrupted(work.claimed, error))
        return len(left)

    async def quiet(self) -> None:
        """Waits until no handler runs and no job waits for one."""
        await self._quiet.wait()

    def close(self) -> None:
        """Lets the slots end once they are idle."""
        self._closing = True
        self._wake(len(self._idle))

    async def run(self) -> None:
        """Runs handlers until closed."""
        try:
            async with asyncio.TaskGroup() as group:
                for slot in self._slots:
                    slot.task = group.create_task(self._serve(slot))
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for slot in self._slots:
                slot.thread.close()

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)

    async def _serve(self, slot: _Slot) -> None:
        backlog, monotonic = self.backlog, self._clock.monotonic
        while True:
            if not backlog:
                if self._closing:
                    return
                waiting = asyncio.get_running_loop().create_future()
                self._idle.append(waiting)
                self._capacity.set()
                if len(self._idle) == len(self._slots):
                    self._quiet.set()
                await waiting
                continue
            work = backlog.popleft()
            if len(backlog) <= self.prefetch_low_water and not self._capacity.is_set():
                self._capacity.set()
            if self._breakers is not None and not self._breakers.lets_start(work):
                self._release_queue(work)
                continue
            exhausted = self._exhausted
            ended = await self._attempt(slot, work)
            if self._exhausted > exhausted:
                await asyncio.sleep(_EXHAUSTED_PAUSE.delay(self._exhausted, random.random()).total_seconds())
            if ended > self._burst_ends:
                await asyncio.sleep(0)
                now = monotonic()
                if now > self._burst_ends:
                    self._burst_ends = now + _BURST_MAX

    async def _attempt(self, slot: _Slot, work: InFlightJob) -> float:
        """Runs one handler and records its outcome; returns when it ended."""
        claimed = work.claimed
        handler = self._handlers.find(claimed.job.kind)
        began = self._clock.monotonic()
        span = None if self._spans is None else self._spans.start(claimed)
        if handler is None:
            self.ended += 1
            unknown = no_handler(claimed, self._retry, random.random())
            if span is not None:
                span.end(outcome_of(unknown), "")
            self._completer.add(work, unknown)
            return began
        running = self._begin(slot, work, began)
        settlement: Settlement | None
        error_type = ""
        try:
            result = await self._call(slot, handler, running, span)
            settlement = Complete(claimed.claim, encoded(result), running.follow_ups)
            self._exhausted = 0
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if slot.cut is None and isinstance(error, asyncio.CancelledError) and cancelled():
                raise  # not about this job: the worker was cancelled
            u, error_type = random.random(), type(error).__name__
            settlement = outcome_for_error(work, slot.cut, error, self._retry, u, handler.retry)
            self._note_exhausted(claimed, slot.cut, error)
        finally:
            self._tally.active -= 1
        self.ended += 1
        ended = self._clock.monotonic()
        self._tally.durations.of(claimed.job.queue).observe(ended - began)
        if span is not None:
            span.end(outcome_of(settlement), error_type)
        if work.stage is JobStage.RUNNING:
            if settlement is None:
                self._completer.forget(work)
            else:
                self._completer.add(work, settlement)
        slot.work = slot.running = None
        if slot.cut is None:
            slot.lingering = None
        else:
            await self._after_cut(slot)
        return ended

    def _note_exhausted(self, claimed: ClaimedJob, cut: CancelReason | None, error: BaseException) -> None:
        """Logs that a job was released because a resource ran out; the slot then pauses before the next one."""
        why = "" if cut is not None else exhausted_resource(claimed, error)
        self._exhausted = self._exhausted + 1 if why else 0
        if why:
            extra = {"job_id": claimed.job.id, "queue": claimed.job.queue, "attempt": claimed.attempt}
            _log.warning("a job was released, and its slot pauses: %s", why, extra=extra)

    def _begin(self, slot: _Slot, work: InFlightJob, now: float) -> RunningJob:
        self._claims.begin(work, now)
        self._tally.active += 1
        slot.work, slot.cut, slot.deadline = work, None, now + work.allowed
        slot.running = running = RunningJob(work.claimed, self._worker)
        if slot.deadline < self._timer_at:
            self._set_timer(slot.deadline)
        return running

    async def _call(self, slot: _Slot, handler: Handler, running: RunningJob, span: JobSpan | None) -> object:
        context = copy_context()
        if span is not None:
            context.run(span.enter)
        if self._handlers.middleware:
            call = partial(self._innermost, slot, handler)
            for middleware in reversed(self._handlers.middleware):
                call = partial(_around, middleware, call)
            return await run_in_context(call(running), context)
        if not isinstance(handler, InThread):
            return await run_in_context(handler.call(running), context)
        if span is not None:
            return await run_in_context(self._innermost(slot, handler, running), context)
        return await self._innermost(slot, handler, running)

    async def _innermost(self, slot: _Slot, handler: Handler, running: RunningJob) -> object:
        if not isinstance(handler, InThread):
            return await handler.call(running)
        slot.lingering = slot.thread.start(partial(handler.call, running))
        return await asyncio.shield(slot.lingering)

    def _cut(self, slot: _Slot, why: CancelReason) -> None:
        assert slot.task is not None, "a slot that runs a handler has a task"
        assert slot.running is not None, "and the job it was given"
        slot.cut = why
        slot.running.end()
        slot.task.cancel()

    async def _after_cut(self, slot: _Slot) -> None:
        """Clears the cancellation for the next handler, and waits for a thread that still runs."""
        assert slot.task is not None, "a slot that was cut has a task"
        slot.task.uncancel()
        if slot.lingering is None:
            return
        try:
            if not self._stopping:
                await asyncio.wait([slot.lingering])
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            slot.task.uncancel()
        finally:
            slot.lingering = None

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(at - self._clock.monotonic(), 0)
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_deadline)

    def _on_deadline(self) -> None:
        now, self._timer, self._timer_at = self._clock.monotonic(), None, inf
        running = [slot for slot in self._slots if slot.work is not None and slot.cut is None]
        for slot in running:
            if slot.deadline <= now:
                self._cut(slot, CancelReason.TIMEOUT)
        upcoming = min((slot.deadline for slot in running if slot.cut is None), default=inf)
        if upcoming < inf:
            self._set_timer(upcoming)


async def _around(middleware: Middleware, call: CallNext, running: RunningJob) -> object:
    return await middleware(running, call)
