"""The promises of every sweep, each checked by one function whose error says in a sentence which sweep broke it.

what is held stays          decide is pure, and once ripe stays ripe          pages are bounded and miss nothing
a dry run changes nothing, and plans what the run then does                   losing the race changes nothing

Each check has a `World` of its own: a clock, and every port in memory, whose whole content can be compared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.run import AnySweep, RunBudget, RunContext, run_once
from wrasse.engine.sweep import Action, Keep
from wrasse.ids import Ids
from wrasse.ports.jobs import JobFilter, JobState
from wrasse.ports.journal import Line, LineFilter
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, pages
from wrasse.ports.records import Collection, Records
from wrasse.ports.streams import EntryId

IDLE = "finds nothing to do: plant something that is ripe, so that the check means something"
LIMIT = 100
PAGES_MAX = 1_000
_PAGE = 500
T = TypeVar("T")
STEPS = tuple(timedelta(seconds=s) for s in (1, 10, 60, 600, 3_600, 86_400, 604_800, 2_592_000, 31_536_000))


class World:
    """`store` has the ports `jobs`, `journal`, `streams`, `groups` and `objects`; `records` opens a collection."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Memory(self.clock)
        self._collections: dict[str, Collection] = {}

    def records(self, collection: Collection) -> Records:
        """The records of one collection; the same ones each time."""
        self._collections[collection.data] = collection
        return self.store.records(collection)

    def context(self) -> RunContext:
        """What a run of the engine needs."""
        return RunContext(self.store.journal, self.clock, Ids(self.clock))

    async def seen(self) -> tuple[str, ...]:
        """Everything a reader of the ports can see now, a line each, without the journal."""
        return tuple([line async for line in self._lines()])

    async def journal(self) -> tuple[Line, ...]:
        """Every line of the journal."""
        return tuple([line async for line in _all(partial(self.store.journal.page, LineFilter(), limit=_PAGE))])

    async def _lines(self) -> AsyncIterator[str]:
        jobs, objects, streams = self.store.jobs, self.store.objects, self.store.streams
        for state in JobState:
            async for job in _all(partial(jobs.page, state, JobFilter(), limit=_PAGE)):
                yield f"{state.value} {await jobs.get(job.id)!r}"
        for worker in (await jobs.counts()).workers:
            yield f"worker {worker!r}"
        for name, collection in sorted(self._collections.items()):
            records = self.store.records(collection)
            async for record in _all(partial(records.page, "", limit=_PAGE)):
                yield f"{name} {record!r}"
        async for info in _all(partial(objects.page, "", limit=_PAGE)):
            yield f"{info!r} {b''.join([chunk async for chunk in objects.read(info.key)])!r}"
        async for subject in _all(partial(streams.subjects, ">", limit=_PAGE)):
            yield f"{subject} {await streams.info(subject)!r}"
            async for entry in self._entries(subject):
                yield f"{subject} {entry}"

    async def _entries(self, subject: str) -> AsyncIterator[str]:
        after = EntryId(0, 0)
        for _ in range(PAGES_MAX):
            page = await self.store.streams.read(subject, after, _PAGE)
            for entry in page:
                yield repr(entry)
                after = entry.id
            if not page.more:
                return


async def _all(read: Callable[[str | None], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    async for page in pages(read, most=PAGES_MAX):
        for item in page:
            yield item


@dataclass(frozen=True, slots=True)
class SweepCase:
    """A sweep and a world in which it has something to do.

    `sweep` makes it on the ports of a world. `plant` puts there what is ripe and what is held, and moves the clock.
    `claim` is what the owners of everything ripe do when they come back after the sweep has looked. `held` are the
    suspects, as actions name them, that must stay. `grace` is how long a suspect must have been let alone before it is
    ripe: what is planted ripe, for less than twice that, was not ripe one grace earlier.
    """

    sweep: Callable[[World], AnySweep]
    plant: Callable[[World], Awaitable[None]]
    claim: Callable[[World], Awaitable[None]]
    held: Sequence[str] = ()
    grace: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """How much was there to check with: suspects that were looked at, and actions that were taken."""

    suspects: int
    actions: int


async def check_sweep(case: SweepCase) -> Checked:
    """Holds a sweep to all its promises, each in a world of its own; raises AssertionError where one is broken."""
    await check_pages(case)
    await check_decisions(case)
    await check_lost_race(case)
    await check_second_apply(case)
    return await check_runs(case)


async def check_runs(case: SweepCase) -> Checked:
    """A dry run changes nothing and plans what the run does; the run leaves what is held and ends all it began."""
    world, sweep = await _world(case)
    before, journal = await world.seen(), await world.journal()
    plan = await run_once(sweep, world.context(), budget=RunBudget(), dry_run=True)
    assert await world.seen() == before, f"a dry run of {sweep.name} changed something: find and decide only read"
    assert await world.journal() == journal, f"a dry run of {sweep.name} wrote to the journal"
    assert not plan.errors, f"{sweep.name} fails: {plan.errors[0]}"
    assert plan.plan, f"{sweep.name} {IDLE}"
    touched = {each.suspect for each in plan.plan}
    assert not touched & set(case.held), f"{sweep.name} takes what is held: {sorted(touched & set(case.held))}"
    report = await run_once(sweep, world.context(), budget=RunBudget())
    counted = (report.seen, report.planned, dict(report.kept))
    assert counted == (plan.seen, plan.planned, dict(plan.kept)), f"{sweep.name} did other things than it planned"
    if sweep.each:
        told = {(line.intent.verb, line.intent.suspect, line.intent.reason) for line in await world.journal()}
        planned = {(each.verb, each.suspect, each.reason) for each in plan.plan}
        assert told == planned, f"{sweep.name} did other things than it planned: {sorted(told ^ planned)}"
    assert report.done == report.planned, (
        f"{sweep.name}: {report.conflict} in conflict, {report.failed} failed: {report.errors}"
    )
    assert await world.seen() != before, f"{sweep.name} says that it took something away, and nothing is different"
    return Checked(report.seen, report.done)


async def check_pages(case: SweepCase) -> None:
    """One page holds no more than was asked for, and small pages find what large ones do, in the same order."""
    world, sweep = await _world(case)
    before = await world.seen()
    large, small = await _found(sweep, LIMIT), await _found(sweep, 1)
    assert large == small, f"{sweep.name} finds other suspects in pages of 1 than of {LIMIT}: look at its cursors"
    assert await world.seen() == before, f"find of {sweep.name} changed something"


async def check_decisions(case: SweepCase) -> None:
    """decide gives the same verdict for the same facts, leaves them alone, and what is ripe stays ripe."""
    world, sweep = await _world(case)
    before = await world.seen()
    page = await sweep.find(None, LIMIT)
    for suspect in page:
        looked = repr(suspect)
        times = [*(page.at - step for step in reversed(STEPS)), page.at, *(page.at + step for step in STEPS)]
        verdicts = [sweep.decide(suspect, at) for at in times]
        again = [sweep.decide(suspect, at) for at in times]
        assert verdicts == again, f"decide of {sweep.name} is not pure: two verdicts on the same facts: {looked}"
        assert repr(suspect) == looked, f"decide of {sweep.name} changed the suspect {looked}"
        ripe = [isinstance(verdict, Action) for verdict in verdicts]
        assert ripe == sorted(ripe), f"{sweep.name} would act on {looked}, and later would not: it must stay ripe"
        if case.grace is not None and ripe[len(STEPS)]:
            early = sweep.decide(suspect, page.at - case.grace)
            assert isinstance(early, Keep), f"{sweep.name} would have acted on {looked} before its grace was over"
    assert await world.seen() == before, f"decide of {sweep.name} changed something"


async def check_lost_race(case: SweepCase) -> None:
    """What its owner claims between the look and the change stays as the owner left it."""
    world, sweep = await _world(case)
    actions = await _actions(sweep)
    await case.claim(world)
    claimed = await world.seen()
    outcomes = list(await sweep.apply(actions))
    assert await world.seen() == claimed, f"{sweep.name} changed what its owner had claimed: name the version it saw"
    assert outcomes == [Outcome.CONFLICT] * len(actions), f"{sweep.name} met a conflict and says {outcomes}"


async def check_second_apply(case: SweepCase) -> None:
    """Of two runs with the same actions the second changes nothing."""
    world, sweep = await _world(case)
    actions = await _actions(sweep)
    await sweep.apply(actions)
    after = await world.seen()
    outcomes = list(await sweep.apply(actions))
    assert await world.seen() == after, f"{sweep.name} applied the same actions twice, and both changed something"
    assert outcomes == [Outcome.CONFLICT] * len(actions), (
        f"{sweep.name}, applied again, says {outcomes}, not a conflict"
    )


async def _world(case: SweepCase) -> tuple[World, AnySweep]:
    world = World()
    sweep = case.sweep(world)
    await case.plant(world)
    return world, sweep


async def _actions(sweep: AnySweep) -> Sequence[Action[Any]]:
    page = await sweep.find(None, LIMIT)
    verdicts = [sweep.decide(suspect, page.at) for suspect in page]
    found = [verdict for verdict in verdicts if not isinstance(verdict, Keep)]
    assert found, f"{sweep.name} {IDLE}"
    return found[: sweep.batch_max]


async def _found(sweep: AnySweep, limit: int) -> list[str]:
    found: list[str] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = await sweep.find(after, limit)
        assert len(page) <= limit, f"{sweep.name} found {len(page)} suspects in a page of {limit}"
        found += [repr(suspect) for suspect in page]
        after = page.cursor
        if after is None:
            return found
    raise AssertionError(f"{sweep.name} finds page after page without end: look at its cursors")
