"""Jobs as a program puts and watches them: `app.jobs`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from wrasse.app.job_handle import Duration as Duration, JobHandle as JobHandle, as_duration as as_duration, result_of
from wrasse.app.new_job import NewJob as NewJob, encoded, made, made_group
from wrasse.errors import UsageError
from wrasse.jobs.pacing import Pace, put_paced
from wrasse.jobs.producer import Producer
from wrasse.ports.jobs import (
    NOTHING,
    Cancel,
    Counts,
    JobFilter,
    JobQueue,
    JobRecord,
    JobState,
    Place,
    Revive,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import pages

PAGE = 200


class Jobs:
    """Puts, finds, cancels and revives jobs. Opened on first use."""

    __slots__ = ("_open", "_pace")

    def __init__(
        self, open: Callable[[], Awaitable[tuple[Producer, JobQueue]]], pace: Callable[[int], Awaitable[Pace]]
    ) -> None:
        self._open, self._pace = open, pace

    async def put(
        self,
        kind: str = "",
        data: object = b"",
        *,
        priority: str | None = None,
        queue: str | None = None,
        delay: Duration = timedelta(0),
        not_before: datetime | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
        headers: Mapping[str, str] = NOTHING,
        unique: str = "",
        window: Duration = timedelta(0),
        keep: Duration | None = None,
        rate: int = 0,
    ) -> JobHandle:
        """Puts one job; stored when this returns. Bytes go out as they are, anything else as JSON. An id that is known
        already is left as it is, and the answer says so; likewise a `unique` name, while an earlier job of that name
        is not finished, or was put within the `window`. `keep`: how long at least the result is kept. `rate`: as with
        `put_many`."""
        if rate:
            new = NewJob(kind, data, priority, queue, delay, not_before, id, timeout, headers, unique, window, keep)
            return (await self.put_many([new], rate=rate))[0]
        producer, _ = await self._open()
        job = producer.job(
            kind,
            encoded(data),
            id=id,
            priority=priority,
            queue=queue,
            delay=as_duration(delay),
            not_before=not_before,
            timeout=None if timeout is None else as_duration(timeout),
            headers=headers,
            unique=unique,
            window=as_duration(window),
            keep=None if keep is None else as_duration(keep),
        )
        put = await producer.put(job)
        return JobHandle(self._queue, put.id, put.new)

    async def put_many(self, jobs: Iterable[NewJob], *, rate: int = 0) -> Sequence[JobHandle]:
        """Puts many, a thousand in one step; gives an answer for each, in their order. With a `rate` it takes its time:
        so many new jobs a second at most, of all processes together that put with a rate (producer.rate_limit_key)."""
        producer, _ = await self._open()
        new_jobs = (made(producer, new) for new in jobs)
        handles: list[JobHandle] = []
        if rate:
            pace = await self._pace(rate)
            while piece := [*islice(new_jobs, pace.batch)]:
                async for some in put_paced(producer, piece, pace):
                    handles += [JobHandle(self._queue, put.id, put.new) for put in some]
        else:
            async for some in producer.put_pieces(new_jobs):
                handles += [JobHandle(self._queue, put.id, put.new) for put in some]
        return handles

    async def group(self, jobs: Iterable[NewJob], then: NewJob, *, id: str | None = None) -> JobHandle:
        """Puts jobs, and `then` when all of them are finished, done or dead: once, in the same step as the last. Gives
        the handle of `then`. Its headers tell the group's id and how many members are done and dead; the members' ids
        are the group's with /0, /1, ... unless they have their own. With an `id` the call may be made again."""
        producer, queue = await self._open()
        made_id = producer.new_id() if id is None else id
        group, members = made_group(producer, made_id, [*jobs], then, lasting=id is not None)
        for member in members if id is not None or any(not m.id.startswith(f"{made_id}/") for m in members) else ():
            there = await queue.get(member.id)
            if there is not None and there.job.group != made_id:
                raise UsageError(
                    f"the job {member.id!r} is known already and no member of this group, which would wait for ever",
                    do="give the members of a group ids of their own",
                )
        await producer.put_group(group, members)
        return JobHandle(self._queue, group.callback.id, True, to_come=True)

    async def get(self, id: str) -> JobRecord | None:
        """One job, whole: its state, payload, history, progress and result."""
        return await (await self._queue()).get(id)

    async def wait(self, id: str, *, timeout: Duration = "1m") -> Any:  # a result has whatever shape its handler gave
        """Waits until the job is done and gives its handler's result; JobFailed if it ends dead, TimeoutError if it
        takes longer."""
        return await result_of(await self._queue(), id, as_duration(timeout))

    async def cancel(self, id: str, why: str = "") -> bool:
        """Stops a job that waits or runs; False if it was finished, or is unknown."""
        return (await (await self._queue()).move([Cancel(id, why)]))[0] is Outcome.DONE

    async def requeue(self, id: str, *, delay: Duration = timedelta(0)) -> bool:
        """Makes a dead job ready again, with its budgets full; False if it is not dead."""
        queue = await self._queue()
        record = await queue.get(id)
        if record is None or record.state.place is not Place.DEAD:
            return False
        return (await queue.move([Revive(record.state.hold, as_duration(delay))]))[0] is Outcome.DONE

    async def list(self, place: Place | str, where: JobFilter | None = None) -> AsyncIterator[JobState]:
        """Every job of a place, read page by page as it is asked for."""
        queue = await self._queue()
        async for page in pages(lambda after: queue.page(Place(place), where or JobFilter(), after, PAGE)):
            for state in page:
                yield state

    async def counts(self) -> Counts:
        """How many jobs are where, and who works."""
        return await (await self._queue()).counts()

    async def _queue(self) -> JobQueue:
        return (await self._open())[1]
