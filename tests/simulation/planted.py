"""Bugs, planted on purpose: each takes away one guard or one precondition. The simulation must notice every one.

A bug is a job queue with something left out, or an engine without one of its guards. Nothing here is in the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from wrasse.backends.memory.jobs import MemoryJobs
from wrasse.backends.memory.status_index import JobRow
from wrasse.clock import Clock
from wrasse.engine.guard import BackendDown, BackendRestarted, MassDeath
from wrasse.ports.guard import Guard
from wrasse.ports.jobs import (
    Budget,
    Complete,
    DeadLetterJob,
    Delete,
    Enqueued,
    Job,
    JobState,
    JobStatus,
    Move,
    Requeue,
    Settlement,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.rules.job_transitions import RequestCache


@dataclass(frozen=True, slots=True)
class Bug:
    """What is wrong with this world; nothing, by default."""

    name: str = "none"
    jobs: type[MemoryJobs] = MemoryJobs
    without: tuple[type[Any], ...] = ()  # guards that the engines do not have

    def guards(self, guards: Sequence[Guard]) -> tuple[Guard, ...]:
        return tuple(guard for guard in guards if not isinstance(guard, self.without))


class MoveIgnoresTheDeadline(MemoryJobs):
    def _moved(self, row: JobRow, move: Move, now: datetime) -> JobRow | None:
        early = isinstance(move, Requeue | DeadLetterJob) and row.info.deadline is not None
        return super()._moved(replace(row, info=replace(row.info, deadline=now)) if early else row, move, now)


class MoveIgnoresTheToken(MemoryJobs):
    def _moved(self, row: JobRow, move: Move, now: datetime) -> JobRow | None:
        move = replace(move, claim=row.info.claim) if isinstance(move, Requeue | DeadLetterJob) else move
        return super()._moved(row, move, now)


class SettleIgnoresTheToken(MemoryJobs):
    def _end(self, settlement: Settlement, now: datetime) -> Outcome:
        row = self._index.find(settlement.claim.id)
        if row is not None and row.info.state is JobState.RUNNING:
            settlement = replace(settlement, claim=row.info.claim)
        return super()._end(settlement, now)


class TakeGrantsTheOldToken(MemoryJobs):
    def _claim_row(self, row: JobRow, worker: str, now: datetime, heartbeat_timeout: timedelta) -> JobRow:
        self._token = count(max(row.info.token, 1))
        return super()._claim_row(row, worker, now, heartbeat_timeout)


class RescuesDoNotCount(MemoryJobs):
    def _moved(self, row: JobRow, move: Move, now: datetime) -> JobRow | None:
        rescues = row.info.rescues - (isinstance(move, Requeue) and move.spends is Budget.RESCUES)
        return super()._moved(replace(row, info=replace(row.info, rescues=rescues)), move, now)


class PutIgnoresKnownIds(MemoryJobs):
    def _add(self, job: Job, now: datetime) -> Enqueued:
        known = self._index.find(job.id)
        if known is not None and known.info.state is JobState.DONE:
            self._index.drop(known)
        return super()._add(job, now)


class IdsAreForgottenWithTheirJobs(MemoryJobs):
    def _drop(self, row: JobRow, ids_kept: timedelta, now: datetime) -> None:
        self._index.drop(row)


class _Forgetful(RequestCache[Any]):
    def get(self, request: str) -> Any:
        self._answers.pop(request, None)
        self._order.clear()
        return None


class RequestsAreForgotten(MemoryJobs):
    def __init__(self, clock: Clock, *, done_max: int = 10_000) -> None:
        super().__init__(clock, done_max=done_max)
        self._enqueues, self._claim_requests, self._settles = (_Forgetful(clock) for _ in range(3))


class DeleteIgnoresTheToken(MemoryJobs):
    def _delete(self, delete: Delete, ids_kept: timedelta, now: datetime) -> Outcome:
        row = self._index.find(delete.claim.id)
        if row is None or row.info.state is JobState.RUNNING:
            return Outcome.CONFLICT
        self._drop(row, ids_kept, now)
        return Outcome.DONE


class FinishAndFollowUpAreTwoSteps(MemoryJobs):
    """The follow-ups come with the next call, which may never be."""

    def _end(self, settlement: Settlement, now: datetime) -> Outcome:
        settlement = replace(settlement, enqueues=()) if isinstance(settlement, Complete) else settlement
        return super()._end(settlement, now)


class RescuedJobsAreNeverServed(MemoryJobs):
    """In exactly one state, and of no use there: only liveness sees it."""

    def _moved(self, row: JobRow, move: Move, now: datetime) -> JobRow | None:
        rescued = isinstance(move, Requeue) and move.spends is Budget.RESCUES
        return super()._moved(row, replace(move, delay=timedelta(days=3650)) if rescued else move, now)


class DelaysAreIgnored(MemoryJobs):
    def _now(self) -> datetime:
        while row := self._index.first(JobStatus.SCHEDULED):
            self._index.set(replace(row, info=replace(row.info, not_before=None)))
        return super()._now()


BUGS = (
    *(
        Bug(kind.__name__, jobs=kind)
        for kind in (
            MoveIgnoresTheDeadline,
            MoveIgnoresTheToken,
            SettleIgnoresTheToken,
            TakeGrantsTheOldToken,
            RescuesDoNotCount,
            PutIgnoresKnownIds,
            IdsAreForgottenWithTheirJobs,
            RequestsAreForgotten,
            DeleteIgnoresTheToken,
            FinishAndFollowUpAreTwoSteps,
            RescuedJobsAreNeverServed,
            DelaysAreIgnored,
        )
    ),
    Bug("NoGuardAgainstRestarts", without=(BackendRestarted, BackendDown)),
    Bug("NoGuardAgainstMassDeath", without=(MassDeath,)),
)
