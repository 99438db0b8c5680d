"""Enqueues jobs: each once, however often a request is repeated.

An enqueue that the backend did not answer is repeated under the same request id, so a job is never enqueued twice and
never dropped silently: the call returns when the jobs are stored, or raises. A backend without space raises at once.
Large batches are sent in pieces; each piece is stored whole or not at all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreFull, StoreUnavailable, UnknownName, UsageError
from wrasse.ids import Ids
from wrasse.jobs.tally import Tally
from wrasse.jobs.trace import carried
from wrasse.jobs.worker.completer import RETRY_BACKOFF
from wrasse.ports.jobs import BATCH_MAX, NOTHING, Enqueued as Enqueued, Job, JobGroup, JobQueue, check_job
from wrasse.ports.rules.job_transitions import setters

BATCH_BYTES_MAX = 32 << 20
QUEUES: Mapping[str, str] = {"high": "high", "low": "low"}
_ZERO = timedelta(0)
_new = object.__new__
_id, _kind, _queue, _in_priority, _payload, _headers, _not_before, _delay, _timeout = setters(
    Job, "id", "kind", "queue", "priority", "payload", "headers", "not_before", "delay", "timeout"
)
_lasting, _minted, _unique, _window, _keep, _group = setters(
    Job, "lasting", "minted", "unique", "window", "keep", "group"
)


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The queue of each priority, and the values of jobs that have none of their own. `patience`: how long an enqueue
    is repeated while the backend does not answer."""

    queues: Mapping[str, str] = field(default_factory=lambda: QUEUES)
    priority: str = "low"
    patience: timedelta = timedelta(seconds=10)
    keep: timedelta = timedelta(0)


_DEFAULT = ProducerOptions()


class Producer:
    """Enqueues jobs into the queue of their priority."""

    def __init__(
        self,
        jobs: JobQueue,
        clock: Clock,
        settings: ProducerOptions = _DEFAULT,
        tally: Tally | None = None,
    ) -> None:
        self._jobs, self.clock, self._ids = jobs, clock, Ids(clock)
        self._queues, self._patience, self._keep = dict(settings.queues), settings.patience, settings.keep
        self._priority = self._checked(settings.priority)
        self.tally = tally if tally is not None else Tally()

    def job(
        self,
        kind: str = "",
        payload: bytes = b"",
        *,
        id: str | None = None,
        priority: str | None = None,
        queue: str | None = None,
        delay: timedelta = timedelta(0),
        not_before: datetime | None = None,
        timeout: timedelta | None = None,
        headers: Mapping[str, str] = NOTHING,
        unique: str = "",
        window: timedelta = timedelta(0),
        keep: timedelta | None = None,
    ) -> Job:
        """A job as this producer would enqueue it: in the queue of its priority unless one is named. An id that the
        caller gave is remembered after the job is gone."""
        if timeout is not None and timeout <= _ZERO:
            raise UsageError("a timeout of zero or less", do="give a duration greater than zero, or none")
        if window and not unique:
            raise UsageError("a window without a unique name", do="give unique= too, which the window belongs to")
        priority = self._priority if priority is None else self._checked(priority)
        headers = carried(headers)
        job = _new(Job)  # a third of the cost of enqueue_many, see `ports/rules/job_transitions.py`
        _id(job, self._ids.new() if id is None else id)
        _kind(job, kind)
        _queue(job, self._queues[priority] if queue is None else queue)
        _in_priority(job, priority)
        _payload(job, payload)
        _headers(job, dict(headers) if headers else NOTHING)
        _not_before(job, not_before)
        _delay(job, delay)
        _timeout(job, timeout)
        _lasting(job, id is not None)
        _minted(job, id is None)
        _unique(job, unique)
        _window(job, window)
        _keep(job, self._keep if keep is None else keep)
        _group(job, "")
        check_job(job)
        return job

    def new_id(self) -> str:
        """A unique id for a job or group."""
        return self._ids.new()

    async def enqueue(self, job: Job) -> Enqueued:
        """Enqueues one job."""
        return (await self.enqueue_piece((job,)))[0]

    async def enqueue_many(self, jobs: Iterable[Job]) -> Sequence[Enqueued]:
        """Enqueues many, in pieces; returns an answer for each, in their order. If it raises, the pieces enqueued
        before stay."""
        answers: list[Enqueued] = []
        async for some in self.enqueue_pieces(jobs):
            answers += some
        return answers

    async def enqueue_pieces(self, jobs: Iterable[Job]) -> AsyncGenerator[Sequence[Enqueued], None]:
        """The same, with the answers piece by piece. The next piece is built while the last one is being stored."""
        sent: asyncio.Task[Sequence[Enqueued]] | None = None
        try:
            for piece in _pieces(jobs):
                answers = await sent if sent is not None else ()
                sent = asyncio.create_task(self.enqueue_piece(piece))
                await asyncio.sleep(0)  # so that it is sent now
                yield answers
            if sent is not None:
                yield await sent
        finally:
            if sent is not None:
                await sent  # also if building the next piece failed: the request in progress is awaited

    async def enqueue_group(self, group: JobGroup, members: Sequence[Job]) -> Sequence[Enqueued]:
        """Opens a group and enqueues its members, in pieces; returns an answer for each. After a crash halfway it may
        be repeated: existing jobs stay as they are, and nothing counts twice."""
        first, *others = _pieces(members) if members else [[]]
        answers = [*await self.enqueue_piece(first, (group,))]
        for piece in others:
            answers += await self.enqueue_piece(piece)
        return answers

    async def enqueue_piece(self, jobs: Sequence[Job], groups: Sequence[JobGroup] = ()) -> Sequence[Enqueued]:
        """Enqueues at most BATCH_MAX jobs, all or none, and retries until this producer's patience ends."""
        request = self._ids.new()
        give_up_at = self.clock.monotonic() + self._patience.total_seconds()
        failed = 0
        while True:
            try:
                answers = await self._jobs.enqueue(jobs, request=request, groups=groups)
            except StoreUnavailable as why:
                # A retry does not free space. But after a lost reply the enqueue may be stored: the retry tells.
                if isinstance(why, StoreFull) and not failed:
                    raise
                failed += 1
                self.tally.unavailable += 1
                delay = RETRY_BACKOFF.delay(failed, random.random()).total_seconds()
                if self.clock.monotonic() + delay > give_up_at:
                    raise
                await asyncio.sleep(delay)
                continue
            new = [job.queue for job, put in zip(jobs, answers, strict=True) if put.new]
            for queue in set(new):
                self.tally.produced.add(queue, new.count(queue))
            return answers

    def _checked(self, priority: str) -> str:
        if priority not in self._queues:
            raise UnknownName(priority, self._queues, what="priority")
        return priority


def _pieces(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Splits a stream of jobs by number and by bytes, with one piece in memory at a time."""
    piece: list[Job] = []
    size = 0
    for job in jobs:
        if piece and (len(piece) == BATCH_MAX or size + len(job.payload) > BATCH_BYTES_MAX):
            yield piece
            piece, size = [], 0
        piece.append(job)
        size += len(job.payload)
    if piece:
        yield piece
