"""Tasks by id alone: which type one belongs to, and ids that are remembered after their task is gone.

A record is named by type and id, so an id is looked for in all types unless this process has seen it lately. An id
belongs to one task: a put looks in the other types first. Two puts of one id into two types at the same moment both
succeed; ids that are made for their task, as ULIDs are, never meet so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime

from wrasse.jobs.task_store import Task, TaskStore
from wrasse.ports.jobs import Job, JobState
from wrasse.ports.records import Records

_SEEN_MAX = 10_000
_OLD_MAX = 100  # forgotten at one keeping


class TaskIds:
    """The ids of all tasks."""

    def __init__(self, store: TaskStore, kept: Records, types: Sequence[str]) -> None:
        self._store = store
        self._kept = kept
        self._types = tuple(types)
        self._seen: dict[str, str] = {}  # type by id, newest last

    async def find(self, id: str) -> Task | None:
        """The task of this id, whatever its type."""
        seen = self._seen.get(id)
        order = self._types if seen is None else (seen, *(each for each in self._types if each != seen))
        for task_type in order:
            task = await self._store.get(task_type, id)
            if task is not None:
                self.note([task])
                return task
        return None

    def note(self, tasks: Iterable[Task]) -> None:
        """Remembers where these are."""
        self.note_states(task.stored.state for task in tasks)

    def note_states(self, states: Iterable[JobState]) -> None:
        """The same for what a listing showed: so a task is found again whose type no setting names."""
        for state in states:
            self._seen.pop(state.id, None)
            self._seen[state.id] = state.queue
        while len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]

    async def known(self, jobs: Sequence[Job], at: datetime) -> frozenset[str]:
        """Those ids among these that stand for a task already, or did not long ago."""
        asked = [job for job in jobs if not job.minted]
        answers = await asyncio.gather(*(self._is_known(job, at) for job in asked))
        return frozenset(job.id for job, known in zip(asked, answers, strict=True) if known)

    async def keep(self, id: str, until: datetime) -> None:
        """Remembers the id of a task that is about to go."""
        found = await self._kept.get(id)
        if found is None:
            await self._kept.create(id, b"{}", due_at=until)
        else:
            await self._kept.put(id, b"{}", at=found.version, due_at=until)
        for record in await self._kept.due(None, None, _OLD_MAX):
            at = await self._store.time.now()
            if record.due_at is not None and record.due_at <= at:
                await self._kept.delete(record.key, at=record.version)

    async def _is_known(self, job: Job, at: datetime) -> bool:
        kept = await self._kept.get(job.id)
        if kept is not None and kept.due_at is not None and kept.due_at > at:
            return True
        others = [each for each in self._types if each != job.queue]
        found = await asyncio.gather(*(self._store.get(each, job.id) for each in others))
        return any(task is not None for task in found)
