"""Finished jobs: done or dead for longer than they are kept.

evidence      the job is done or dead, and has been for longer than its state keeps it
grace         `done_kept` and `dead_kept` themselves
precondition  the same token, and still in that state, in the step that deletes it
if wrong      a finished job is no longer shown; it never runs again, and a lasting id is still known for `ids_kept`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from typing import ClassVar

from wrasse.duration import format_duration
from wrasse.engine.sweep import Action, Keep
from wrasse.ports.jobs import IDS_KEPT, Delete, JobFilter, JobInfo, JobQueue, JobState
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

_STATES = (JobState.DONE, JobState.DEAD)
_ALL = JobFilter()


@dataclass(frozen=True, slots=True)
class FinishedJobs:
    """Deletes done jobs after a day and dead ones after three months."""

    name: ClassVar[str] = "finished_jobs"
    each: ClassVar[bool] = False  # thousands a minute on a busy queue, each as unremarkable as the next

    jobs: JobQueue
    done_kept: timedelta = timedelta(days=1)
    dead_kept: timedelta = timedelta(days=90)
    ids_kept: timedelta = IDS_KEPT
    batch_max: int = 500

    async def find(self, after: str | None, limit: int) -> Page[JobInfo]:
        """Done jobs, then dead ones. Each state is listed by when its jobs finished, so the first that is not old
        enough ends it: the reads of a run follow what is due, not what is stored."""
        state, cursor = _split(after)
        while True:
            page = await self.jobs.page(state, _ALL, cursor, limit)
            horizon = page.at - self._kept(state)
            old = list(takewhile(partial(_finished_by, horizon), page.items))
            cursors = tuple(f"{state.value}:{text}" for text in page.cursors[: len(old)])
            more = len(old) == len(page) and page.more
            if state is _STATES[-1]:
                return Page(tuple(old), cursors, page.at, more and bool(old))
            if old:
                return Page(tuple(old), cursors, page.at, more=True)
            state, cursor = JobState.DEAD, None

    def decide(self, suspect: JobInfo, at: datetime) -> Action[Delete] | Keep:
        if suspect.state not in _STATES or suspect.finished_at is None:
            return Keep("not finished")
        kept = self._kept(suspect.state)
        if not _finished_by(at - kept, suspect):
            return Keep("not old enough")
        reason = f"{suspect.state.value} for longer than {format_duration(kept)}"
        return Action("delete", suspect.id, reason, Delete(suspect.claim, suspect.state))

    async def apply(self, actions: Sequence[Action[Delete]]) -> Sequence[Outcome]:
        return await self.jobs.delete([action.change for action in actions], ids_kept=self.ids_kept)

    def _kept(self, state: JobState) -> timedelta:
        return self.done_kept if state is JobState.DONE else self.dead_kept


def _split(after: str | None) -> tuple[JobState, str | None]:
    if after is None:
        return JobState.DONE, None
    state, _, cursor = after.partition(":")
    return JobState(state), cursor


def _finished_by(horizon: datetime, job: JobInfo) -> bool:
    # Where a result is kept, its time counts from there: that is the order of the listing.
    moment = job.kept_until or job.finished_at
    return moment is None or moment <= horizon
