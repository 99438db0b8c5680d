"""Strays among tasks: records that are due to nobody although they should be.

Other programs write tasks too. One that was claimed elsewhere has no entry in the index of what is due until somebody
has looked at it: its deadline is noted then. And a task may wait without an entry in its queue: a stream was lost, or a
program wrote the record and died before it told. Such a task is told of once more, without spending any budget, but
only when its entry is provably gone: its group has read to the end of the stream and owes no answer. Age proves
nothing: under a backlog all is old. What a crash left owed, and delayed tasks that no worker let out, are seen to
on the same occasion.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from wrasse.jobs.stream_tasks.events import queued
from wrasse.jobs.stream_tasks.names import group_of, queue_of
from wrasse.jobs.stream_tasks.search import TaskSearch
from wrasse.jobs.stream_tasks.spots import spot_of
from wrasse.jobs.stream_tasks.store import Malformed, Task, TaskStore, due_of
from wrasse.ports.foreign import SharedRecords
from wrasse.ports.jobs import Place
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Record, Records
from wrasse.ports.strays import Looked
from wrasse.ports.streams import Streams


class TaskStrays:
    """The port, for tasks."""

    def __init__(
        self, records: Records, streams: Streams, store: TaskStore, search: TaskSearch, types: tuple[str, ...]
    ) -> None:
        self._shared = records if isinstance(records, SharedRecords) else None
        self._streams = streams
        self._store = store
        self._search = search
        self._types = types
        self._after: dict[str, str | None] = {}  # by type: where the look for tasks without an entry goes on

    async def look(self, after: str | None, limit: int, *, silence: timedelta, dry: bool) -> Looked:
        """One look at records of other programs, and one at what waits. `silence` counts for neither: a deadline is
        the record's own."""
        seen = adopted = 0
        cursor, ended = "", True
        if self._shared is not None:
            found = await self._shared.look(after, limit, dry=dry)
            cursor, ended = found.cursor, found.ended
            for record in found.changed:
                seen += 1
                adopted += 0 if dry else await self._note(self._shared, record, found.at)
            if not dry:
                await self._shelve(found.changed)
        if after is None:
            owed = await self._search.mend_due(dry=dry)
            seen, adopted = seen + owed, adopted + (0 if dry else owed)
        for task_type in self._types:
            more = await self._untold(task_type, limit, dry=dry)
            seen, adopted = seen + more, adopted + (0 if dry else more)
        return Looked(len(self._types), seen, adopted, cursor, ended)

    async def _note(self, shared: SharedRecords, record: Record, at: datetime) -> int:
        task = self._search.read(record)
        # A malformed one is told of; it is due never.
        due_at = None if isinstance(task, Malformed) else due_of(task.stored, at)
        return int(await shared.note(record.key, at=record.version, due_at=due_at) is Outcome.DONE)

    async def _shelve(self, records: Sequence[Record]) -> None:
        """Puts tasks where they belong that another program has changed, or that were written before there were
        shelves: so listings and numbers are right after a round, whoever wrote."""
        if self._store.shelves is not None and records:
            tasks = [(record, self._search.read(record)) for record in records]
            await self._store.shelves.shelve(
                [(each, None if isinstance(task, Malformed) else spot_of(task.stored)) for each, task in tasks]
            )

    async def _untold(self, task_type: str, limit: int, *, dry: bool) -> int:
        """Tells of waiting tasks whose entry is provably gone; how many there were."""
        page = await self._store.page(f"{task_type}:", self._after.get(task_type), limit)
        if not dry:
            self._after[task_type] = page.cursor
        if not dry:
            await self._shelve(page.items)
        waiting = [task for record in page if (task := self._waiting(record)) is not None]
        # Read after the records: an entry that was there when they were read is still there, or was answered since,
        # and then the record has changed.
        if not waiting or not await self._all_answered(task_type):
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
        return task if stored.state.place is Place.READY and not stored.delayed else None

    async def _all_answered(self, task_type: str) -> bool:
        state = await self._streams.info(queue_of(task_type))
        if state is None or state.last is None:
            return True
        group = next((each for each in state.groups if each.name == group_of(task_type)), None)
        # Not by the group's lag, which is wrong after some trims.
        return group is not None and group.pending == 0 and group.delivered >= state.last
