"""Jobs for programs: `app.jobs`, and the handle that an enqueue returns.

A result is kept as long as its job: at least the `keep` of its enqueue after the job is done, and otherwise while it is
among the newest `worker.done_max` done ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from wrasse.errors import JobFailed, UsageError
from wrasse.jobs.new_job import NO_TIME, Duration, NewJob, as_duration, made, made_group
from wrasse.jobs.producer import Producer
from wrasse.jobs.rate_limiter import SharedRate, enqueue_paced
from wrasse.ports.jobs import (
    NOTHING,
    Cancel,
    Counts,
    JobFilter,
    JobInfo,
    JobQueue,
    JobRecord,
    JobState,
    JobStatus,
    RequeueDead,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import pages

PAGE = 200


class Jobs:
    """Enqueues, finds, cancels and requeues jobs. Opened on first use."""

    __slots__ = ("_open", "_pace")

    def __init__(
        self, open: Callable[[], Awaitable[tuple[Producer, JobQueue]]], pace: Callable[[int], Awaitable[SharedRate]]
    ) -> None:
        self._open, self._pace = open, pace

    async def enqueue(
        self,
        kind: str = "",
        data: object = b"",
        *,
        priority: str | None = None,
        queue: str | None = None,
        delay: Duration = NO_TIME,
        not_before: datetime | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
        headers: Mapping[str, str] = NOTHING,
        unique: str = "",
        window: Duration = NO_TIME,
        keep: Duration | None = None,
        rate: int = 0,
    ) -> JobHandle:
        """Enqueues one job; stored when this returns. Bytes are sent as they are, anything else as JSON. A job whose id
        exists is left as it is, and the answer says so; likewise with a `unique` name, while an earlier job of that
        name is not finished, or was enqueued within the `window`. `keep`: how long at least the result is kept. `rate`:
        as with `enqueue_many`."""
        new = NewJob(kind, data, priority, queue, delay, not_before, id, timeout, headers, unique, window, keep)
        if rate:
            return (await self.enqueue_many([new], rate=rate))[0]
        producer, _ = await self._open()
        answer = await producer.enqueue(made(producer, new))
        return JobHandle(self._queue, answer.id, answer.new)

    async def enqueue_many(self, jobs: Iterable[NewJob], *, rate: int = 0) -> Sequence[JobHandle]:
        """Enqueues many, a thousand in one step; returns a handle for each, in their order. With a `rate` it waits
        between steps: at most so many new jobs a second, over all processes that enqueue with a rate
        (producer.rate_limit_key)."""
        producer, _ = await self._open()
        new_jobs = (made(producer, new) for new in jobs)
        handles: list[JobHandle] = []
        if rate:
            pace = await self._pace(rate)
            while piece := [*islice(new_jobs, pace.batch)]:
                async for some in enqueue_paced(producer, piece, pace):
                    handles += [JobHandle(self._queue, answer.id, answer.new) for answer in some]
        else:
            async for some in producer.enqueue_pieces(new_jobs):
                handles += [JobHandle(self._queue, answer.id, answer.new) for answer in some]
        return handles

    async def group(self, jobs: Iterable[NewJob], then: NewJob, *, id: str | None = None) -> JobHandle:
        """Enqueues jobs, and `then` when all of them are finished, done or dead: once, in the same step as the last.
        Returns the handle of `then`. Its headers have the group's id and how many members are done and dead; the
        members' ids are the group's with /0, /1, ... unless they have their own. With an `id` the call may be made
        again."""
        producer, queue = await self._open()
        made_id = producer.new_id() if id is None else id
        group, members = made_group(producer, made_id, [*jobs], then, lasting=id is not None)
        for member in members if id is not None or any(not m.id.startswith(f"{made_id}/") for m in members) else ():
            there = await queue.get(member.id)
            if there is not None and there.job.group != made_id:
                raise UsageError(
                    f"the job {member.id!r} exists already and is no member of this group, which would never finish",
                    do="give the members of a group ids of their own",
                )
        await producer.enqueue_group(group, members)
        return JobHandle(self._queue, group.callback.id, True, to_come=True)

    async def get(self, id: str) -> JobRecord | None:
        """One job, whole: its state, payload, history, progress and result."""
        return await (await self._queue()).get(id)

    async def wait(self, id: str, *, timeout: Duration = "1m") -> Any:  # a result has whatever shape its handler gave
        """Waits until the job is done and returns its handler's result; JobFailed if it ends dead, TimeoutError if it
        takes longer."""
        return await result_of(await self._queue(), id, as_duration(timeout))

    async def cancel(self, id: str, why: str = "") -> bool:
        """Cancels a ready or running job; False if it was finished, or is unknown."""
        return (await (await self._queue()).move([Cancel(id, why)]))[0] is Outcome.DONE

    async def requeue(self, id: str, *, delay: Duration = NO_TIME) -> bool:
        """Makes a dead job ready again, with its budgets full; False if it is not dead."""
        queue = await self._queue()
        record = await queue.get(id)
        if record is None or record.info.state is not JobState.DEAD:
            return False
        return (await queue.move([RequeueDead(record.info.claim, as_duration(delay))]))[0] is Outcome.DONE

    async def list(self, state: JobState | str, where: JobFilter | None = None) -> AsyncIterator[JobInfo]:
        """Every job that is "ready", "scheduled", "running", "done" or "dead", read page by page."""
        queue, status = await self._queue(), JobStatus(state)
        where = replace(where or JobFilter(), scheduled=status.scheduled)
        async for page in pages(lambda after: queue.page(status.state, where, after, PAGE)):
            for info in page:
                yield info

    async def counts(self) -> Counts:
        """How many jobs are in each state, and the workers."""
        return await (await self._queue()).counts()

    async def _queue(self) -> JobQueue:
        return (await self._open())[1]


_POLL_FIRST, _POLL_MAX = 0.02, 0.5  # seconds


class JobHandle:
    """A job that was enqueued. True when it is new; if it is not, `id` is that of the existing job. The handle of a
    callback may be made before its job is: it is enqueued when its group is finished."""

    __slots__ = ("_open", "_to_come", "id", "new")

    def __init__(self, open: Callable[[], Awaitable[JobQueue]], id: str, new: bool, *, to_come: bool = False) -> None:
        self._open = open
        self._to_come = to_come
        self.id = id
        self.new = new

    def __bool__(self) -> bool:
        return self.new

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id!r}, new={self.new})"

    async def result(self, *, timeout: Duration = "1m") -> Any:  # a result has whatever shape its handler gave
        """Waits until the job is done and returns its handler's result; JobFailed if it ends dead, TimeoutError if it
        takes longer."""
        return await result_of(await self._open(), self.id, as_duration(timeout), to_come=self._to_come)

    async def info(self) -> JobInfo | None:
        """The job's info now; None if it is gone, or not enqueued yet."""
        record = await (await self._open()).get(self.id)
        return None if record is None else record.info

    async def cancel(self, why: str = "") -> bool:
        """Cancels the job if it is ready or running; False if it was finished, or is gone."""
        return (await (await self._open()).move([Cancel(self.id, why)]))[0] is Outcome.DONE


async def result_of(queue: JobQueue, id: str, timeout: timedelta, *, to_come: bool = False) -> object:
    """The result of a job, once it is done."""
    pause = _POLL_FIRST
    async with asyncio.timeout(timeout.total_seconds()):
        while True:
            record = await queue.get(id)
            if record is None:
                if not to_come:
                    raise UsageError(
                        f"there is no job {id!r}", do="enqueue it first; a done job is deleted after a while, see keep="
                    )
            elif record.info.state is JobState.DONE:
                return read_result(record.result)
            elif record.info.state is JobState.DEAD:
                raise JobFailed(
                    f"the job {id!r} is dead: {record.info.reason}: {record.info.error}".removesuffix(": "),
                    do=f"see `wrasse jobs show {id}`",
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _POLL_MAX)


def read_result(result: bytes | None) -> object:
    """What a handler returned: read as JSON, or the bytes as they are if they are not JSON."""
    if result is None:
        return None
    try:
        return msgspec.json.decode(result)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return result
