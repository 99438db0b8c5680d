"""A JobQueue made of Records and Objects alone, so that a bucket or a directory is a job queue.

Every job is one record, and every change of it one conditional write: of two who want a job one gets it, and a crash
between any two steps leaves it where it was or where it was going. Nothing is left behind once a job is finished and
not to be kept. Nobody has to sweep: whoever takes sees to what is overdue when there is nothing else to do, and every
ten seconds, so that a worker that died spends the budget of rescues; the sweep stuck_jobs does the same.

Costs, in requests to a bucket: put 2, and 1 more for an id that the caller gave; take 3 for each job, and one listing
when the list of what is ready has run out or is five seconds old; beat 1 (2 when the minute changes); finish 2; a
payload beyond 64 KiB 1 more each time. Listings and numbers follow what is stored.

What it cannot have is refused: unique names, groups and rates. A batch is stored job by job: a crash in the middle of a
put leaves its first part, and asking again with the same request completes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from wrasse.clock import Clock
from wrasse.errors import StoreBroken, UsageError
from wrasse.jobs.recorded_answers import Answers, KnownIds
from wrasse.jobs.recorded_changes import Changes, RecordedOptions
from wrasse.jobs.recorded_names import plain, read_sign
from wrasse.jobs.recorded_ready import Ready
from wrasse.jobs.recorded_store import RecordedStore, Seen
from wrasse.jobs.recorded_takes import Claim, RecordedTakes
from wrasse.jobs.recorded_views import UNREADABLE, RecordedViews
from wrasse.jobs.task_workers import TaskWorkers
from wrasse.ports import job_transitions as rules
from wrasse.ports.jobs import (
    BATCH_MAX,
    IDS_KEPT,
    NO_PROGRESS,
    Beaten,
    Cancel,
    Counts,
    Delete,
    Finish,
    Hold,
    Job,
    JobFilter,
    JobGroup,
    JobRecord,
    JobState,
    Move,
    Place,
    Progress,
    Put,
    Rate,
    Settlement,
    Taken,
    WorkerInfo,
    check_job,
    check_settlements,
)
from wrasse.ports.objects import Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Collection, Records

ATTEMPTS_HEADER = "wrasse-attempts-max"  # of a job: after so many attempts that failed or died it is dead
OPTIONS = RecordedOptions()
_ABREAST = 16
T = TypeVar("T")
U = TypeVar("U")


class RecordedJobs:
    """All queues below one root."""

    def __init__(
        self,
        records: Callable[[Collection], Records],
        objects: Objects,
        clock: Clock,
        options: RecordedOptions = OPTIONS,
    ) -> None:
        names = options.names
        self._store = RecordedStore(records(names.jobs), objects, names, clock)
        self._ready = Ready(self._store, clock)
        self._views = RecordedViews(self._store, clock)
        self._ids = KnownIds(records(names.ids), self._store.time)
        self._changes = Changes(self._store, self._views, self._ids, options, self._readied, self._follow)
        self._takes = RecordedTakes(self._store, self._ready, clock, self._changes.expire, options.poll_max)
        self._workers = TaskWorkers(records(names.workers), self._store.time)
        self._answers = Answers(clock)
        self._last = 0  # the turn that was given out last

    async def put(self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()) -> Sequence[Put]:
        if groups:
            raise UsageError("a group of jobs on records", do="use a queue on SQLite or Redis")
        for job in _bounded(jobs):
            _check(job)
        known = self._answers.puts.get(request)
        if known is not None:
            return known
        at = await self._store.time.now()
        first = {job.id: n for n, job in reversed(list(enumerate(jobs)))}

        ranked = [(n, job, self._rank(job, at)) for n, job in enumerate(jobs)]

        async def one(numbered: tuple[int, Job, int]) -> Put:
            n, job, rank = numbered
            return Put(job.id, new=first[job.id] == n and await self._add(job, at, rank, request))

        puts = await _abreast(one, ranked)
        self._answers.puts.keep(request, puts)
        self._takes.ring()
        return puts

    async def take(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        silence: timedelta,
        request: str,
        wait: timedelta = timedelta(0),
        rates: Sequence[Rate] = (),
    ) -> Taken:
        if limit < 1 or silence <= timedelta(0):
            raise UsageError(f"a take of {limit} jobs for {silence}", do="ask for at least one, for longer than zero")
        if rates:
            raise UsageError("a rate for jobs on records", do="use a queue on SQLite or Redis")
        claim = self._answers.takes.get(request)
        seen: Sequence[Seen] = []
        if claim is not None:
            seen = await self._takes.again(claim)
        if not seen:
            claim = Claim(worker, silence, request, tuple(dict.fromkeys(queues)), min(limit, BATCH_MAX))
            self._answers.takes.keep(request, claim)
            seen = await self._takes.take(claim, wait)
            if not seen:
                self._answers.takes.forget(request)
        jobs = await _abreast(self._store.whole, seen)
        for each in seen:
            self._changes.hold(each)
        return Taken(tuple(job.taken for job in jobs), await self._store.time.now())

    async def beat(
        self,
        worker: WorkerInfo,
        holds: Sequence[Hold],
        *,
        silence: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> Beaten:
        at = await self._store.time.now()
        if silence <= timedelta(0):
            await self._workers.goodbye(worker)
            found = await _abreast(lambda hold: self._store.get(hold.id), _bounded(holds))
            mine = [
                seen is not None and rules.holds(seen.stored, hold) for seen, hold in zip(found, holds, strict=True)
            ]
            return Beaten(tuple(mine), at)
        await self._workers.beat(worker, at, silence)

        async def one(hold: Hold) -> bool:
            told = progress.get(hold.id)
            return await self._changes.change(
                hold.id, lambda stored: rules.beat(stored, hold, at, silence=silence, progress=told)
            )

        return Beaten(tuple(await _abreast(one, _bounded(holds))), at)

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        check_settlements(settlements, _check)
        known = self._answers.settles.get(request)
        if known is not None:
            return known
        ids = [each.hold.id for each in settlements]
        # Each has a name of its own within the request, since one batch may name a job twice.
        named = [(each, f"{request}#{n}") for n, each in enumerate(settlements)]
        outcomes = await _in_turn(ids, named, lambda each: self._changes.settle(*each))
        self._answers.settles.keep(request, outcomes)
        return outcomes

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        ids = [each.id if isinstance(each, Cancel) else each.hold.id for each in _bounded(moves)]
        return await _in_turn(ids, moves, self._changes.move)

    async def get(self, id: str) -> JobRecord | None:
        seen = await self._store.looked_at(plain(id))
        if seen is None and id.startswith(UNREADABLE):
            return await self._views.unreadable(id.removeprefix(UNREADABLE))
        if isinstance(seen, StoreBroken):
            return await self._views.unreadable(plain(id))
        if seen is None or seen.recorded.leaving:
            return None
        return (await self._store.whole(seen)).at(await self._store.time.now()).shown

    async def page(
        self, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobState]:
        return await self._views.page(place, where, after, limit, newest=newest)

    async def overdue(self, after: str | None, limit: int) -> Page[JobState]:
        others, page = await self._views.overdue(after, limit)
        for seen in others:
            await self._changes.expire_one(seen, page.at)
        return page

    async def counts(self) -> Counts:
        queues, at = await self._views.counts()
        return Counts(queues, await self._workers.all(at), at)

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        return await _in_turn(
            [each.hold.id for each in _bounded(deletes)], deletes, lambda each: self._changes.delete(each, ids_kept)
        )

    async def state(self, id: str) -> JobState | None:
        """A job as this process wrote it last while it holds it, else as it is stored."""
        seen = await self._changes.look(id)
        return None if seen is None or seen.recorded.leaving else seen.stored.at(await self._store.time.now()).state

    async def extend(self, hold: Hold, silence: timedelta) -> datetime | None:
        """Holds a job for `silence` from now, without a worker's row; None if the hold is no longer current."""
        at = await self._store.time.now()
        mine = await self._changes.change(hold.id, lambda stored: rules.beat(stored, hold, at, silence=silence))
        return at + silence if mine else None

    async def finish(self, hold: Hold, *, request: str) -> Outcome:
        """Finishes a job beside which something is kept, which goes with it, whatever crashes."""
        return await self._changes.settle(Finish(hold), request, beside=True)

    async def expire(self, id: str) -> None:
        """Sees to one job that is overdue, as a take would."""
        seen, at = await self._store.get(id), await self._store.time.now()
        if seen is not None:
            await self._changes.expire_one(seen, at)

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        return await self._store.time.now()

    @property
    def waiting(self) -> int:
        """How many takers wait."""
        return self._takes.waiting

    async def close(self) -> None:
        """Until what is left to do after the last answers is done."""
        await self._store.finished()

    def _rank(self, job: Job, at: datetime) -> int:
        """The turn of a new job: when it becomes ready, and after everything that this process put before it."""
        due = max(job.not_before or at, at + job.delay, at)
        if due > at:
            return rules.back(due)
        self._last = max(rules.back(at), self._last + 1)
        return self._last

    async def _add(self, job: Job, at: datetime, rank: int, request: str) -> bool:
        if not job.minted and await self._ids.known(job.id, at):
            return False
        attempts = job.headers.get(ATTEMPTS_HEADER, "")
        retries_max = int(attempts) - 1 if attempts.isdigit() and int(attempts) else None
        stored = rules.added(job, at, rank=rank, request=request, retries_max=retries_max)
        seen = await self._store.add(stored)
        if seen is not None:
            self._readied(seen)
            return True
        there = await self._store.get(job.id)
        return there is not None and there.stored.put_by == request

    async def _follow(self, jobs: Sequence[Job], request: str) -> None:
        await self.put(jobs, request=request)

    def _readied(self, seen: Seen) -> None:
        """A job that this process made ready takes its place in the list, and whoever waits looks."""
        name = self._store.names.sign(seen.stored, seen.recorded.mark)
        sign = None if name is None else read_sign(name, "")
        assert sign is not None, "what is ready has a sign"
        self._ready.note(seen.stored.state.queue, sign)
        self._takes.ring()


def _check(job: Job) -> None:
    check_job(job)
    if job.unique or job.group:
        raise UsageError(
            f"jobs on records have no unique name and no group, as job {job.id!r} should have",
            do="give the job an id, or use SQLite or Redis",
        )


def _bounded(batch: Sequence[T]) -> Sequence[T]:
    if len(batch) > BATCH_MAX:
        raise UsageError(f"{len(batch)} in one call", do=f"at most {BATCH_MAX}")
    return batch


async def _abreast(act: Callable[[T], Awaitable[U]], items: Sequence[T]) -> list[U]:
    """Does this for each, a few at once; answers in order."""
    done: list[U] = []
    for begin in range(0, len(items), _ABREAST):
        done += await asyncio.gather(*(act(each) for each in items[begin : begin + _ABREAST]))
    return done


async def _in_turn(ids: Sequence[str], items: Sequence[T], act: Callable[[T], Awaitable[U]]) -> list[U]:
    """Likewise, but for one job in the order they were named."""
    if len(set(ids)) == len(ids):
        return await _abreast(act, items)
    return [await act(each) for each in items]

