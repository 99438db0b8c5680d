"""Stuck jobs: held by a worker that stopped beating.

evidence      the job is held and its deadline, which every beat moves on, has passed
grace         `silence` since the last beat: at least three beats were missed
precondition  the same token, and the deadline still passed at the very step that moves the job; of a job that was
              found without a hold, its worker's sign of life too
if wrong      a slow worker's job runs twice and the first holder's finish is refused; it is never lost
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from wrasse.engine.sweep import WIRED, Action, Keep
from wrasse.jobs.stray_search import StraySearch
from wrasse.ports.jobs import Budget, Bury, JobQueue, JobRecord, JobState, Reason, Requeue
from wrasse.ports.journal import Line
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

_OURS = (Reason.WORKER_DIED, Reason.UNROUTABLE)


@dataclass(frozen=True, slots=True)
class StuckJobs:
    """Gives a silent worker's jobs to the next one, or buries those that have killed too many."""

    name: ClassVar[str] = "stuck_jobs"
    each: ClassVar[bool] = True

    jobs: JobQueue
    silence: timedelta = timedelta(seconds=30)
    rescues_max: int = 3
    batch_max: int = 100
    search: StraySearch | None = field(default=None, metadata=WIRED)  # where other programs take jobs too

    async def prepare(self) -> None:
        """Gives a hold to jobs that a worker holds without one, so that they are overdue one silence later."""
        if self.search is not None:
            await self.search.search(self.silence, dry=False)

    async def prepare_dry(self) -> None:
        """Looks for the same, and leaves it as it is."""
        if self.search is not None:
            await self.search.search(self.silence, dry=True)

    async def find(self, after: str | None, limit: int) -> Page[JobState]:
        return await self.jobs.overdue(after, limit)

    def decide(self, suspect: JobState, at: datetime) -> Action[Requeue | Bury] | Keep:
        if suspect.until is None or suspect.beat_at is None:
            return Keep("not held")
        if at < suspect.until or at - suspect.beat_at < self.silence:
            return Keep("beating")
        silent = f"worker {suspect.worker} silent for {int((at - suspect.beat_at).total_seconds())} s"
        if suspect.reason is not None:  # why no queue would be right for it
            bury = Bury(suspect.hold, suspect.reason, error=silent)
            return Action("bury", suspect.id, f"{silent}; {suspect.reason.value}", bury)
        if suspect.rescues >= self.rescues_max:
            bury = Bury(suspect.hold, Reason.WORKER_DIED, error=silent, spends=Budget.RESCUES)
            return Action("bury", suspect.id, f"{silent}; rescued {suspect.rescues} times already", bury)
        requeue = Requeue(suspect.hold, Budget.RESCUES, Reason.WORKER_DIED, error=silent)
        return Action("requeue", suspect.id, f"{silent}; rescue {suspect.rescues + 1} of {self.rescues_max}", requeue)

    async def apply(self, actions: Sequence[Action[Requeue | Bury]]) -> Sequence[Outcome]:
        return await self.jobs.move([action.change for action in actions])

    async def resolve(self, lines: Sequence[Line]) -> Sequence[Outcome]:
        """What became of jobs whose move was intended by a run that never told its end: their history knows."""
        return [moved(await self.jobs.get(line.intent.suspect), line.intended_at) for line in lines]


def moved(record: JobRecord | None, intended_at: datetime) -> Outcome:
    """Whether the job was taken from a silent worker at or after this moment. Nothing else writes those reasons."""
    if record is None:
        return Outcome.UNKNOWN
    rescued = any(each.reason in _OURS and each.ended_at >= intended_at for each in record.history)
    return Outcome.DONE if rescued else Outcome.LOST
