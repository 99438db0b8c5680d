"""A small world for engine tests: a clock that moves when told to, a memory backend, and a shelf of bottles to sweep.

A bottle older than `kept` is taken away unless somebody touched it after it was looked at. That is all a sweep is, so
whatever holds for this one holds for every other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.run import RunContext
from wrasse.engine.sweep import Action, Keep
from wrasse.ids import Ids
from wrasse.ports.jobs import ClaimedJob, Job, WorkerInfo
from wrasse.ports.journal import Line, LineFilter
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

SECOND = timedelta(seconds=1)
HEARTBEAT_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Bottle:
    """`touched` is its version: a change names the one it saw."""

    name: str
    since: datetime
    touched: int = 0
    cursed: bool = False  # nobody can decide about it


@dataclass(slots=True)
class Shelf:
    """Bottles in the order of their names."""

    clock: ManualClock
    bottles: dict[str, Bottle] = field(default_factory=dict)
    finds: list[int] = field(default_factory=list)
    batches: list[tuple[str, ...]] = field(default_factory=list)
    before_apply: Callable[[], None] = lambda: None
    before_find: Callable[[], None] = lambda: None
    unbreakable: set[str] = field(default_factory=set)  # taking one of these away raises

    def fill(self, count: int, age: timedelta = timedelta(hours=2)) -> Shelf:
        for number in range(len(self.bottles), len(self.bottles) + count):
            name = f"b{number:05}"
            self.bottles[name] = Bottle(name, self.clock.now() - age)
        return self

    def touch(self, name: str) -> None:
        old = self.bottles[name]
        self.bottles[name] = Bottle(name, self.clock.now(), old.touched + 1)


@dataclass(frozen=True, slots=True)
class OldBottles:
    """The sweep."""

    name: ClassVar[str] = "old_bottles"
    each: ClassVar[bool] = True

    status: Shelf
    kept: timedelta = timedelta(hours=1)
    batch_max: int = 10
    reason: str = "old"

    async def find(self, after: str | None, limit: int) -> Page[Bottle]:
        status = self.status
        status.before_find()
        status.finds.append(limit)
        names = sorted(name for name in status.bottles if after is None or name > after)
        page = names[:limit]
        return Page(tuple(status.bottles[n] for n in page), tuple(page), status.clock.now(), len(names) > len(page))

    def decide(self, suspect: Bottle, at: datetime) -> Action[Bottle] | Keep:
        if suspect.cursed:
            raise ValueError("the payload of a cursed bottle")
        if at - suspect.since < self.kept:
            return Keep("young")
        return Action("take", suspect.name, self.reason, suspect)

    async def apply(self, actions: Sequence[Action[Bottle]]) -> Sequence[Outcome]:
        self.status.before_apply()
        for action in actions:
            if action.suspect in self.status.unbreakable:
                raise ValueError("the payload of an unbreakable bottle")
        self.status.batches.append(tuple(action.suspect for action in actions))
        return [self._take(action.change) for action in actions]

    def _take(self, bottle: Bottle) -> Outcome:
        if self.status.bottles.get(bottle.name) != bottle:
            return Outcome.CONFLICT
        del self.status.bottles[bottle.name]
        return Outcome.DONE


class OldBottlesByTheCrate(OldBottles):
    """The same, with a journal line per batch."""

    __slots__ = ()
    each: ClassVar[bool] = False


class Scene:
    """Clock, backend and frame, and a few sentences about jobs."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = Memory(self.clock)
        self.jobs = self.memory.jobs
        self.status = Shelf(self.clock)
        self.frame = RunContext(self.memory.journal, self.clock, Ids(self.clock))

    def pass_time(self, by: timedelta) -> None:
        self.clock.advance(by)

    async def held_jobs(
        self, count: int, worker: str = "w1", heartbeat_timeout: timedelta = HEARTBEAT_TIMEOUT
    ) -> tuple[ClaimedJob, ...]:
        """So many new jobs, held by a worker that has just beaten."""
        ids = [f"{worker}-{number:05}" for number in range(count)]
        await self.jobs.enqueue([Job(id, queue=worker) for id in ids], request=f"put-{worker}")
        claimed = await self.jobs.claim(
            [worker], count, worker=worker, heartbeat_timeout=heartbeat_timeout, request=f"take-{worker}"
        )
        await self.jobs.heartbeat(
            WorkerInfo(worker), [job.claim for job in claimed.jobs], heartbeat_timeout=heartbeat_timeout
        )
        return claimed.jobs

    async def lines(self, **where: str | bool) -> tuple[Line, ...]:
        page = await self.memory.journal.page(LineFilter(**where), None, 1_000)  # type: ignore[arg-type]
        return page.items
