"""Bugs in what people expect of a job queue, planted on purpose; the simulation must notice every one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count

from simulation.planted import Bug
from wrasse.backends.memory.jobs import JobGroups, MemoryJobs, Rates, Uniques
from wrasse.backends.memory.status_index import JobRow
from wrasse.clock import Clock
from wrasse.jobs.periodic import Missed, Periodic, due_slots
from wrasse.jobs.scheduler import PeriodicScheduler, _written, read_mark
from wrasse.ports.jobs import IDS_KEPT, Claimed, Delete, Job, JobGroup, JobState, JobStatus, Rate
from wrasse.ports.outcome import Outcome


@dataclass(frozen=True, slots=True)
class ComfortBug(Bug):
    """What is wrong with this world; nothing, by default."""

    repeater: type[PeriodicScheduler] = PeriodicScheduler
    missed: Mapping[Missed, Missed] = field(default_factory=dict)  # one policy taken for another
    own_slots: bool = False  # every process has ids of its own for them

    def meant(self, periodic: Periodic) -> Periodic:
        """The periodic job as this world has it."""
        missed = self.missed.get(periodic.missed, periodic.missed)
        kind = OwnSlots if self.own_slots else Periodic
        return kind(periodic.name, periodic.schedule, payload=periodic.payload, missed=missed)


_NUMBERS = count()


class OwnSlots(Periodic):
    """A slot's job is named after who puts it."""

    def job_id(self, slot: datetime) -> str:
        return f"{super().job_id(slot)}-{next(_NUMBERS)}"


class MovesOnBeforeThePut(PeriodicScheduler):
    async def _handle(self, periodic: Periodic) -> None:
        record = await self._records.get(periodic.name)
        if record is not None:
            now = self._clock.now()
            slots = due_slots(read_mark(record).last, now, periodic.schedule, periodic.missed)
            if slots:
                await self._records.put(periodic.name, _written(periodic, slots[-1], ""), at=record.version)
                await self._producer.enqueue_many([self._producer.job(id=periodic.job_id(slot)) for slot in slots])
                return
        await super()._handle(periodic)


class BeginsAtEveryStart(PeriodicScheduler):
    async def _handle(self, periodic: Periodic) -> None:
        record = await self._records.get(periodic.name)
        if record is not None and periodic.name not in self._next:
            await self._records.put(periodic.name, _written(periodic, self._clock.now(), ""), at=record.version)
        await super()._handle(periodic)


class MembersCountTwice(MemoryJobs):
    def _finish(self, row: JobRow, now: datetime) -> None:
        super()._finish(replace(row, counted=False), now)


class DeadMembersDoNotCount(MemoryJobs):
    def _finish(self, row: JobRow, now: datetime) -> None:
        super()._finish(replace(row, counted=row.counted or row.info.state is JobState.DEAD), now)


class _Forgetful(JobGroups):
    def open(self, group: JobGroup, now: datetime) -> Job | None:
        self._groups.pop(group.id, None)
        return super().open(group, now)


class GroupsOpenAnew(MemoryJobs):
    def __init__(self, clock: Clock, *, done_max: int = 10_000) -> None:
        super().__init__(clock, done_max=done_max)
        self._groups = _Forgetful()


class LimitsAreOfEachWorker(MemoryJobs):
    def __init__(self, clock: Clock, *, done_max: int = 10_000) -> None:
        super().__init__(clock, done_max=done_max)
        self._each: dict[str, Rates] = {}

    def _grant(
        self,
        queues: Sequence[str],
        limit: int,
        worker: str,
        heartbeat_timeout: timedelta,
        request: str,
        rates: Sequence[Rate],
    ) -> Claimed:
        self._rates = self._each.setdefault(worker, Rates())
        return super()._grant(queues, limit, worker, heartbeat_timeout, request, rates)


class _PerCall(Rates):
    def note_claims(self, queue: str, count: int, rates: Sequence[Rate], now: datetime) -> None:
        super().note_claims(queue, min(count, 1), rates, now)


class LimitsCountTakesAndNotJobs(MemoryJobs):
    def __init__(self, clock: Clock, *, done_max: int = 10_000) -> None:
        super().__init__(clock, done_max=done_max)
        self._rates = _PerCall()


class NamesAreFreeOnceTheirJobRuns(MemoryJobs):
    def _is_unfinished(self, id: str) -> bool:
        row = self._index.find(id)
        return row is not None and row.info.state is JobState.READY


class _NoWindows(Uniques):
    def assign(self, job: Job, now: datetime) -> None:
        super().assign(replace(job, window=timedelta(0)), now)


class WindowsEndWithTheJob(MemoryJobs):
    def __init__(self, clock: Clock, *, done_max: int = 10_000) -> None:
        super().__init__(clock, done_max=done_max)
        self._uniques = _NoWindows(self._is_unfinished)


class TrimmingTakesKeptResults(MemoryJobs):
    def _trim_done(self, now: datetime) -> None:
        while self._index.count(JobStatus.DONE) > self._done_max:
            oldest = self._index.first(JobStatus.DONE)
            assert oldest is not None
            self._drop(oldest, IDS_KEPT, now)


class DeletingTakesKeptResults(MemoryJobs):
    def _delete(self, delete: Delete, ids_kept: timedelta, now: datetime) -> Outcome:
        row = self._index.current(delete.claim, delete.state)
        if row is None or delete.state is JobState.RUNNING:
            return Outcome.CONFLICT
        self._drop(row, ids_kept, now)
        return Outcome.DONE


class ResultsOfRescuedJobsAreLost(MemoryJobs):
    def _finish(self, row: JobRow, now: datetime) -> None:
        super()._finish(replace(row, result=None) if row.info.rescues else row, now)


BUGS = (
    *(
        ComfortBug(kind.__name__, jobs=kind)
        for kind in (
            MembersCountTwice,
            DeadMembersDoNotCount,
            GroupsOpenAnew,
            LimitsAreOfEachWorker,
            LimitsCountTakesAndNotJobs,
            NamesAreFreeOnceTheirJobRuns,
            WindowsEndWithTheJob,
            TrimmingTakesKeptResults,
            DeletingTakesKeptResults,
            ResultsOfRescuedJobsAreLost,
        )
    ),
    *(ComfortBug(kind.__name__, repeater=kind) for kind in (MovesOnBeforeThePut, BeginsAtEveryStart)),
    ComfortBug("SlotsHaveIdsOfEachProcess", own_slots=True),
    ComfortBug("OnceIsSkip", missed={Missed.ONCE: Missed.SKIP}),
    ComfortBug("SkipIsOnce", missed={Missed.SKIP: Missed.ONCE}),
    ComfortBug("AllIsOnce", missed={Missed.ALL: Missed.ONCE}),
)
