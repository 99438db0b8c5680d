"""What is due among tasks, and must be done whoever does it: events and follow-ups that a crash left owed, and delayed
tasks whose moment has come.

Nothing here spends a budget: what was promised is done once more, what waits is told once more. A second copy of an
event loses at the claim. Each step is one conditional write, so that two who find the same do it once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wrasse.errors import StoreBroken
from wrasse.jobs.job_record import back
from wrasse.jobs.task_events import queued
from wrasse.jobs.task_fields import FAR
from wrasse.jobs.task_store import Malformed, Task, TaskStore, read_task
from wrasse.ports.jobs import Job, Place
from wrasse.ports.records import Record

LOOK_MAX = 100  # due records that a taker looks at; the rest is for the sweep
MALFORMED_MAX = 1_000  # remembered

PutJobs = Callable[[tuple[Job, ...], str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at the due records found: tasks that go before those that wait, and when the next one is due."""

    at: datetime
    next_ones: tuple[Task, ...]
    next_at: datetime | None = None


class TaskSearch:
    """Looks at what is due. `put` makes follow-up tasks."""

    def __init__(self, store: TaskStore, put: PutJobs) -> None:
        self._store = store
        self._put = put
        self.malformed: dict[str, str] = {}  # why, by key; the newest MALFORMED_MAX
        self._number = 0

    async def look(self, within: timedelta) -> Looked:
        """Does what is due, and tells what is to be taken first."""
        page = await self._store.due(None, LOOK_MAX, within=within)
        at = self._store.time.heard(page.at)
        ready: list[Task] = []
        later: list[datetime] = []
        for record in page:
            task = self.read(record)
            if isinstance(task, Malformed):
                continue
            if record.due_at is not None and record.due_at > at:
                if task.stored.state.place is Place.READY:
                    later.append(record.due_at)
                continue
            done = await self.mend(task, at)
            if done.stored.served_next:
                ready.append(done)
        return Looked(at, tuple(sorted(ready, key=lambda task: task.stored.rank)), min(later, default=None))

    async def mend(self, task: Task, at: datetime) -> Task:
        """Pays what a task owes and lets a delayed one wait like the others; the task as it is then."""
        if task.outbox:
            task = await self._store.deliver(task, at) or task
        if task.stored.follow:
            task = await self.follow(task, at)
        stored = task.stored.at(at)
        if task.stored.delayed and not stored.delayed:
            # It joins the end of its queue, and is told now, not when it was put.
            told = replace(stored, rank=self.next_rank(at))
            reason = "" if stored.state.attempts == 0 else "retry"
            return await self._store.put(task, told, at, [queued(told, task.fields, reason=reason)]) or task
        return task

    async def follow(self, task: Task, at: datetime) -> Task:
        """Puts the jobs that a finish promised, and then forgets the promise."""
        state = task.stored.state
        await self._put(task.stored.follow, f"follow-{state.queue}-{state.id}-{state.token}")
        return await self._store.put(task, replace(task.stored, follow=()), at) or task

    def read(self, record: Record) -> Task | Malformed:
        """The task in a record, or why it is none."""
        try:
            task = read_task(record)
        except StoreBroken as broken:
            self.malformed.pop(record.key, None)
            self.malformed[record.key] = broken.message
            while len(self.malformed) > MALFORMED_MAX:
                del self.malformed[next(iter(self.malformed))]
            return Malformed(record.key, broken.message)
        self.malformed.pop(record.key, None)
        return task

    def next_rank(self, at: datetime) -> int:
        """A turn behind everybody that this process put before."""
        self._number = max(self._number + 1, back(at))
        return self._number


def is_blocked(task: Task) -> bool:
    """Does it wait for other tasks?"""
    return task.stored.state.not_before == FAR
