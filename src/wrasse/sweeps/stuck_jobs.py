"""Stuck jobs: running jobs of a worker that stopped its heartbeat.

evidence      the job is running and its deadline, which every heartbeat extends, has passed
grace         `heartbeat_timeout` since the last heartbeat: at least three heartbeats were missed
precondition  the same token, and the deadline still passed in the step that moves the job; of a job that was found
              without a claim, also no heartbeat of its worker
if wrong      a slow worker's job runs twice and the first worker's settle is refused; it is never lost
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Protocol

from wrasse.clock import Clock
from wrasse.engine.sweep import WIRED, Action, Keep
from wrasse.ports.inconsistency import Strays
from wrasse.ports.jobs import Budget, DeadLetterJob, JobInfo, JobQueue, JobRecord, Reason, Requeue
from wrasse.ports.journal import Line
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.rules.job_transitions import rescue, rescues

RETRIES_MAX = 3  # of a task whose record and type set no limit
_OURS = (Reason.WORKER_DIED, Reason.UNROUTABLE)


@dataclass(frozen=True, slots=True)
class StraySearch:
    """The search for strays before each run: a few scans, with pauses of random length, until the round or its time is
    over. The next search, by any process, continues where this one stopped. `chance` gives numbers from 0 to 1."""

    strays: Strays
    clock: Clock
    limit: int = 100
    runtime_max: timedelta = timedelta(milliseconds=200)
    pause: timedelta = timedelta(milliseconds=10)
    pause_jitter: float = 0.5
    chance: Callable[[], float] = random.random

    async def search(self, heartbeat_timeout: timedelta, *, dry: bool) -> int:
        """Scans until the round or the time is over; returns how many strays it found."""
        begun, seen, cursor = self.clock.monotonic(), 0, None
        while True:
            found = await self.strays.scan(cursor, self.limit, heartbeat_timeout=heartbeat_timeout, dry=dry)
            seen += found.seen
            cursor = found.cursor
            if found.ended or self.clock.monotonic() - begun >= self.runtime_max.total_seconds():
                return seen
            await asyncio.sleep(self.next_pause().total_seconds())

    def next_pause(self) -> timedelta:
        """The pause between two scans: `pause` plus or minus its jitter, so that processes do not scan in step."""
        return self.pause * (1 + self.pause_jitter * (2 * self.chance() - 1))


class Reports(Protocol):
    """Publishes what the sweep of tasks did."""

    async def did(self, retried: int, failed: int) -> None:
        """Called with the numbers of moved tasks."""
        ...

    async def started(self) -> None:
        """Called at the start of a run."""
        ...


@dataclass(frozen=True, slots=True)
class StuckJobs:
    """Requeues a dead worker's jobs, or dead-letters those that were rescued too often."""

    name: ClassVar[str] = "stuck_jobs"
    each: ClassVar[bool] = True

    jobs: JobQueue
    heartbeat_timeout: timedelta = timedelta(seconds=30)
    rescues_max: int = 3
    batch_max: int = 100
    search: StraySearch | None = field(default=None, metadata=WIRED)  # where other programs claim jobs too
    retries: Mapping[str, int] | None = field(default=None, metadata=WIRED)  # of tasks: how many each type may have
    reports: Reports | None = field(default=None, metadata=WIRED)  # of tasks: publishes results

    async def prepare(self) -> None:
        """Gives a claim to jobs that a worker runs without one, so that they are overdue one heartbeat timeout
        later."""
        if self.search is not None:
            await self.search.search(self.heartbeat_timeout, dry=False)
        if self.reports is not None:
            await self.reports.started()

    async def prepare_dry(self) -> None:
        """Finds such jobs, and changes nothing."""
        if self.search is not None:
            await self.search.search(self.heartbeat_timeout, dry=True)

    async def find(self, after: str | None, limit: int) -> Page[JobInfo]:
        return await self.jobs.overdue(after, limit)

    def decide(self, suspect: JobInfo, at: datetime) -> Action[Requeue | DeadLetterJob] | Keep:
        if suspect.deadline is None or suspect.heartbeat_at is None:
            return Keep("not held")
        if at < suspect.deadline or at - suspect.heartbeat_at < self.heartbeat_timeout:
            return Keep("beating")
        if self.retries is not None:
            return self._decide_task(suspect, at, self.retries)
        silent = f"worker {suspect.worker} silent for {int((at - suspect.heartbeat_at).total_seconds())} s"
        if suspect.reason is not None:  # why it fits no queue
            dead = DeadLetterJob(suspect.claim, suspect.reason, error=f"{suspect.error}; {silent}".removeprefix("; "))
            return Action("dead_letter", suspect.id, f"{silent}; {suspect.reason.value}", dead)
        so_far, most = rescues(suspect, self.rescues_max)
        change = rescue(suspect, at, self.rescues_max)
        if isinstance(change, DeadLetterJob):
            return Action("dead_letter", suspect.id, f"{silent}; rescued {so_far} times already", change)
        return Action("requeue", suspect.id, f"{silent}; rescue {so_far + 1} of {most}", change)

    def _decide_task(
        self, suspect: JobInfo, at: datetime, retries: Mapping[str, int]
    ) -> Action[Requeue | DeadLetterJob]:
        """A task has one budget for all retries: its record's, else its type's, else the design document's."""
        assert suspect.deadline is not None, "a suspect has a deadline"
        late = f"worker {suspect.worker} past timeout_at for {int((at - suspect.deadline).total_seconds())} s"
        spent = suspect.failures + suspect.rescues
        most = suspect.retries_max if suspect.retries_max is not None else retries.get(suspect.queue, RETRIES_MAX)
        if spent >= most:
            dead = DeadLetterJob(suspect.claim, Reason.WORKER_DIED, error=late)
            return Action("dead_letter", suspect.id, f"{late}; tried again {spent} times already", dead)
        requeue = Requeue(suspect.claim, Budget.RESCUES, Reason.WORKER_DIED, error=late)
        return Action("requeue", suspect.id, f"{late}; retry {spent + 1} of {most}", requeue)

    async def apply(self, actions: Sequence[Action[Requeue | DeadLetterJob]]) -> Sequence[Outcome]:
        outcomes = await self.jobs.move([action.change for action in actions])
        if self.reports is not None:
            done = [each.verb for each, outcome in zip(actions, outcomes, strict=True) if outcome is Outcome.DONE]
            await self.reports.did(done.count("requeue"), done.count("dead_letter"))
        return outcomes

    async def resolve(self, lines: Sequence[Line]) -> Sequence[Outcome]:
        """The outcome of moves that a crash interrupted, from the jobs' history."""
        return [moved(await self.jobs.get(line.intent.suspect), line.intended_at) for line in lines]


def moved(record: JobRecord | None, intended_at: datetime) -> Outcome:
    """Whether the job was moved for a missing heartbeat at or after this moment. Nothing else writes those reasons."""
    if record is None:
        return Outcome.UNKNOWN
    rescued = any(each.reason in _OURS and each.ended_at >= intended_at for each in record.history)
    return Outcome.DONE if rescued else Outcome.CONFLICT
