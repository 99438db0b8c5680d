"""JobQueue against a model: whatever is done to a queue, in whatever order, it agrees with a dictionary.

The model knows places, budgets, deadlines and known ids, and nothing about how they are stored. It does not predict
which of two ready jobs comes first; the order of service has tests of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from conformance.queue_client import fresh
from conformance.stores import Store
from wrasse.ports.jobs import (
    Budget,
    Cancel,
    Claim,
    Complete,
    DeadLetterJob,
    Delete,
    Job,
    JobFilter,
    JobState,
    Move,
    Reason,
    Requeue,
    RequeueDead,
    Settlement,
    WorkerInfo,
)
from wrasse.ports.outcome import Outcome

T = TypeVar("T")
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
IDS_KEPT = timedelta(seconds=50)

ids = st.sampled_from("abcdef")
queues = st.sampled_from(["high", "low"])
seconds = st.integers(0, 40).map(lambda n: timedelta(seconds=n))
delays = st.sampled_from([0, 0, 10, 20]).map(lambda n: timedelta(seconds=n))


@dataclass
class Known:
    """What the model knows about one job."""

    queue: str
    place: JobState
    due: datetime
    hold: Claim
    lasting: bool
    until: datetime | None = None
    attempts: int = 0
    failures: int = 0
    rescues: int = 0


class JobQueueMachine(RuleBasedStateMachine):
    """Random work on a queue and on the model, compared after every step."""

    backend = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._place = tempfile.TemporaryDirectory()
        self.model: dict[str, Known] = {}
        self.gone: dict[str, datetime] = {}
        self.holds: list[Claim] = [Claim("a", 1, "never")]

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(act)

    @initialize()
    def open(self) -> None:
        self.store = Store(self.backend, Path(self._place.name))
        self.run(self.store.open())

    def teardown(self) -> None:
        self.run(self.store.close())
        self._runner.close()
        self._place.cleanup()

    @property
    def now(self) -> datetime:
        return self.store.clock.now()

    @rule(jobs=st.lists(st.builds(Job, id=ids, queue=queues, delay=delays, lasting=st.booleans()), max_size=3))
    def enqueue(self, jobs: list[Job]) -> None:
        expected = []
        for job in jobs:
            new = job.id not in self.model and self.gone.get(job.id, self.now) <= self.now
            expected.append(new)
            if new:
                due = self.now + job.delay
                self.model[job.id] = Known(job.queue, JobState.READY, due, Claim(job.id, 0, ""), job.lasting)
        request = fresh()
        answers = [[put.new for put in self.run(self.store.jobs.enqueue(jobs, request=request))] for _ in range(2)]
        assert answers == [expected, expected]

    @rule(order=st.permutations(["high", "low"]), limit=st.integers(1, 3))
    def claim(self, order: list[str], limit: int) -> None:
        ready = [k for k in self.model.values() if k.place is JobState.READY and k.due <= self.now]
        claimed = self.run(
            self.store.jobs.claim(order, limit, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh())
        )
        wanted = sorted(order.index(known.queue) for known in ready)[:limit]
        assert [order.index(each.job.queue) for each in claimed.jobs] == wanted
        for each in claimed.jobs:
            known = self.model[each.job.id]
            assert known in ready
            assert each.claim.token > known.hold.token
            known.place, known.hold, known.until = JobState.RUNNING, each.claim, self.now + HEARTBEAT_TIMEOUT
            known.attempts += 1
            assert (each.attempt, each.failures, each.rescues) == (known.attempts, known.failures, known.rescues)
            self.holds.append(each.claim)

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        claims = data.draw(st.lists(st.sampled_from(self.holds), max_size=3))
        answer = self.run(self.store.jobs.heartbeat(WorkerInfo("w"), claims, heartbeat_timeout=HEARTBEAT_TIMEOUT))
        assert list(answer.mine) == [self._holder(claim) is not None for claim in claims]
        for known in filter(None, map(self._holder, claims)):
            known.until = self.now + HEARTBEAT_TIMEOUT

    @rule(data=st.data(), delay=delays, follow=ids, lasting=st.booleans())
    def settle(self, data: st.DataObject, delay: timedelta, follow: str, lasting: bool) -> None:
        claim = data.draw(st.sampled_from(self.holds))
        settlement: Settlement = data.draw(
            st.sampled_from(
                [
                    Complete(claim, enqueues=(Job(follow, lasting=lasting),)),
                    Requeue(claim, Budget.FAILURES, Reason.FAILED, delay=delay),
                    DeadLetterJob(claim, Reason.FAILED, spends=Budget.FAILURES),
                ]
            )
        )
        known = self._holder(claim)
        request = fresh()
        outcomes = [list(self.run(self.store.jobs.settle([settlement], request=request))) for _ in range(2)]
        assert outcomes == [[Outcome.DONE if known else Outcome.CONFLICT]] * 2
        if known is not None:
            self._ended(known, settlement)
            if isinstance(settlement, Complete) and follow not in self.model and self._free(follow):
                self.model[follow] = Known("low", JobState.READY, self.now, Claim(follow, 0, ""), lasting)

    @rule(data=st.data(), delay=delays, id=ids)
    def move(self, data: st.DataObject, delay: timedelta, id: str) -> None:
        claim = data.draw(st.sampled_from(self.holds))
        current = self.model[id].hold if id in self.model else claim
        move: Move = data.draw(
            st.sampled_from(
                [
                    Requeue(claim, Budget.RESCUES, Reason.WORKER_DIED, delay=delay),
                    DeadLetterJob(claim, Reason.WORKER_DIED, spends=Budget.RESCUES),
                    RequeueDead(current, delay=delay),
                    Cancel(id),
                ]
            )
        )
        known = self._movable(move)
        outcomes = self.run(self.store.jobs.move([move]))
        assert list(outcomes) == [Outcome.DONE if known else Outcome.CONFLICT]
        if known is not None:
            self._ended(known, move)
            self._refresh(known)

    @rule(id=ids, state=st.sampled_from(JobState))
    def delete(self, id: str, state: JobState) -> None:
        known = self.model.get(id)
        claim = known.hold if known else Claim(id, 1, "")
        outcomes = self.run(self.store.jobs.delete([Delete(claim, state)], ids_kept=IDS_KEPT))
        allowed = known is not None and known.place is state and state is not JobState.RUNNING
        assert list(outcomes) == [Outcome.DONE if allowed else Outcome.CONFLICT]
        if allowed and known is not None:
            del self.model[id]
            if known.lasting:
                self.gone[id] = self.now + IDS_KEPT

    @rule(duration=seconds)
    def wait(self, duration: timedelta) -> None:
        self.run(self.store.pass_time(duration))

    @rule()
    def restart(self) -> None:
        self.run(self.store.reopen())

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        shown = {}
        for state in JobState:
            for info in self.run(self.store.jobs.page(state, JobFilter(), None, 100)):
                assert info.id not in shown, f"{info.id} is in two places"
                shown[info.id] = (state, info.queue, info.attempts, info.failures, info.rescues, info.deadline)
        assert shown == {
            id: (k.place, k.queue, k.attempts, k.failures, k.rescues, k.until) for id, k in self.model.items()
        }
        overdue = {info.id for info in self.run(self.store.jobs.overdue(None, 100))}
        assert overdue == {id for id, k in self.model.items() if k.until is not None and k.until <= self.now}

    @invariant()
    def counts(self) -> None:
        if not hasattr(self, "store"):
            return
        counted: Counter[tuple[str, str]] = Counter()
        for each in self.run(self.store.jobs.counts()).queues:
            for name in ("ready", "scheduled", "running", "done", "dead"):
                counted[each.queue, name] += getattr(each, name)
        expected = Counter(
            (k.queue, "scheduled" if k.place is JobState.READY and k.due > self.now else str(k.place))
            for k in self.model.values()
        )
        assert +counted == expected

    def _holder(self, claim: Claim) -> Known | None:
        known = self.model.get(claim.id)
        return known if known is not None and known.place is JobState.RUNNING and known.hold == claim else None

    def _free(self, id: str) -> bool:
        return self.gone.get(id, self.now) <= self.now

    def _movable(self, move: Move) -> Known | None:
        match move:
            case Cancel():
                known = self.model.get(move.id)
                return known if known is not None and known.place in (JobState.READY, JobState.RUNNING) else None
            case RequeueDead():
                known = self.model.get(move.claim.id)
                return (
                    known if known is not None and known.place is JobState.DEAD and known.hold == move.claim else None
                )
            case _:
                known = self._holder(move.claim)
                return known if known is not None and known.until is not None and known.until <= self.now else None

    def _ended(self, known: Known, change: Settlement | Move) -> None:
        known.until = None
        spends = getattr(change, "spends", None)
        known.failures += spends is Budget.FAILURES
        known.rescues += spends is Budget.RESCUES
        match change:
            case Complete():
                known.place = JobState.DONE
            case DeadLetterJob() | Cancel():
                known.place = JobState.DEAD
            case Requeue() | RequeueDead():
                known.place, known.due = JobState.READY, self.now + change.delay
        if isinstance(change, RequeueDead):
            known.failures = known.rescues = 0

    def _refresh(self, known: Known) -> None:
        """The token as the queue has it now: the model knows that it grew, not by how much."""
        record = self.run(self.store.jobs.get(known.hold.id))
        assert record is not None
        assert record.info.token > known.hold.token
        known.hold = record.info.claim


class SqliteJobQueueMachine(JobQueueMachine):
    backend = "sqlite"


class TestMemoryAgreesWithTheModel(JobQueueMachine.TestCase):
    settings = settings(max_examples=60, stateful_step_count=50)


class TestSqliteAgreesWithTheModel(SqliteJobQueueMachine.TestCase):
    settings = settings(max_examples=15, stateful_step_count=40)


class RedisJobQueueMachine(JobQueueMachine):
    backend = "redis"


class TestRedisAgreesWithTheModel(RedisJobQueueMachine.TestCase):
    settings = settings(max_examples=15, stateful_step_count=40)


class RecordedJobQueueMachine(JobQueueMachine):
    backend = "recorded memory"


class TestAQueueOnRecordsAgreesWithTheModel(RecordedJobQueueMachine.TestCase):
    settings = settings(max_examples=8, stateful_step_count=40)


class TasksJobQueueMachine(JobQueueMachine):
    backend = "tasks memory"


class TestTasksAgreeWithTheModel(TasksJobQueueMachine.TestCase):
    settings = settings(max_examples=12, stateful_step_count=40)


class TasksApartJobQueueMachine(JobQueueMachine):
    backend = "tasks memory, apart"


class TestTasksWhoseStreamsAreApartAgreeWithTheModel(TasksApartJobQueueMachine.TestCase):
    settings = settings(max_examples=6, stateful_step_count=40)
