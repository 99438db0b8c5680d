"""Tasks: a JobQueue made of Records, Streams and Groups, so that jobs run on Redis Streams, NATS and SQLite as the
design document of the sweeper has them.

The record is the task; an entry of its type's queue stream is a hint that it waits. Every change is one conditional
write of the record, together with the event that tells of it. A queue is a task type, and its record, streams and group
have the document's names, so that programs of the origin work beside ours.

What a task cannot have is refused: unique names, groups and rates. A batch of puts is stored one by one: a crash in the
middle leaves the first part, and asking again with the same request completes it. Follow-ups of a finish are promised
in its write and put right after; a promise that a crash left open is kept by whoever looks next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable, UnknownName, UsageError, WrasseError
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.streamed_takes import Claim, Takes
from wrasse.jobs.streamed_views import views_of
from wrasse.jobs.task_abreast import abreast
from wrasse.jobs.task_events import Post, after_attempt, after_move, progressed, queued
from wrasse.jobs.task_fields import Fields
from wrasse.jobs.task_ids import TaskIds
from wrasse.jobs.task_names import KNOWN_IDS, TASKS, WORKERS, check_task_id, check_task_type
from wrasse.jobs.task_reports import TaskReports
from wrasse.jobs.task_requests import TakeRequests
from wrasse.jobs.task_search import TaskSearch, due_tasks, is_stuck
from wrasse.jobs.task_store import THRESHOLD, Kept, StoreParts, Task, TaskStore
from wrasse.jobs.task_strays import TaskStrays
from wrasse.jobs.task_time import StoreTime, whole_up
from wrasse.jobs.task_workers import People, TaskWorkers
from wrasse.ports import job_transitions as rules
from wrasse.ports.groups import Groups
from wrasse.ports.job_transitions import StoredJob
from wrasse.ports.jobs import (
    BATCH_MAX,
    IDS_KEPT,
    NO_PROGRESS,
    Beaten,
    Budget,
    Bury,
    Cancel,
    Counts,
    Delete,
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
    Reason,
    Rejected,
    Requeue,
    Settlement,
    Taken,
    TakenJob,
    WorkerInfo,
    check_job,
    check_settlements,
)
from wrasse.ports.objects import Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Collection, Records
from wrasse.ports.streams import Streams

_B = TypeVar("_B")
_AWAY = RetryPolicy(base=timedelta(seconds=1), max=timedelta(minutes=1))  # for parameters whose store does not answer
_TRIES = 20  # of one change against others that change the same record: beats, mostly


@dataclass(frozen=True, slots=True)
class TaskType:
    """What is said of a type: how often its tasks may be tried again, and how long one that another program claimed
    without a deadline may go without a change."""

    name: str
    retries_max: int | None = None
    threshold: timedelta = timedelta(minutes=5)


class RecordsOf(Protocol):
    """Opens the records of a collection."""

    def __call__(self, collection: Collection) -> Records: ...


@dataclass(frozen=True, slots=True)
class TaskPorts:
    """What tasks are made of. `records` opens a collection; without objects large parameters are refused. `together`
    says that records and streams are one database."""

    records: RecordsOf
    streams: Streams
    groups: Groups
    post: Post
    clock: Clock
    objects: Objects | None = None
    together: bool = True
    kept: Kept | None = None
    threshold: timedelta = THRESHOLD  # of types that nothing is said of


class StreamedJobs:
    """All tasks of the named types."""

    def __init__(self, ports: TaskPorts, types: Sequence[TaskType]) -> None:
        for each in types:
            check_task_type(each.name)
        self.ports = ports
        self.types = tuple(types)
        self._types = {each.name: each for each in types}
        records = ports.records(TASKS)
        self.time = StoreTime(ports.clock, lambda: _asked(records))
        emits = records.emits and ports.together
        thresholds = {each.name: each.threshold for each in types}
        spans = thresholds, ports.kept, ports.threshold
        self._store = TaskStore(StoreParts(records, ports.streams, ports.objects, ports.post, emits, *spans), self.time)
        self.search = TaskSearch(self._store, self._promised)
        self._takes = Takes(self._store, ports.groups, ports.post, self.search)
        self._views = views_of(self._store.shelves, self._store, self.search, list(self._types), ports.clock)
        self._workers = TaskWorkers(ports.records(WORKERS), self.time)
        self.people = People(self._workers, self.time)
        self._ids = TaskIds(self._store, ports.records(KNOWN_IDS), list(self._types))
        self._requests = TakeRequests(ports.clock)
        self.strays = TaskStrays(records, ports.streams, self._store, self.search, tuple(self._types))
        self.reports = TaskReports(ports.streams, ports.post, ports.clock, self.search.malformed)

    async def put(self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()) -> Sequence[Put]:
        if groups:
            raise UsageError("a group of tasks", do="group jobs of a queue that is no task type")
        for job in _bounded(jobs):
            self._check(job)
        at = await self.time.now()
        first = {job.id: n for n, job in reversed(list(enumerate(jobs)))}
        known = await self._ids.known(jobs, at)
        fresh = [job for n, job in enumerate(jobs) if first[job.id] == n]
        # Where a record and its event are two steps, the next task waits for both: entries keep the order of the batch.
        calls = [partial(self._add, job, request, at, known) for job in fresh]
        new = await abreast(calls) if self._store.emits else [await call() for call in calls]
        added = {job.id for job, is_new in zip(fresh, new, strict=True) if is_new}
        return [Put(job.id, new=first[job.id] == n and job.id in added) for n, job in enumerate(jobs)]

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
            raise UsageError("a rate for tasks", do="limit task_types.<type>.workers, or use a queue with a rate")
        claim = self._requests.known(request)
        if claim is None:
            types = tuple(each for each in dict.fromkeys(queues) if each in self._types)
            claim = Claim(worker, silence, request, types, min(limit, BATCH_MAX))
            self._requests.keep(request, claim)
            tasks = await self._takes.take(claim, wait)
        else:
            tasks = await self._takes.again(claim)
            if not claim.got and not tasks:  # the first asking was cut short before it got anything
                tasks = await self._takes.take(claim, wait)
        if not tasks:
            self._requests.forget(request)
        self._ids.note(tasks)
        jobs: list[TakenJob] = []
        rejected: list[Rejected] = []
        for task in tasks:
            found = await self._with_params(task)
            if isinstance(found, Bury):
                rejected.append(Rejected(task.stored.state.queue, task.stored.state.id, found.error))
            elif found is not None:
                jobs.append(found)
        return Taken(tuple(jobs), await self.time.now(), tuple(rejected))

    async def _with_params(self, task: Task) -> TakenJob | Bury | None:
        """A claimed task with its parameters. One whose parameters cannot be read is dead-lettered; None for one whose
        store does not answer, which is released and due again after a growing delay."""
        state = task.stored.state
        try:
            return self._shown(await self._store.whole(task))
        except StoreUnavailable as away:
            delay = _AWAY.delay(state.interruptions + 1, 0.5)
            release = Requeue(state.hold, Budget.INTERRUPTIONS, Reason.INTERRUPTED, error=away.message, delay=delay)
            await self.settle([release], request=f"params {state.token} {state.nonce}")
            return None
        except WrasseError as error:
            bury = Bury(state.hold, Reason.INVALID_PAYLOAD, error=f"its parameters cannot be read: {error.message}")
            await self.settle([bury], request=f"params {state.token} {state.nonce}")
            return bury

    async def beat(
        self,
        worker: WorkerInfo,
        holds: Sequence[Hold],
        *,
        silence: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> Beaten:
        at = await self.time.now()
        if silence <= timedelta(0):
            await self._workers.goodbye(worker)
            found = [await self._ids.find(hold.id) for hold in _bounded(holds)]
            mine = [
                task is not None and rules.holds(task.stored, hold)
                for task, hold in zip(found, holds, strict=True)
            ]
            return Beaten(tuple(mine), at)
        await self._workers.beat(worker, at, silence)
        calls = [partial(self._beat, hold, silence, progress.get(hold.id), at) for hold in _bounded(holds)]
        return Beaten(tuple(await abreast(calls)), at)

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        check_settlements(settlements, self._check)
        # Numbered, since one batch may name a hold twice, and only the first of the two is ever done.
        calls = [partial(self._settle, each, f"{request}#{n}") for n, each in enumerate(settlements)]
        return await _by_id([each.hold.id for each in settlements], calls)

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        ids = [each.id if isinstance(each, Cancel) else each.hold.id for each in _bounded(moves)]
        one = self._move if len(moves) == 1 else self._moved
        return await _by_id(ids, [partial(one, each) for each in moves])

    async def _moved(self, move: Move) -> Outcome:
        """One of several: a record that is broken fails alone, and what was moved beside it counts."""
        try:
            return await self._move(move)
        except StoreBroken:
            return Outcome.FAILED

    async def get(self, id: str) -> JobRecord | None:
        task = await self._ids.find(id)
        if task is None:
            return None
        try:
            stored = await self._store.whole(task)
        except (StoreBroken, StoreUnavailable) as error:  # shown without what cannot be read, and with the reason
            told = f"its parameters or result cannot be read now: {error.message}"
            known = task.stored.state.error
            state = replace(task.stored.state, error=f"{known}; {told}" if known else told)
            stored = replace(task.stored, state=state)
        return stored.at(await self.time.now()).shown

    async def page(
        self, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobState]:
        if limit < 1:
            raise UsageError(f"a page of {limit} jobs", do="ask for at least one")
        return await self._views.page(place, where, after, limit, newest=newest)

    async def overdue(self, after: str | None, limit: int) -> Page[JobState]:
        """Held tasks whose deadline has passed, from the index of what is due."""
        return await self._due(after, limit, is_stuck)

    async def aged(self, place: Place, after: str | None, limit: int) -> Page[JobState]:
        """Tasks that finished so long ago that they may go, longest ago first, from the index of what is due."""
        return await self._due(after, limit, lambda task: task.stored.state.place is place)

    async def _due(self, after: str | None, limit: int, which: Callable[[Task], bool]) -> Page[JobState]:
        """Due tasks of every type, also of those that no setting names: other programs write them."""
        page = await due_tasks(self._store, self.search, after, limit, which)
        self._ids.note_states(page)
        return page

    async def counts(self) -> Counts:
        queues, at = await self._views.counts()
        return Counts(queues, await self._workers.all(at), at)

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        calls = [partial(self._delete, each, ids_kept) for each in _bounded(deletes)]
        return await _by_id([each.hold.id for each in deletes], calls)

    def _check(self, job: Job) -> None:
        check_job(job)
        if job.queue not in self._types:
            raise UnknownName(job.queue, self._types, what="task type", where="task_types")
        check_task_id(job.id)
        if job.unique or job.group:
            raise UsageError(
                f"tasks have no unique name and no group, as task {job.id!r} should have",
                do="give it an id, or use a queue that is no task type",
            )

    async def _add(self, job: Job, request: str, at: datetime, known: frozenset[str]) -> bool:
        if job.id in known:
            return await self._was_put_by(job, request)
        wanted = replace(job, not_before=None if job.not_before is None else whole_up(job.not_before))
        stored = rules.added(
            wanted,
            at,
            rank=self.search.next_rank(at),
            request=request,
            retries_max=self._types[job.queue].retries_max,
        )
        fields: Fields = {name: job.headers[name] for name in ("job_id", "org_id") if job.headers.get(name)}
        key = f"{job.queue}:{job.id}"
        ref = await self._store.check_in(key, "params", job.payload)
        if ref:
            fields = {**fields, "params_ref": ref}
            stored = replace(stored, job=replace(stored.job, payload=b""))
        said = () if stored.delayed else (queued(stored, fields),)
        new = await self._store.create(stored, at, nonce=f"put:{request}", fields=fields, said=said)
        return bool(new) or await self._was_put_by(job, request)

    async def _was_put_by(self, job: Job, request: str) -> bool:
        task = await self._store.get(job.queue, job.id)
        return task is not None and task.stored.put_by == request

    async def _promised(self, jobs: tuple[Job, ...], request: str) -> None:
        await self.put(jobs, request=request)

    async def _beat(self, hold: Hold, silence: timedelta, told: Progress | None, at: datetime) -> bool:
        for _ in range(_TRIES):
            task = await self._ids.find(hold.id)
            after = None if task is None else rules.beat(task.stored, hold, at, silence=silence, progress=told)
            if task is None or after is None:
                return False
            said = (progressed(after, task.fields, at),) if told is not None else ()
            if await self._store.put(task, after, at, said) is not None:
                return True
        raise _changing(hold.id)

    async def _settle(self, settlement: Settlement, request: str) -> Outcome:
        hold = settlement.hold
        ref = ""
        for _ in range(_TRIES):
            task = await self._ids.find(hold.id)
            if task is None:
                return Outcome.LOST
            if rules.settled_by(task.stored, hold, request):
                await self._kept_promise(task)
                return Outcome.DONE
            at = await self.time.now()
            after = rules.settle(task.stored, settlement, at, request=request, rank=self.search.next_rank(at))
            if after is None:
                return Outcome.LOST
            if after.result is not None and not ref:
                ref = await self._store.check_in(task.key, "result", after.result)
            if ref:
                task = replace(task, fields={**task.fields, "result_ref": ref})
                after = replace(after, result=None)
            written = await self._store.put(task, after, at, after_attempt(task.stored, after, task.fields, at))
            if written is not None:
                await self._kept_promise(written)
                return Outcome.DONE
        raise _changing(hold.id)

    async def _kept_promise(self, task: Task) -> None:
        if task.stored.follow:
            await self.search.follow(task, await self.time.now())

    async def _move(self, move: Move) -> Outcome:
        id = move.id if isinstance(move, Cancel) else move.hold.id
        for _ in range(_TRIES):
            task = await self._ids.find(id)
            at = await self.time.now()
            rank = self.search.next_rank(at)
            after = None if task is None else rules.move(task.stored, move, at, rank=rank)
            if task is None or after is None:
                return Outcome.LOST
            said = after_move(task.stored, after, move, task.fields, at)
            written = await self._store.change(task, after, at, said)
            if isinstance(written, Task):
                return Outcome.DONE
            if written is Outcome.UNKNOWN:
                return written  # looking again would find its own work, and call it somebody else's
        raise _changing(id)

    async def _delete(self, delete: Delete, ids_kept: timedelta) -> Outcome:
        task = await self._ids.find(delete.hold.id)
        at = await self.time.now()
        if task is None or not rules.deletable(task.stored, delete, at):
            return Outcome.LOST
        if task.outbox:  # what it still has to tell must not go with it
            task = await self._store.deliver(task, at) or task
        if task.stored.job.lasting:
            # Kept first: a crash in between leaves an id that is known twice, never one that is forgotten.
            await self._ids.keep(task.stored.state.id, at + ids_kept)
        return await self._store.delete(task)

    def _shown(self, stored: StoredJob) -> TakenJob:
        """As its worker gets it. A type with one budget for all retries counts rescues among the failures."""
        taken, state = stored.taken, stored.state
        if state.retries_max is None or self._types[state.queue].retries_max is None:
            return taken
        return replace(taken, failures=state.failures + state.rescues)


def _bounded(batch: Sequence[_B]) -> Sequence[_B]:
    if len(batch) > BATCH_MAX:
        raise UsageError(f"{len(batch)} tasks at once", do=f"send at most {BATCH_MAX} in one call")
    return batch


async def _by_id(ids: Sequence[str], calls: Sequence[Callable[[], Awaitable[Outcome]]]) -> Sequence[Outcome]:
    """Makes changes of different tasks at once, and those of one task one after another."""
    rows: dict[str, list[int]] = {}
    for n, id in enumerate(ids):
        rows.setdefault(id, []).append(n)

    async def row(numbers: list[int]) -> list[Outcome]:
        return [await calls[n]() for n in numbers]

    answers = await abreast([partial(row, numbers) for numbers in rows.values()])
    outcomes: dict[int, Outcome] = {}
    for numbers, answer in zip(rows.values(), answers, strict=True):
        outcomes.update(zip(numbers, answer, strict=True))
    return [outcomes[n] for n in range(len(ids))]


def _changing(id: str) -> StoreUnavailable:
    return StoreUnavailable(f"the record of task {id!r} keeps changing", do="try again")


async def _asked(records: Records) -> datetime:
    return (await records.due(None, None, 1)).at
