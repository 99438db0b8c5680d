"""Due work on stream tasks, done by workers and sweeps: events and follow-ups that a crash left undelivered, and
scheduled tasks that have become due.

Nothing here spends a budget: a promised event or follow-up is delivered again. A second copy of a hint loses at the
claim. Each step is one conditional write, so that two concurrent searches do it once.

Strays are records without a due entry that should have one. Other programs write tasks too. A task that was claimed
elsewhere has no due entry until a scan has read it and noted its deadline. And a ready task may have no entry in its
queue: a stream was lost, or a program wrote the record and died before it published. Such a task is published again,
but only if its entry is provably gone: its group has read to the end of the stream and has no pending entries. Age
proves nothing: under a backlog all entries are old.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wrasse.errors import StoreBroken
from wrasse.jobs.record_core.queue import QueueOrder
from wrasse.jobs.stream_tasks.events import queued
from wrasse.jobs.stream_tasks.fields import group_of, index_entry_of, queue_of
from wrasse.jobs.stream_tasks.store import Malformed, Task, TaskStore, due_of
from wrasse.ports.foreign_records import SharedRecords
from wrasse.ports.jobs import Job, JobInfo, JobState
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit, pages
from wrasse.ports.records import Record, Records
from wrasse.ports.strays import StrayScan
from wrasse.ports.streams import Streams

_PAGES_MAX = 10
LOOK_MAX = 100  # due records that a worker reads; the rest is left to the sweep
MALFORMED_MAX = 1_000  # remembered

PutJobs = Callable[[Sequence[Job], str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Due:
    """The due tasks: those that are claimed before all others, and when the next one is due."""

    at: datetime
    next_ones: tuple[Task, ...]
    next_at: datetime | None = None


class TaskSearch:
    """Finds and does due work. `put` enqueues follow-up tasks."""

    def __init__(self, store: TaskStore, put: PutJobs, order: QueueOrder) -> None:
        self._store, self._put, self._order = store, put, order
        self.malformed: dict[str, str] = {}  # reasons by key; the newest MALFORMED_MAX

    async def look(self, within: timedelta) -> Due:
        """Does what is due, and returns the tasks to claim first."""
        ready: list[Task] = []
        later: list[datetime] = []
        async for page in pages(lambda after: self._store.due(after, LOOK_MAX, within=within), most=_PAGES_MAX):
            at = self._store.time.heard(page.at)
            idle = 0  # expired finished tasks, and those of other workers: nothing to do for a worker
            for record in page:
                task = self.read(record)
                if isinstance(task, Malformed) or task.stored.info.state is not JobState.READY:
                    idle += 1
                    if isinstance(task, Malformed) or not (task.outbox or task.stored.follow):
                        continue
                if record.due_at is not None and record.due_at > at:
                    later.append(record.due_at)
                    continue
                done = await self.repair(task, at)
                if done.stored.served_next:
                    ready.append(done)
            if idle < len(page):
                break
        return Due(at, tuple(sorted(ready, key=lambda task: task.stored.rank)), min(later, default=None))

    async def repair_due(self, *, dry: bool) -> int:
        """Repairs due tasks, up to a bound; returns how many needed it."""
        needed = 0
        async for page in pages(lambda after: self._store.due(after, LOOK_MAX), most=_PAGES_MAX):
            at = self._store.time.heard(page.at)
            for record in page:
                task = self.read(record)
                if isinstance(task, Malformed) or not _needs_repair(task, at):
                    continue
                needed += 1
                if not dry:
                    await self.repair(task, at)
        return needed

    async def repair(self, task: Task, at: datetime) -> Task:
        """Delivers a task's pending events and follow-ups, and makes a due scheduled task ready; returns the new
        task."""
        if task.outbox:
            task = await self._store.deliver(task, at) or task
        if task.stored.follow:
            task = await self.follow(task, at)
        stored = task.stored.at(at)
        if task.stored.scheduled and not stored.scheduled:
            # It is added to the end of its queue, and published now, not when it was enqueued.
            readied = replace(stored, rank=self._order.next(at))
            reason = "" if stored.info.attempts == 0 else "retry"
            return await self._store.put(task, readied, at, [queued(readied, task.fields, reason=reason)]) or task
        return task

    async def follow(self, task: Task, at: datetime) -> Task:
        """Enqueues the follow-ups of a completed task, then removes them from its record."""
        info = task.stored.info
        await self._put(task.stored.follow, f"follow-{info.queue}-{info.id}-{info.token}")
        return await self._store.put(task, replace(task.stored, follow=()), at) or task

    def read(self, record: Record) -> Task | Malformed:
        """The task in a record, or why it is malformed."""
        try:
            task = self._store.read(record)
        except StoreBroken as broken:
            self.malformed.pop(record.key, None)
            self.malformed[record.key] = broken.message
            while len(self.malformed) > MALFORMED_MAX:
                del self.malformed[next(iter(self.malformed))]
            return Malformed(record.key, broken.message)
        self.malformed.pop(record.key, None)
        return task


def _needs_repair(task: Task, at: datetime) -> bool:
    return bool(task.outbox or task.stored.follow) or (task.stored.scheduled and not task.stored.at(at).scheduled)


def is_stuck(task: Task) -> bool:
    """Whether it is running, with no pending events. The due index says whether its deadline has passed."""
    return task.stored.info.state is JobState.RUNNING and not task.outbox


async def due_tasks(
    store: TaskStore, search: TaskSearch, after: str | None, limit: int, wanted: Callable[[Task], bool]
) -> Page[JobInfo]:
    """Due tasks that `wanted` accepts, longest due first. Reads only."""
    check_limit(limit, "jobs")
    found: list[tuple[JobInfo, str]] = []
    while True:
        page = await store.due(after, limit)
        at = store.time.heard(page.at)
        for record, cursor in zip(page.items, page.cursors, strict=True):
            after = cursor
            task = search.read(record)
            if isinstance(task, Malformed) or record.due_at is None or record.due_at > at:
                continue
            if wanted(task) and _passed(task, at):
                found.append((task.stored.info, cursor))
            if len(found) == limit:
                break
        if len(found) == limit or not page.more:
            break
    more = len(found) == limit and (page.more or found[-1][1] != page.cursors[-1])
    return Page(tuple(info for info, _ in found), tuple(cursor for _, cursor in found), at, more)


def _passed(task: Task, at: datetime) -> bool:
    deadline = task.stored.info.deadline
    return deadline is None or deadline <= at


class TaskStrays:
    """The port, for tasks."""

    def __init__(
        self, records: Records, streams: Streams, store: TaskStore, search: TaskSearch, types: tuple[str, ...]
    ) -> None:
        self._shared = records.shared
        self._streams, self._store, self._search, self._types = streams, store, search, types
        self._after: dict[str, str | None] = {}  # by type: where the scan for tasks without an entry continues

    async def look(self, after: str | None, limit: int, *, heartbeat_timeout: timedelta, dry: bool) -> StrayScan:
        """One scan of records of other programs, and one of ready tasks. `heartbeat_timeout` applies to neither: each
        record has its own deadline."""
        seen = adopted = 0
        cursor, ended = "", True
        if self._shared is not None:
            found = await self._shared.look(after, limit, dry=dry)
            cursor, ended = found.cursor, found.ended
            for record in found.changed:
                seen += 1
                adopted += 0 if dry else await self._note(self._shared, record, found.at)
            if not dry:
                await self._reindex(found.changed)
        if after is None:
            owed = await self._search.repair_due(dry=dry)
            seen, adopted = seen + owed, adopted + (0 if dry else owed)
        for task_type in self._types:
            more = await self._publish_lost(task_type, limit, dry=dry)
            seen, adopted = seen + more, adopted + (0 if dry else more)
        return StrayScan(len(self._types), seen, adopted, cursor, ended)

    async def _note(self, shared: SharedRecords, record: Record, at: datetime) -> int:
        task = self._search.read(record)
        # A malformed one is reported; it is never due.
        due_at = None if isinstance(task, Malformed) else due_of(task.stored, at)
        return int(await shared.note(record.key, at=record.version, due_at=due_at) is Outcome.DONE)

    async def _reindex(self, records: Sequence[Record]) -> None:
        """Indexes tasks that another program has changed, or that were written before the index existed, so that
        listings and counts are right after a round."""
        if self._store.status_index is not None and records:
            tasks = [(record, self._search.read(record)) for record in records]
            await self._store.status_index.reindex(
                [(each, None if isinstance(task, Malformed) else index_entry_of(task.stored)) for each, task in tasks]
            )

    async def _publish_lost(self, task_type: str, limit: int, *, dry: bool) -> int:
        """Publishes ready tasks whose entry is provably gone; returns how many."""
        page = await self._store.page(f"{task_type}:", self._after.get(task_type), limit)
        if not dry:
            self._after[task_type] = page.cursor
            await self._reindex(page.items)
        waiting = [task for record in page if (task := self._waiting(record)) is not None]
        # Read after the records: an entry that existed when they were read still exists, or was acked since, and then
        # the record has changed.
        if not waiting or not await self._is_queue_drained(task_type):
            return 0
        at = self._store.time.heard(page.at)
        if not dry:
            for task in waiting:
                await self._store.put(task, task.stored, at, [queued(task.stored, task.fields, reason="untold")])
        return len(waiting)

    def _waiting(self, record: Record) -> Task | None:
        task = self._search.read(record)
        if isinstance(task, Malformed) or task.outbox or task.due_at is not None:
            return None
        stored = task.stored
        return task if stored.info.state is JobState.READY and not stored.scheduled else None

    async def _is_queue_drained(self, task_type: str) -> bool:
        state = await self._streams.info(queue_of(task_type))
        if state is None or state.last is None:
            return True
        group = next((each for each in state.groups if each.name == group_of(task_type)), None)
        # Not the group's lag, which is wrong after some trims.
        return group is not None and group.pending == 0 and group.delivered >= state.last
