"""The laws of a job queue, checked at every single write while a simulation runs.

A write is one row replaced in the memory backend. What may become of it is the lifecycle's table; who may do it, and
what they must have shown, is known here from the call that is under way. Beside that stands a ledger that knows only
what was answered: which ids were created, which hold is the newest, which request got which answer.

Whoever breaks a law is written down, not stopped: the code under test must not see the judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lifecycle import Step, budget_spent, steps_between, token_grew
from virtual_time import VirtualClock
from wrasse.backends.memory.jobs import MemoryJobs
from wrasse.backends.memory.status_index import JobIndex, JobRow
from wrasse.clock import Clock
from wrasse.ports.jobs import (
    IDS_KEPT,
    NO_PROGRESS,
    REQUESTS_KEPT,
    Budget,
    Cancel,
    Claim,
    Claimed,
    Complete,
    Counts,
    DeadLetterJob,
    Delete,
    Enqueued,
    HeartbeatAnswer,
    Job,
    JobFilter,
    JobGroup,
    JobInfo,
    JobRecord,
    JobState,
    Move,
    Progress,
    Rate,
    Requeue,
    RequeueDead,
    Settlement,
    WorkerInfo,
)
from wrasse.ports.journal import Intent, Journal, Line, LineFilter, SettledIntent
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

Change = Settlement | Move | Delete
FAILURES_MAX = 3
RESCUES_MAX = 3


@dataclass(slots=True)
class Ledger:
    """What the world was told, and every law that was broken."""

    clock: Clock
    broken: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    created: dict[str, Job] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    grants: dict[str, Claim] = field(default_factory=dict)
    finishes: Counter[str] = field(default_factory=Counter)
    rescues: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    intended: set[str] = field(default_factory=set)
    answers: dict[tuple[str, str], tuple[float, object]] = field(default_factory=dict)
    watchers: list[Callable[[JobInfo], str | None]] = field(default_factory=list)  # of rescues

    def require(self, holds: bool, law: str, id: str) -> None:
        """Writes down a law that does not hold."""
        if not holds:
            self.broken.append(f"{self.clock.monotonic():.2f} {id}: {law}")

    def first_answer(self, call: str, request: str, answer: object) -> object | None:
        """What this request was answered before, while that is to be remembered."""
        now = self.clock.monotonic()
        said = self.answers.get((call, request))
        if said is not None and now - said[0] < REQUESTS_KEPT.total_seconds():
            return said[1]
        self.answers[call, request] = (now, answer)
        return None


@dataclass(slots=True)
class Call:
    """The change that is under way: what it shows for each job it names. Takes show nothing."""

    name: str = "take"
    shown: dict[str, list[Change]] = field(default_factory=dict)


class WatchedShelves(JobIndex):
    """The memory backend's rows, with a judge beside them."""

    __slots__ = ("call", "clock", "kept", "ledger")

    def __init__(self, ledger: Ledger, clock: VirtualClock) -> None:
        super().__init__()
        self.ledger = ledger
        self.clock = clock
        self.call = Call()
        self.kept: Callable[[JobState], timedelta] = lambda state: timedelta(0)

    def set(self, row: JobRow) -> None:
        before = self._rows.get(row.seq)
        super().set(row)
        self._judge(before, row)

    def drop(self, row: JobRow) -> None:
        super().drop(row)
        self._judge(row, None)

    def _judge(self, before: JobRow | None, after: JobRow | None) -> None:
        row = after or before
        assert row is not None, "a write has a before or an after"
        ledger, id, now = self.ledger, row.job.id, self.clock.now()
        old, new = before and before.info, after and after.info
        ledger.trace.append(f"{self.clock.monotonic():.6f} {self.call.name} {id} {_told(old)} -> {_told(new)}")
        if old is not None and new is not None:
            ledger.require(before.job == after.job, "what its producer wrote has changed", id)
        if old is None and new is not None:
            self._created(row.job, new)
        elif old is not None and new is None:
            self._deleted(old)
        elif old is not None and new is not None and (old.state, new.state) == (JobState.READY, JobState.READY):
            due = old.not_before is not None and new.not_before is None and old.not_before <= now
            ledger.require(due and old.claim == new.claim, "a waiting job was touched", id)
        elif old is not None and new is not None:
            self._moved(old, new, now)

    def _created(self, job: Job, new: JobInfo) -> None:
        self.ledger.require(job.id not in self.ledger.created, "an id that is known was enqueued again", job.id)
        self.ledger.require(new.state is JobState.READY, "a new job is not ready", job.id)
        self.ledger.created[job.id] = job

    def _deleted(self, old: JobInfo) -> None:
        shown = [c for c in self.call.shown.get(old.id, ()) if isinstance(c, Delete)]
        self.ledger.deleted.add(old.id)
        if self.call.name == "delete":
            fits = any(c.claim == old.claim and c.state is old.state for c in shown)
            self.ledger.require(fits, "deleted under another token or in another state", old.id)
        finished = old.state in (JobState.DONE, JobState.DEAD) and old.finished_at is not None
        self.ledger.require(finished, "a job was deleted that is not finished", old.id)
        if old.finished_at is not None and self.call.name == "delete":
            # Whoever looked at the latest moment this clock has shown was right, though it was set back since.
            aged = self.clock.latest - old.finished_at >= self.kept(old.state)
            self.ledger.require(aged, "a finished job was deleted before its time", old.id)

    def _moved(self, old: JobInfo, new: JobInfo, now: datetime) -> None:
        id, ledger = old.id, self.ledger
        steps = steps_between(old.state, new.state)
        ledger.require(bool(steps), f"went from {old.state} to {new.state}", id)
        if not steps:
            return
        shown = self.call.shown.get(id, [])
        change = next((c for c in shown if getattr(c, "claim", None) == old.claim), next(iter(shown), None))
        step = _step(self.call.name, change)
        ledger.require(step in steps, f"{step} took it from {old.state} to {new.state}", id)
        ledger.require(token_grew(step, old.token, new.token), f"{step} made token {new.token} of {old.token}", id)
        spends = change.spends if isinstance(change, Requeue | DeadLetterJob) else None
        if step is not Step.REQUEUE_DEAD:
            ledger.require(budget_spent(spends, _budgets(old), _budgets(new)), f"{step} did not count right", id)
        if step is Step.CLAIM:
            ledger.require(old.not_before is None, "a scheduled job was served before its time", id)
            ledger.require(new.attempts == old.attempts + 1, "an attempt was not counted", id)
            ledger.grants[id] = new.claim
        elif self.call.name == "settle":
            self._settled(old, change)
        elif self.call.name == "move":
            self._taken_away(old, new, change, now)
        ledger.finishes[id] += new.state is JobState.DONE
        ledger.require(ledger.finishes[id] <= 1, "finished a second time", id)

    def _settled(self, old: JobInfo, change: Change | None) -> None:
        ledger, hold = self.ledger, getattr(change, "claim", None)
        ledger.require(hold == old.claim == ledger.grants.get(old.id), "settled by one who does not hold it", old.id)
        ledger.failures[old.id] += getattr(change, "spends", None) is Budget.FAILURES
        ledger.require(ledger.failures[old.id] <= FAILURES_MAX + 1, "failed beyond its budget", old.id)

    def _taken_away(self, old: JobInfo, new: JobInfo, change: Change | None, now: datetime) -> None:
        ledger, id = self.ledger, old.id
        match change:
            case Requeue() | DeadLetterJob():
                ledger.require(old.deadline is not None and old.deadline <= now, "rescued before its deadline", id)
                ledger.require(change.claim == old.claim, "rescued from another holder than the one looked at", id)
                ledger.require(id in ledger.intended, "rescued without a line in the journal", id)
                ledger.rescues[id] += 1
                ledger.require(ledger.rescues[id] <= RESCUES_MAX + 1, "rescued beyond its budget", id)
                for watcher in ledger.watchers:
                    law = watcher(old)
                    ledger.require(law is None, law or "", id)
            case RequeueDead():
                ledger.require(change.claim == old.claim, "requeued under another token", id)
                ledger.rescues[id] = ledger.failures[id] = 0
            case Cancel() | None | Complete() | Delete():
                pass


class LawfulJobs:
    """The port, with the call under way made known to the judge and every answer compared with the first one.

    Nothing but a claim waits inside the memory backend, so between two lines here only takes can happen."""

    def __init__(self, jobs: MemoryJobs, ledger: Ledger, status_index: WatchedShelves) -> None:
        self._jobs = jobs
        self._ledger = ledger
        self._index = jobs._index = status_index

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        fresh = _fresh(jobs, self._ledger)
        with self._under_way("put"):
            answer = tuple(await self._jobs.enqueue(jobs, request=request, groups=groups))
        first = self._ledger.first_answer("put", request, answer)
        told = f"an enqueue was answered {answer} where {first or fresh} is true"
        self._ledger.require(answer == (first or fresh), told, jobs[0].id)
        return answer

    async def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        heartbeat_timeout: timedelta,
        request: str,
        wait: timedelta = timedelta(0),
        rates: Sequence[Rate] = (),
    ) -> Claimed:
        claimed = await self._jobs.claim(
            queues, limit, worker=worker, heartbeat_timeout=heartbeat_timeout, request=request, wait=wait, rates=rates
        )
        claims = frozenset(each.claim for each in claimed.jobs)
        first = self._ledger.first_answer("take", request, claims) if claims else None
        same = first is None or (isinstance(first, frozenset) and claims <= first)
        self._ledger.require(same, "the same take was answered differently", request)
        return claimed

    async def heartbeat(
        self,
        worker: WorkerInfo,
        claims: Sequence[Claim],
        *,
        heartbeat_timeout: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> HeartbeatAnswer:
        with self._under_way("beat"):
            return await self._jobs.heartbeat(worker, claims, heartbeat_timeout=heartbeat_timeout, progress=progress)

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        with self._under_way("settle", settlements):
            answer = tuple(await self._jobs.settle(settlements, request=request))
        first = self._ledger.first_answer("settle", request, answer)
        same = first is None or answer == first
        self._ledger.require(same, "the same settle was answered differently", request)
        ended = [each for each, end in zip(settlements, answer, strict=True) if end is Outcome.DONE]
        for job in (job for each in ended if isinstance(each, Complete) for job in each.enqueues):
            self._ledger.require(job.id in self._ledger.created, "a finish came without its follow-up", job.id)
        return answer

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        with self._under_way("move", moves):
            return await self._jobs.move(moves)

    async def get(self, id: str) -> JobRecord | None:
        return await self._jobs.get(id)

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobInfo]:
        return await self._jobs.page(state, where, after, limit, newest=newest)

    async def overdue(self, after: str | None, limit: int) -> Page[JobInfo]:
        return await self._jobs.overdue(after, limit)

    async def counts(self) -> Counts:
        return await self._jobs.counts()

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        with self._under_way("delete", deletes):
            return await self._jobs.delete(deletes, ids_kept=ids_kept)

    @contextmanager
    def _under_way(self, name: str, changes: Sequence[Change] = ()) -> Iterator[None]:
        shown: dict[str, list[Change]] = {}
        for change in changes:
            shown.setdefault(change.id if isinstance(change, Cancel) else change.claim.id, []).append(change)
        self._index.call = Call(name, shown)
        try:
            yield
        finally:
            self._index.call = Call()


class LawfulJournal:
    """The port; what was intended is known to the judge before it is done."""

    def __init__(self, journal: Journal, ledger: Ledger) -> None:
        self._journal = journal
        self._ledger = ledger

    async def intend(self, intents: Sequence[Intent]) -> datetime:
        self._ledger.intended |= {intent.suspect for intent in intents}
        return await self._journal.intend(intents)

    async def settle(self, outcomes: Sequence[SettledIntent]) -> None:
        await self._journal.settle(outcomes)

    async def page(self, where: LineFilter, after: str | None, limit: int, *, newest: bool = False) -> Page[Line]:
        return await self._journal.page(where, after, limit, newest=newest)

    async def delete(self, before: datetime, limit: int) -> int:
        return await self._journal.delete(before, limit)


def _fresh(jobs: Sequence[Job], ledger: Ledger) -> tuple[Enqueued, ...]:
    """What an enqueue must answer: new is the first mention of an id that never was."""
    ids = [job.id for job in jobs]
    return tuple(Enqueued(id, id not in ledger.created and ids.index(id) == at) for at, id in enumerate(ids))


def _step(call: str, change: Change | None) -> Step | None:
    match change:
        case Complete():
            return Step.COMPLETE
        case Requeue():
            return Step.REQUEUE
        case DeadLetterJob():
            return Step.DEAD_LETTER
        case RequeueDead():
            return Step.REQUEUE_DEAD
        case Cancel():
            return Step.CANCEL
        case _:
            return {"take": Step.CLAIM, "beat": Step.HEARTBEAT}.get(call)


def _budgets(info: JobInfo) -> tuple[int, int, int]:
    return info.failures, info.rescues, info.interruptions


def _told(info: JobInfo | None) -> str:
    return "nowhere" if info is None else f"{info.state} {info.token} {info.worker}"
