"""What is due among tasks, and must be done whoever does it: events and follow-ups that a crash left owed, and delayed
tasks whose moment has come.

Nothing here spends a budget: what was promised is done once more, what waits is told once more. A second copy of an
event loses at the claim. Each step is one conditional write, so that two who find the same do it once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wrasse.errors import StoreBroken, UsageError
from wrasse.jobs.record_core.queue import Turns
from wrasse.jobs.stream_tasks.events import queued
from wrasse.jobs.stream_tasks.store import Malformed, Task, TaskStore
from wrasse.ports.jobs import Job, JobState, Place
from wrasse.ports.page import Page
from wrasse.ports.records import Record

_PAGES_MAX = 10
LOOK_MAX = 100  # due records that a taker looks at; the rest is for the sweep
MALFORMED_MAX = 1_000  # remembered

PutJobs = Callable[[Sequence[Job], str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at the due records found: tasks that go before those that wait, and when the next one is due."""

    at: datetime
    next_ones: tuple[Task, ...]
    next_at: datetime | None = None


class TaskSearch:
    """Looks at what is due. `put` makes follow-up tasks."""

    def __init__(self, store: TaskStore, put: PutJobs, turns: Turns) -> None:
        self._store, self._put, self._turns = store, put, turns
        self.malformed: dict[str, str] = {}  # why, by key; the newest MALFORMED_MAX

    async def look(self, within: timedelta) -> Looked:
        """Does what is due, and tells what is to be taken first."""
        ready: list[Task] = []
        later: list[datetime] = []
        after: str | None = None
        for _ in range(_PAGES_MAX):
            page = await self._store.due(after, LOOK_MAX, within=within)
            at = self._store.time.heard(page.at)
            idle = 0  # finished tasks that may go, and those of other workers: nothing to do for a taker
            for record in page:
                task = self.read(record)
                if isinstance(task, Malformed) or task.stored.state.place is not Place.READY:
                    idle += 1
                    if isinstance(task, Malformed) or not (task.outbox or task.stored.follow):
                        continue
                if record.due_at is not None and record.due_at > at:
                    later.append(record.due_at)
                    continue
                done = await self.mend(task, at)
                if done.stored.served_next:
                    ready.append(done)
            after = page.cursor
            if after is None or idle < len(page):
                break
        return Looked(at, tuple(sorted(ready, key=lambda task: task.stored.rank)), min(later, default=None))

    async def mend_due(self, *, dry: bool) -> int:
        """Mends what is due, up to a bound; how many needed it."""
        needed, after = 0, None
        for _ in range(_PAGES_MAX):
            page = await self._store.due(after, LOOK_MAX)
            at = self._store.time.heard(page.at)
            for record in page:
                task = self.read(record)
                if isinstance(task, Malformed) or not _needs_a_hand(task, at):
                    continue
                needed += 1
                if not dry:
                    await self.mend(task, at)
            after = page.cursor
            if after is None:
                break
        return needed

    async def mend(self, task: Task, at: datetime) -> Task:
        """Pays what a task owes and lets a delayed one wait like the others; the task as it is then."""
        if task.outbox:
            task = await self._store.deliver(task, at) or task
        if task.stored.follow:
            task = await self.follow(task, at)
        stored = task.stored.at(at)
        if task.stored.delayed and not stored.delayed:
            # It joins the end of its queue, and is told now, not when it was put.
            told = replace(stored, rank=self._turns.next(at))
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
            task = self._store.read(record)
        except StoreBroken as broken:
            self.malformed.pop(record.key, None)
            self.malformed[record.key] = broken.message
            while len(self.malformed) > MALFORMED_MAX:
                del self.malformed[next(iter(self.malformed))]
            return Malformed(record.key, broken.message)
        self.malformed.pop(record.key, None)
        return task


def _needs_a_hand(task: Task, at: datetime) -> bool:
    return bool(task.outbox or task.stored.follow) or (task.stored.delayed and not task.stored.at(at).delayed)


def is_stuck(task: Task) -> bool:
    """Is it held, with nothing owed? Whether its deadline has passed is the index's to say."""
    return task.stored.state.place is Place.HELD and not task.outbox


async def due_tasks(
    store: TaskStore, search: TaskSearch, after: str | None, limit: int, wanted: Callable[[Task], bool]
) -> Page[JobState]:
    """Due tasks of the wanted sort, longest due first. Reads only."""
    if limit < 1:
        raise UsageError(f"a page of {limit} jobs", do="ask for at least one")
    found: list[tuple[JobState, str]] = []
    while True:
        page = await store.due(after, limit)
        at = store.time.heard(page.at)
        for record, cursor in zip(page.items, page.cursors, strict=True):
            after = cursor
            task = search.read(record)
            if isinstance(task, Malformed) or record.due_at is None or record.due_at > at:
                continue
            if wanted(task) and _passed(task, at):
                found.append((task.stored.state, cursor))
            if len(found) == limit:
                break
        if len(found) == limit or not page.more:
            break
    more = len(found) == limit and (page.more or found[-1][1] != page.cursors[-1])
    return Page(tuple(state for state, _ in found), tuple(cursor for _, cursor in found), at, more)


def _passed(task: Task, at: datetime) -> bool:
    until = task.stored.state.until
    return until is None or until <= at
