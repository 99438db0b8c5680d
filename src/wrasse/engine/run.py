"""One run: from the first page to the report. The only loop over suspects in the product.

    guards -> prepare -> what an earlier run left open -> find a page -> decide each -> guards -> journal the intents
    -> apply the batch -> journal the outcomes -> move the cursor past it -> again, until the listing or the budget ends

The cursor moves only past what was processed, so that a run which stops anywhere continues exactly there. A dry run is
this same code without apply, journal and cursor.

A sweep alone is a group of one; the sweeps of a group take turns, a batch each, under one budget and the same guards.
A run never does more actions than `actions_max`, since a batch is cut to what is left. It starts no batch after
`runtime_max`, so that it exceeds it by one batch at most.

Most sweeps have a journal line per action. A sweep whose actions are many and alike has one per batch and verb, which
names the first suspect and counts the rest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar

from wrasse.bounded import encodable
from wrasse.clock import Clock
from wrasse.engine.report import BACKEND_DOWN, ERROR, ERROR_CHARS_MAX, Planned, Report, RunTally, describe
from wrasse.engine.sweep import Action, Keep, Prepares, PreparesDry, Resolves, Sweep
from wrasse.errors import StoreUnavailable
from wrasse.ids import Ids
from wrasse.ports.guard import Guard
from wrasse.ports.journal import Intent, Journal, Line, LineFilter, SettledIntent
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

ACTIONS_MAX = "actions_max"
RUNTIME_MAX = "runtime_max"
CALL_MAX = 60.0  # seconds one call of a port may take; its backend's own timeouts are shorter
PAGE_MAX = 100
NAME_CHARS_MAX = 8_192  # of a suspect: every key of a store fits
OPEN_MAX = 1_000  # lines of earlier runs that one run settles
GUARD_INTERVAL = 1.0  # seconds between two checks of the guards while a sweep prepares
# A run that lost its lease is at most in the middle of one apply and one settle; then its lines are open for good.
OPEN_AFTER = timedelta(seconds=2 * CALL_MAX + 30)
# A line that stands for many actions says the worst of their outcomes.
_WORST_FIRST = (Outcome.UNKNOWN, Outcome.FAILED, Outcome.DONE, Outcome.CONFLICT)

T = TypeVar("T")
S = TypeVar("S")
C = TypeVar("C")

# Sweeps of different suspects stand side by side in a group; each is consistent in itself, which its own class checks.
AnySweep = Sweep[Any, Any]


@dataclass(frozen=True, slots=True)
class RunBudget:
    """The limits of one run. Every action counts, however it ends; suspects that are kept cost only time."""

    actions_max: int = 1_000
    runtime_max: timedelta = timedelta(seconds=30)
    pause: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        assert self.actions_max >= 0, "a budget is not negative"


class Spending:
    """What a run has used of its budget. Sweeps of one group share one."""

    __slots__ = ("_clock", "_spent", "_started", "budget")

    def __init__(self, budget: RunBudget, clock: Clock) -> None:
        self.budget = budget
        self._clock = clock
        self._spent = 0
        self._started = clock.monotonic()

    def begin(self) -> None:
        """The time counts from here: what comes before is preparation."""
        self._started = self._clock.monotonic()

    @property
    def left(self) -> int:
        """How many actions are left."""
        return self.budget.actions_max - self._spent

    def spend(self, actions: int) -> None:
        """Counts a batch, before it is applied."""
        assert actions <= self.left, "a batch beyond the budget"
        self._spent += actions

    def exhausted(self) -> str | None:
        """Which limit has been reached, if any."""
        if self.left <= 0:
            return ACTIONS_MAX
        if self._clock.monotonic() - self._started >= self.budget.runtime_max.total_seconds():
            return RUNTIME_MAX
        return None


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ended before the end of its listing."""

    by: str
    why: str


class Bounds:
    """The budget and the guards of one run, or of one group."""

    __slots__ = ("_dry_run", "guards", "spending")

    def __init__(self, spending: Spending, guards: Sequence[Guard], *, dry_run: bool = False) -> None:
        self.spending = spending
        self.guards = tuple(guards)
        self._dry_run = dry_run

    def exhausted(self) -> Stop | None:
        """Whether the budget is used up."""
        limit = self.spending.exhausted()
        return None if limit is None else Stop(limit, f"the budget's {limit} was reached; the next run goes on here")

    async def pause(self) -> Stop | None:
        """The first guard that pauses the run, if any."""
        return await first_pause(self.guards, foreseen=self._dry_run)

    async def release(self) -> None:
        """Lets guards release what they hold. What cannot be released now expires."""
        for guard in () if self._dry_run else self.guards:
            with suppress(StoreUnavailable, TimeoutError):
                await within(guard.release())

    def notes(self) -> tuple[str, ...]:
        """The notes of guards that let the run continue."""
        return tuple(note for guard in self.guards if (note := guard.note()))


async def first_pause(guards: Sequence[Guard], *, foreseen: bool = False) -> Stop | None:
    """The first of these guards that pauses a run, or would. One that fails pauses it: no proof, no action."""
    for guard in guards:
        try:
            reason = await within(guard.foreseen() if foreseen else guard.pause_reason())
        except (StoreUnavailable, TimeoutError) as error:
            return Stop(BACKEND_DOWN, describe(error))
        except Exception as error:
            return Stop(guard.name, f"the guard itself failed: {describe(error)}")
        if reason is not None:
            return Stop(guard.name, reason)
    return None


async def within(call: Awaitable[T]) -> T:
    """The answer of one call, or TimeoutError: no wait without an end."""
    async with asyncio.timeout(CALL_MAX):
        return await call


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A line of the journal, and which actions of the batch it stands for."""

    intent: Intent
    indexes: tuple[int, ...]


def entries_of(
    actions: Sequence[Action[Any]], sweep: Sweep[Any, Any], name: str, run: str, ids: Ids
) -> list[JournalEntry]:
    """The lines of a batch, in the order of its actions."""
    groups: dict[tuple[str, int], list[int]] = {}
    for index, action in enumerate(actions):
        groups.setdefault((action.verb, index if sweep.each else 0), []).append(index)
    return [
        JournalEntry(
            Intent(
                ids.new(),
                run,
                name,
                verb,
                _text(actions[indexes[0]].suspect),
                _text(actions[indexes[0]].reason)[:ERROR_CHARS_MAX],
                len(indexes),
            ),
            tuple(indexes),
        )
        for (verb, _), indexes in groups.items()
    ]


def _text(name: str) -> str:
    """A name that any journal can store, even one of another program: bytes that are no text are escaped, and its
    length is bounded."""
    return encodable(name[:NAME_CHARS_MAX])


def verdict(entry: JournalEntry, outcomes: Sequence[Outcome]) -> SettledIntent:
    """How a line ended, given how each action of the batch did."""
    counts = Counter(outcomes[index] for index in entry.indexes)
    detail = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    worst = next(outcome for outcome in _WORST_FIRST if counts[outcome])
    return SettledIntent(entry.intent.id, worst, detail if len(entry.indexes) > 1 else "")


@dataclass(frozen=True, slots=True)
class Member:
    """One sweep of a run, under the name of its instance, and where its last run stopped reading."""

    sweep: AnySweep
    name: str
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all runs of an engine share. Lines of other runs count as left open once they are older than `open_after`,
    so that a run which is still alive elsewhere settles its own."""

    journal: Journal
    clock: Clock
    ids: Ids
    page_max: int = PAGE_MAX
    open_after: timedelta = OPEN_AFTER


@dataclass(slots=True)
class _Batch(Generic[C]):
    actions: list[Action[C]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    index: int = 0  # of the first suspect on the page that is not part of it
    cursor: str | None = None
    last: bool = False

    @property
    def seen(self) -> int:
        return len(self.actions) + len(self.kept) + len(self.faults)


class Run(Generic[S, C]):
    """One sweep's part of a run. `step` does at most one batch."""

    def __init__(self, member: Member, context: RunContext, bounds: Bounds, *, dry_run: bool) -> None:
        self.sweep: Sweep[S, C] = member.sweep
        self.name = member.name
        self.cursor = member.cursor
        self.stop: Stop | None = None
        self._frame = context
        self._bounds = bounds
        self._dry_run = dry_run
        self._id = context.ids.new()
        self._tally = RunTally()
        self._plan: list[Planned] = []
        self._page: Page[S] | None = None
        self._index = 0
        self._started_at = context.clock.now()
        self._started = context.clock.monotonic()

    async def prepare(self) -> bool:
        """What comes before the first page; False if it could not be done."""
        try:
            if self._dry_run and isinstance(self.sweep, PreparesDry):
                self.stop = await _watched(self.sweep.prepare_dry(), self._bounds)
            elif isinstance(self.sweep, Prepares):
                self.stop = await _watched(self.sweep.prepare(), self._bounds)
            if self.stop is None and not self._dry_run:
                await self._settle_open()
        except Exception as error:
            self._fail("prepare", error)
        return self.stop is None

    async def step(self) -> bool:
        """One batch at most; False when the listing is read to its end or something stopped the run."""
        self.stop = self._bounds.exhausted()
        if self.stop is not None:
            return False
        try:
            batch = await self._next()
            # Checked after reading and right before the change.
            if batch.seen:
                self.stop = await self._bounds.pause()
            if self.stop is None:
                await self._finish(batch)
            return self.stop is None and not batch.last
        except Exception as error:
            self._fail("run", error)
            return False

    def report(self) -> Report:
        """What the run has seen and done so far."""
        clock, tally = self._frame.clock, self._tally
        return Report(
            run=self._id,
            sweep=self.name,
            started_at=self._started_at,
            ended_at=clock.now(),
            took=timedelta(seconds=clock.monotonic() - self._started),
            seen=tally.seen,
            kept=dict(tally.kept),
            planned=tally.planned,
            done=tally.outcomes[Outcome.DONE],
            conflict=tally.outcomes[Outcome.CONFLICT],
            failed=tally.failed + tally.outcomes[Outcome.FAILED],
            unknown=tally.outcomes[Outcome.UNKNOWN],
            stopped_by=None if self.stop is None else self.stop.by,
            why="" if self.stop is None else self.stop.why,
            dry_run=self._dry_run,
            cursor=self.cursor,
            errors=tuple(tally.errors),
            notes=self._bounds.notes(),
            plan=tuple(self._plan),
        )

    async def _next(self) -> _Batch[C]:
        """The next verdicts, up to a full batch or the end of the page."""
        spending, batch = self._bounds.spending, _Batch[C](index=self._index)
        if self._page is None:
            limit = min(max(self._frame.page_max, self.sweep.batch_max), spending.left)
            self._page = await within(self.sweep.find(self.cursor, limit))
            assert len(self._page) <= limit, f"{self.name} found more than it was asked for"
        page, room = self._page, min(self.sweep.batch_max, spending.left)
        while batch.index < len(page) and len(batch.actions) < room:
            try:
                found = self.sweep.decide(page.items[batch.index], page.at)
                if isinstance(found, Keep):
                    batch.kept.append(found.reason)
                else:
                    batch.actions.append(found)
            except Exception as error:
                batch.faults.append(error)
            batch.index += 1
        batch.last = batch.index == len(page) and not page.more
        batch.cursor = None if batch.last else page.cursors[batch.index - 1]
        return batch

    async def _finish(self, batch: _Batch[C]) -> None:
        """Applies a batch and moves past it."""
        self._tally.seen += batch.seen
        self._tally.failed += len(batch.faults)
        for reason in batch.kept:
            self._tally.keep(reason)
        for error in batch.faults:
            self._tally.fault("decide", error)
        if batch.actions:
            await self._apply(batch.actions)
        self.cursor, self._index = batch.cursor, batch.index
        assert self._page is not None, "a batch comes from a page"
        if self._index == len(self._page):
            self._page, self._index = None, 0

    async def _apply(self, actions: Sequence[Action[C]]) -> None:
        entries = entries_of(actions, self.sweep, self.name, self._id, self._frame.ids)
        if self._dry_run:
            self._plan += [Planned(action.verb, _text(action.suspect), _text(action.reason)) for action in actions]
        else:
            await within(self._frame.journal.intend([entry.intent for entry in entries]))
        self._bounds.spending.spend(len(actions))
        self._tally.planned += len(actions)
        if not self._dry_run:
            await self._change(actions, entries)

    async def _change(self, actions: Sequence[Action[C]], entries: Sequence[JournalEntry]) -> None:
        try:
            outcomes = await self._outcomes(actions)
        except BaseException:
            # The outcome of the batch is unknown. Its lines stay open, and the next run resolves them.
            self._tally.outcomes[Outcome.UNKNOWN] += len(actions)
            raise
        for outcome in outcomes:
            self._tally.outcomes[outcome] += 1
        await within(self._frame.journal.settle([verdict(entry, outcomes) for entry in entries]))

    async def _outcomes(self, actions: Sequence[Action[C]]) -> list[Outcome]:
        """The outcome of each action. If a batch raises, its actions are applied one by one: one bad suspect must not
        stop the rest."""
        try:
            outcomes = list(await within(self.sweep.apply(actions)))
        except (StoreUnavailable, TimeoutError):
            raise
        except Exception as error:
            if len(actions) > 1:
                return [outcome for action in actions for outcome in await self._outcomes([action])]
            self._tally.fault(actions[0].verb, error)
            return [Outcome.FAILED]
        assert len(outcomes) == len(actions), f"{self.name} did not answer for every action"
        return outcomes

    async def _settle_open(self) -> None:
        """Settles the lines that an earlier run of this sweep left open."""
        page = await within(self._frame.journal.page(LineFilter(sweep=self.name, open=True), None, OPEN_MAX))
        lines = [line for line in page if line.intended_at <= page.at - self._frame.open_after]
        if not lines:
            return
        outcomes, detail = await self._resolved(lines)
        settled = [SettledIntent(line.intent.id, end, detail) for line, end in zip(lines, outcomes, strict=True)]
        await within(self._frame.journal.settle(settled))

    async def _resolved(self, lines: Sequence[Line]) -> tuple[Sequence[Outcome], str]:
        unknown = [Outcome.UNKNOWN] * len(lines)
        if not isinstance(self.sweep, Resolves):
            return unknown, "the run ended before it could tell"
        try:
            return await within(self.sweep.resolve(lines)), "found out by a later run"
        except (StoreUnavailable, TimeoutError):
            raise
        except Exception as error:
            self._tally.fault("resolve", error)
            return unknown, "a later run could not find out"

    def _fail(self, where: str, error: Exception) -> None:
        if isinstance(error, (StoreUnavailable, TimeoutError)):
            self.stop = Stop(BACKEND_DOWN, describe(error))
            return
        self._tally.failed += 1
        self._tally.fault(where, error)
        self.stop = Stop(ERROR, describe(error))


async def run_group(
    members: Sequence[Member],
    context: RunContext,
    *,
    budget: RunBudget | None = None,
    guards: Sequence[Guard] = (),
    dry_run: bool = False,
) -> list[Report]:
    """One run of each member, a batch in turn, under one budget and the same guards."""
    budget = budget or RunBudget()
    bounds = Bounds(Spending(budget, context.clock), guards, dry_run=dry_run)
    runs: list[Run[Any, Any]] = [Run(member, context, bounds, dry_run=dry_run) for member in members]
    try:
        stop = await bounds.pause()
        if stop is not None:
            for run in runs:
                run.stop = stop
            return [run.report() for run in runs]
        active = [run for run in runs if await run.prepare()]
        bounds.spending.begin()
        while active:
            for run in tuple(active):
                if not await run.step():
                    active.remove(run)
                if active and budget.pause and not dry_run:
                    await asyncio.sleep(budget.pause.total_seconds())
        return [run.report() for run in runs]
    finally:
        await bounds.release()


async def run_once(
    sweep: AnySweep,
    context: RunContext,
    *,
    name: str = "",
    cursor: str | None = None,
    budget: RunBudget | None = None,
    guards: Sequence[Guard] = (),
    dry_run: bool = False,
) -> Report:
    """One run of one sweep. The report's cursor is where the next one starts."""
    member = Member(sweep, name or sweep.name, cursor)
    (report,) = await run_group([member], context, budget=budget, guards=guards, dry_run=dry_run)
    return report


async def _watched(preparing: Awaitable[None], bounds: Bounds) -> Stop | None:
    """Lets a sweep prepare for as long as it takes, and ends that when a guard pauses it."""
    stop = None
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_error_of(preparing))
        while not task.done() and stop is None:
            await asyncio.wait([task], timeout=GUARD_INTERVAL)
            stop = None if task.done() else await bounds.pause()
        task.cancel()
    if stop is None and (error := task.result()) is not None:
        raise error
    return stop


async def _error_of(preparing: Awaitable[None]) -> Exception | None:
    """What it raised: a TaskGroup would wrap it, and it is to be counted as what it was."""
    try:
        await preparing
    except Exception as error:
        return error
    return None
