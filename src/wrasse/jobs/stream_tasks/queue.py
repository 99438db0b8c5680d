"""Stream tasks: a JobQueue made of Records, Streams and Groups, so that jobs run on Redis Streams, NATS and SQLite as
in the design document of the sweeper.

The record is the task; an entry of its type's queue stream is a hint that it is ready. Every change is one conditional
write of the record, together with its event. A queue is a task type, and its record, streams and group have the
document's names, so that programs of the origin work beside ours.

Follow-ups of a completion are stored in its write and enqueued right after; after a crash the next search enqueues
them.

A record is named by type and id, so an id is searched in all types unless it is cached here. An id belongs to one task:
an enqueue checks the other types first. Two concurrent enqueues of one id into two types both succeed; ids that are
generated per task, such as ULIDs, never collide so.

A hint is delivered, its task is claimed by a conditional write with a token, and only then is the hint acked; a hint
whose claim had a conflict, or whose task is gone or not ready, is just acked. If a worker dies between the two, the
hint is delivered again and finds the task running. Released tasks are claimed before hints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from wrasse.clock import Clock
from wrasse.errors import StoreBroken, UnknownName
from wrasse.jobs.record_core.claims import Claims, MillisecondTime, RecordClaim, gather_bounded, whole_up
from wrasse.jobs.record_core.queue import Cause, QueueOrder, RecordQueue, unreadable
from wrasse.jobs.stream_tasks.events import (
    EventCodec,
    Said,
    TaskReports,
    after_attempt,
    after_move,
    hinted,
    progressed,
    queued,
)
from wrasse.jobs.stream_tasks.fields import (
    KNOWN_IDS,
    TASKS,
    WORKERS,
    Fields,
    check_task_id,
    check_task_type,
    group_of,
    queue_of,
    record_key,
)
from wrasse.jobs.stream_tasks.store import THRESHOLD, Malformed, StoreParts, Task, TaskRetention, TaskStore
from wrasse.jobs.stream_tasks.views import TaskSearch, TaskStrays, due_tasks, is_stuck, views_of
from wrasse.ports.groups import Ack, Answer, Delivery, Groups, Nak, StartAt
from wrasse.ports.jobs import (
    ClaimedJob,
    Job,
    JobFilter,
    JobInfo,
    JobRecord,
    JobState,
    Progress,
    Settlement,
)
from wrasse.ports.objects import Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Collection, Records
from wrasse.ports.rules.job_transitions import StoredJob
from wrasse.ports.streams import Streams

ACK_TIMEOUT = timedelta(seconds=30)  # within which a hint is claimed and acked
_NAP = timedelta(seconds=1)  # the longest wait between two searches of due tasks
_SHORTEST = timedelta(milliseconds=5)


class TaskClaims(Claims[Task]):
    """Claims tasks from their streams."""

    tries = 3

    def __init__(self, store: TaskStore, groups: Groups, codec: EventCodec, search: TaskSearch) -> None:
        super().__init__(store)
        self._store = store
        self._groups = groups
        self._codec = codec
        self._search = search
        self._joined: set[str] = set()

    async def claim(self, claim: RecordClaim, wait: timedelta) -> list[Task]:
        """Up to the claim's limit of tasks, waiting for the first for as long as `wait`."""
        for task_type in claim.queues:
            await self._join(task_type)
        while True:
            due = await self._search.repair_and_list(min(wait, _NAP))
            claimed = await self._to_the_end(self._claim_ready(claim, due.next_ones))
            if claimed or wait <= timedelta(0):
                return claimed
            nap = min(wait, _NAP)
            if due.next_at is not None:
                nap = min(nap, max(due.next_at - due.at, _SHORTEST))
            wait -= nap
            deliveries = await self._wait(claim, nap)
            if deliveries:
                claimed = await self._to_the_end(self._claim_hints(claim, deliveries, claim.limit))
                if claimed:
                    return claimed

    async def _claim_ready(self, claim: RecordClaim, next_ones: Sequence[Task]) -> list[Task]:
        """Claims ready tasks: queue by queue, in each released ones first."""
        claimed: list[Task] = []
        for task_type in claim.queues:
            for task in next_ones:
                if task.stored.info.queue == task_type and len(claimed) < claim.limit:
                    found = await self._claim(claim, task)
                    claimed += [] if found is None else [found]
            while len(claimed) < claim.limit:
                deliveries = await self._groups.deliver(
                    [queue_of(task_type)],
                    group_of(task_type),
                    claim.worker,
                    claim.limit - len(claimed),
                    ack_timeout=ACK_TIMEOUT,
                )
                if not deliveries:
                    break
                claimed += await self._claim_hints(claim, deliveries, claim.limit - len(claimed))
        return claimed

    async def _claim_hints(self, claim: RecordClaim, deliveries: Sequence[Delivery], limit: int) -> list[Task]:
        answers: dict[int, Answer] = {}
        try:
            found = await gather_bounded(
                [partial(self._claim_hint, claim, each, answers) for each in enumerate(deliveries[:limit])]
            )
        finally:
            # Hints that were not claimed are nacked, also after an error, and so delivered again at once.
            naks = [Nak(each.entry.subject, each.group, each.entry.id) for each in deliveries]
            await self._groups.answer([answers.get(n, nak) for n, nak in enumerate(naks)])
        return [task for task in found if task is not None]

    async def _claim_hint(
        self, claim: RecordClaim, numbered: tuple[int, Delivery], answers: dict[int, Answer]
    ) -> Task | None:
        number, delivery = numbered
        entry = delivery.entry
        task_type = entry.subject.split(".")[-2]
        payload = self._codec.open(entry)
        id, params = ("", b"") if payload is None else hinted(payload, task_type)
        if not id:
            answers[number] = self._codec.set_aside(delivery, "not an event of a task")
            return None
        try:
            task = await self._store.get(task_type, id)
        except StoreBroken:
            answers[number] = self._codec.set_aside(delivery, "the record of its task is malformed")
            return None
        claimed = None if task is None else await self._claim(claim, _with_params(task, params))
        answers[number] = Ack(entry.subject, delivery.group, entry.id)
        return claimed

    async def _wait(self, claim: RecordClaim, nap: timedelta) -> Sequence[Delivery]:
        """Waits for hints of any of the types."""
        waits = [
            asyncio.ensure_future(
                self._groups.deliver(
                    [queue_of(each)], group_of(each), claim.worker, claim.limit, ack_timeout=ACK_TIMEOUT, wait=nap
                )
            )
            for each in claim.queues
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            answers = await asyncio.gather(*waits, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        found = [delivery for answer in answers if not isinstance(answer, BaseException) for delivery in answer]
        if failed and not found:
            raise failed[0]
        return found

    async def _join(self, task_type: str) -> None:
        if task_type not in self._joined:
            first = StartAt(first=True)
            await self._groups.join(queue_of(task_type), group_of(task_type), first, ack_timeout=ACK_TIMEOUT)
            self._joined.add(task_type)


def _with_params(task: Task, params: bytes) -> Task:
    """The task with the parameters of another program's event, where its record has none."""
    job = task.stored.job
    if not params or job.payload or task.fields.get("params_ref") or task.stored.enqueued_by:
        return task
    info = replace(task.stored.info, size=len(params))
    return replace(task, stored=replace(task.stored, job=replace(job, payload=params), info=info))


_SEEN_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TaskType:
    """Settings of a type: how often its tasks may be retried, and how long a task that another program claimed without
    a deadline may stay unchanged."""

    name: str
    retries_max: int | None = None
    threshold: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class TaskPorts:
    """The ports of stream tasks. `records` opens a collection; without objects large parameters are refused.
    `together`: records and streams are one database."""

    records: Callable[[Collection], Records]
    streams: Streams
    groups: Groups
    codec: EventCodec
    clock: Clock
    objects: Objects | None = None
    together: bool = True
    kept: TaskRetention | None = None
    threshold: timedelta = THRESHOLD  # of types without settings


class TaskQueue(RecordQueue[Task]):
    """All tasks of the named types."""

    what = "tasks"

    def __init__(self, ports: TaskPorts, types: Sequence[TaskType]) -> None:
        for each in types:
            check_task_type(each.name)
        self.ports = ports
        self.types = tuple(types)
        self._types = {each.name: each for each in types}
        self._seen: dict[str, str] = {}  # type by id, newest last
        records, order = ports.records(TASKS), QueueOrder()
        emits = records.emits and ports.together
        thresholds = {each.name: each.threshold for each in types}
        spans = thresholds, ports.kept, ports.threshold
        parts = StoreParts(records, ports.streams, ports.objects, ports.codec, emits, *spans)
        self._store = TaskStore(parts, MillisecondTime(ports.clock, lambda: _read_time(records)))
        self.search = TaskSearch(self._store, self._follow, order)
        claims = TaskClaims(self._store, ports.groups, ports.codec, self.search)
        super().__init__(self._store, claims, ports.records(KNOWN_IDS), ports.records(WORKERS), ports.clock, order)
        if not emits:
            # If a record and its event are two steps, the next task waits for both, so entries keep the batch's order.
            self.enqueue_at_once = 1
        self._views = views_of(self._store.status_index, self._store, self.search, list(self._types), ports.clock)
        self.strays = TaskStrays(records, ports.streams, self._store, self.search, tuple(self._types))
        self.reports = TaskReports(ports.streams, ports.codec, ports.clock, self.search.malformed)

    async def overdue(self, after: str | None, limit: int) -> Page[JobInfo]:
        """Running tasks whose deadline has passed, from the due index."""
        return await self._due(after, limit, is_stuck)

    async def aged(self, state: JobState, after: str | None, limit: int) -> Page[JobInfo]:
        """Finished tasks past their retention, longest ago first, from the due index."""
        return await self._due(after, limit, lambda task: task.stored.info.state is state)

    async def _due(self, after: str | None, limit: int, which: Callable[[Task], bool]) -> Page[JobInfo]:
        """Due tasks of every type, also of types without settings: other programs write them."""
        page = await due_tasks(self._store, self.search, after, limit, which)
        self._note(page)
        return page

    def _check(self, job: Job) -> None:
        super()._check(job)
        if job.queue not in self._types:
            raise UnknownName(job.queue, self._types, what="task type", where="task_types")
        check_task_id(job.id)

    def _served(self, queues: Sequence[str]) -> tuple[str, ...]:
        return tuple(each for each in super()._served(queues) if each in self._types)

    def _claimed(self, stored: StoredJob) -> ClaimedJob:
        """The task as a claim returns it. A type with one budget for all retries counts rescues as failures."""
        claimed, info = stored.claimed, stored.info
        if info.retries_max is None or self._types[info.queue].retries_max is None:
            return claimed
        return replace(claimed, failures=info.failures + info.rescues)

    def _note_claimed(self, claimed: Sequence[Task]) -> None:
        self._note(task.stored.info for task in claimed)

    def _note(self, infos: Iterable[JobInfo]) -> None:
        """Caches the types of these ids, so that a task is found also if its type has no settings."""
        for info in infos:
            self._seen.pop(info.id, None)
            self._seen[info.id] = info.queue
        while len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]

    def _retries_max(self, job: Job) -> int | None:
        return self._types[job.queue].retries_max

    async def get(self, id: str) -> JobRecord | None:
        try:
            return await super().get(id)
        except StoreBroken:
            for task_type in self._in_order(id):
                shown = await self._unreadable(task_type, id)
                if shown is not None:
                    return shown
            raise

    async def _unreadable(self, task_type: str, id: str) -> JobRecord | None:
        """A task whose record cannot be read: its bytes and the error. Read from a listing, which skips damage."""
        key = record_key(task_type, id)
        page = await self._store.page(key, None, 1)
        record = next((each for each in page if each.key == key), None)
        found = None if record is None else self.search.read(record)
        if record is None or not isinstance(found, Malformed):
            return None
        info = unreadable(id, task_type, JobState.READY, len(record.value), page.at, found.why, kind=task_type)
        return JobRecord(Job(id, kind=task_type, queue=task_type, payload=record.value), info)

    def _in_order(self, id: str) -> Sequence[str]:
        """The types to search for this id, the likeliest first."""
        seen = self._seen.get(id)
        return [*self._types] if seen is None else [seen, *(each for each in self._types if each != seen)]

    async def _find(self, id: str) -> Task | None:
        """The task of this id, of any type. StoreBroken for an unreadable one if no other type has the id."""
        broken: StoreBroken | None = None
        for task_type in self._in_order(id):
            try:
                task = await self._store.get(task_type, id)
            except StoreBroken as why:
                broken = broken or why
                continue
            if task is not None:
                self._note_claimed([task])
                return task
        if broken is not None:
            raise broken
        return None

    async def _stored(self, job: Job) -> Task | None:
        return await self._store.get(job.queue, job.id)

    async def _is_known(self, job: Job, at: datetime) -> bool:
        if await super()._is_known(job, at):
            return True
        others = [each for each in self._types if each != job.queue]
        return any(await asyncio.gather(*(self._is_there(each, job.id) for each in others)))

    async def _is_there(self, task_type: str, id: str) -> bool:
        """Whether there is a record of this name, also an unreadable one."""
        try:
            return await self._store.get(task_type, id) is not None
        except StoreBroken:
            return True

    async def _create(self, stored: StoredJob, at: datetime, request: str) -> bool:
        job, info = stored.job, stored.info
        if info.not_before is not None:
            stored = replace(stored, info=replace(info, not_before=whole_up(info.not_before)))
        fields: Fields = {name: job.headers[name] for name in ("job_id", "org_id") if job.headers.get(name)}
        ref = await self._store.check_in(f"{job.queue}:{job.id}", "params", job.payload)
        if ref:
            fields = {**fields, "params_ref": ref}
            stored = replace(stored, job=replace(stored.job, payload=b""))
        said = () if stored.scheduled else (queued(stored, fields),)
        return bool(await self._store.create(stored, at, nonce=f"put:{request}", fields=fields, said=said))

    async def _write(self, seen: Task, after: StoredJob, at: datetime, cause: Cause) -> Outcome:
        said: tuple[Said, ...] = ()
        if isinstance(cause, Progress):
            said = (progressed(after, seen.fields, at),)
        elif cause is not None:
            said = after_move(seen.stored, after, cause, seen.fields, at)
        written = await self._store.change(seen, after, at, said)
        # After an unclear answer a second try would find our own write, and report it as a conflict.
        return Outcome.DONE if isinstance(written, Task) else written

    async def _end(
        self, seen: Task, after: StoredJob, at: datetime, settlement: Settlement, aside: dict[str, str], *, beside: bool
    ) -> Outcome:
        if after.result is not None and "result_ref" not in aside:
            ref = await self._store.check_in(seen.key, "result", after.result)
            aside.update({"result_ref": ref} if ref else {})
        if aside:
            seen, after = replace(seen, fields={**seen.fields, **aside}), replace(after, result=None)
        written = await self._store.put(seen, after, at, after_attempt(seen.stored, after, seen.fields, at))
        if written is None:
            return Outcome.CONFLICT
        await self._finish_up(written)
        return Outcome.DONE

    async def _finish_up(self, seen: Task) -> None:
        if seen.stored.follow:
            await self.search.follow(seen, await self.time.now())

    async def _drop(self, seen: Task, at: datetime) -> Outcome:
        if seen.outbox:  # its pending events are delivered first
            seen = await self._store.deliver(seen, at) or seen
        return await self._store.delete(seen)


class AgedTasks(TaskQueue):
    """Stream tasks for the sweep `finished_jobs`: listings show only finished tasks past their retention, from the due
    index, so that the reads of a run follow what is deleted, not what is stored."""

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobInfo]:
        assert state in (JobState.DONE, JobState.DEAD), "only finished tasks are deleted"
        return await self.aged(state, after, limit)


async def _read_time(records: Records) -> datetime:
    return (await records.due(None, None, 1)).at
