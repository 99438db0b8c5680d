"""Jobs and stream tasks as one queue: a job whose queue is a task type is a stream task.

For listings, enqueues and changes by people: listings show jobs first and tasks after them. A worker claims from one of
the two, so a claim across both is refused. An id is searched among jobs first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

from wrasse.errors import UsageError
from wrasse.ports.jobs import (
    IDS_KEPT,
    NO_PROGRESS,
    Claim,
    Claimed,
    Counts,
    Delete,
    Enqueued,
    HeartbeatAnswer,
    Job,
    JobFilter,
    JobGroup,
    JobInfo,
    JobQueue,
    JobRecord,
    JobState,
    Move,
    Progress,
    Rate,
    Settlement,
    WorkerInfo,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

_TASKS = "t/"


class CompositeQueue:
    """Jobs, and tasks of the named types; `tasks` opens their queue at the first call that needs it."""

    def __init__(self, jobs: JobQueue, tasks: Callable[[], Awaitable[JobQueue]], types: Sequence[str]) -> None:
        self._jobs = jobs
        self._tasks = tasks
        self._types = frozenset(types)

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        tasks = [job for job in jobs if job.queue in self._types]
        if not tasks:
            return await self._jobs.enqueue(jobs, request=request, groups=groups)
        others = [job for job in jobs if job.queue not in self._types]
        new_tasks = iter(await (await self._tasks()).enqueue(tasks, request=request))
        new_jobs = iter(await self._jobs.enqueue(others, request=request, groups=groups) if others or groups else ())
        return [next(new_tasks if job.queue in self._types else new_jobs) for job in jobs]

    async def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        heartbeat_timeout: timedelta,
        request: str,
        wait: timedelta = timedelta(0),
        rates: Sequence[Rate] = (),
    ) -> Claimed:
        mixed = {queue in self._types for queue in queues}
        if len(mixed) > 1:
            raise UsageError("a claim of jobs and tasks at once", do="claim from queues of one sort")
        side = await self._tasks() if True in mixed else self._jobs
        return await side.claim(
            queues, limit, worker=worker, heartbeat_timeout=heartbeat_timeout, request=request, wait=wait, rates=rates
        )

    async def heartbeat(
        self,
        worker: WorkerInfo,
        claims: Sequence[Claim],
        *,
        heartbeat_timeout: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> HeartbeatAnswer:
        answer = await self._jobs.heartbeat(worker, claims, heartbeat_timeout=heartbeat_timeout, progress=progress)
        rest = [claim for claim, mine in zip(claims, answer.mine, strict=True) if not mine]
        if not rest:
            return answer
        more = iter(
            (
                await (await self._tasks()).heartbeat(
                    worker, rest, heartbeat_timeout=heartbeat_timeout, progress=progress
                )
            ).mine
        )
        return HeartbeatAnswer(tuple(mine or next(more) for mine in answer.mine), answer.at)

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        outcomes = await self._jobs.settle(settlements, request=request)
        rest = [each for each, outcome in zip(settlements, outcomes, strict=True) if outcome is Outcome.CONFLICT]
        return _merged(outcomes, await (await self._tasks()).settle(rest, request=request) if rest else ())

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        outcomes = await self._jobs.move(moves)
        rest = [each for each, outcome in zip(moves, outcomes, strict=True) if outcome is Outcome.CONFLICT]
        return _merged(outcomes, await (await self._tasks()).move(rest) if rest else ())

    async def get(self, id: str) -> JobRecord | None:
        return await self._jobs.get(id) or await (await self._tasks()).get(id)

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobInfo]:
        if where.queue in self._types or (after is not None and after.startswith(_TASKS)):
            start = None if after is None else after.removeprefix(_TASKS)
            return _marked(await (await self._tasks()).page(state, where, start or None, limit, newest=newest))
        page = await self._jobs.page(state, where, after, limit, newest=newest)
        if page.more or where.queue is not None:
            return page
        if len(page) == limit:
            more = await (await self._tasks()).page(state, where, None, 1, newest=newest)
            # The last cursor leads on to the first task.
            return Page(page.items, (*page.cursors[:-1], _TASKS), page.at, bool(more))
        rest = _marked(await (await self._tasks()).page(state, where, None, limit - len(page), newest=newest))
        return Page((*page.items, *rest.items), (*page.cursors, *rest.cursors), page.at, rest.more)

    async def overdue(self, after: str | None, limit: int) -> Page[JobInfo]:
        if after is None or not after.startswith(_TASKS):
            page = await self._jobs.overdue(after, limit)
            if page.items:
                return Page(page.items, (*page.cursors[:-1], page.cursors[-1] if page.more else _TASKS), page.at, True)
        start = "" if after is None else after.removeprefix(_TASKS)
        return _marked(await (await self._tasks()).overdue(start or None, limit))

    async def counts(self) -> Counts:
        jobs, tasks = await self._jobs.counts(), await (await self._tasks()).counts()
        unreadable = (*jobs.unreadable, *tasks.unreadable)
        return Counts((*jobs.queues, *tasks.queues), (*jobs.workers, *tasks.workers), jobs.at, unreadable)

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        outcomes = await self._jobs.delete(deletes, ids_kept=ids_kept)
        rest = [each for each, outcome in zip(deletes, outcomes, strict=True) if outcome is Outcome.CONFLICT]
        return _merged(outcomes, await (await self._tasks()).delete(rest, ids_kept=ids_kept) if rest else ())


def _merged(outcomes: Sequence[Outcome], rest: Sequence[Outcome]) -> Sequence[Outcome]:
    """The outcomes of jobs, with each conflict replaced by the outcome among tasks."""
    more = iter(rest)
    return [next(more, outcome) if outcome is Outcome.CONFLICT else outcome for outcome in outcomes]


def _marked(page: Page[JobInfo]) -> Page[JobInfo]:
    return Page(page.items, tuple(_TASKS + cursor for cursor in page.cursors), page.at, page.more)
