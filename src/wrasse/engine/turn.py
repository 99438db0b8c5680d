"""One turn of one sweep: if it is due and its lease is free, run it and store its state.

    state says fresh -> nothing to do        lease held elsewhere -> nothing to do
    lease -> state again, since another may have run in between -> run -> state -> lease released

The lease makes N engines do the work of one. It protects nothing: that is each change's own precondition.

The state, which engines share, is one record per instance: the cursor, the last reports, and what its guards remember.
It is written at the version that was read, so that an engine whose lease ended meanwhile does not replace a later
cursor by its own.

Jitter only adds. So a run is never due before its interval is over, and of several engines that share a sweep the first
after that runs it while the others find it fresh: one run per interval, however many engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from wrasse.bounded import decoded
from wrasse.engine.guard import STOPPING, ClockSkew, LeaseGuard, Traffic
from wrasse.engine.report import BACKEND_DOWN, Report
from wrasse.engine.run import AnySweep, Member, RunBudget, RunContext, run_group, run_once
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.leases.lease import Lease
from wrasse.leases.lease_scope import RenewedLease, renewing
from wrasse.leases.manager import LeaseManager
from wrasse.ports.guard import Guard
from wrasse.ports.journal import stored_sweep, sweep_from_stored
from wrasse.ports.records import VALUE_BYTES_MAX, Collection, Record, Records

ENGINE_STATE = Collection.named(".wrasse/engine")
REPORTS_KEPT = 20
STAGGER_MAX = 10.0  # seconds, as the next two
BACKOFF_FIRST = 1.0
BACKOFF_MAX = 30.0
NO_WAIT = timedelta(0)
# These guards check this process only.
OWN_GUARDS = frozenset({STOPPING, LeaseGuard.name, Traffic.name, ClockSkew.name})
_NONE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class PausedBy:
    """Which guard pauses a sweep, why, and since when: the first of an unbroken row of runs that it stopped."""

    guard: str
    reason: str
    since: datetime


class SweepState(msgspec.Struct, frozen=True):
    """The record. `ran_at` is when the last run began, by the store's clock; reports are oldest first."""

    ran_at: datetime | None = None
    cursor: str | None = None
    paused: PausedBy | None = msgspec.field(default=None, name="held")
    reports: tuple[Report, ...] = ()
    memory: Mapping[str, str] = msgspec.field(default_factory=lambda: _NONE)  # guard -> what it remembers

    @property
    def last(self) -> Report | None:
        """The newest report."""
        return self.reports[-1] if self.reports else None


def after_run(
    state: SweepState, report: Report, ran_at: datetime | None, guards: frozenset[str], memory: Mapping[str, str]
) -> SweepState:
    """The state after one more run. A quiet report takes the place of a quiet one, so that the last twenty reach back
    to the last time something happened."""
    kept = state.reports[:-1] if report.quiet and state.last is not None and state.last.quiet else state.reports
    return replace(
        state,
        ran_at=ran_at,
        cursor=report.cursor,
        paused=_paused(state.paused, report, guards),
        reports=(*kept, report)[-REPORTS_KEPT:],
        memory=memory,
    )


def _paused(before: PausedBy | None, report: Report, guards: frozenset[str]) -> PausedBy | None:
    if report.stopped_by is None or report.stopped_by not in guards:
        return None
    same = before is not None and before.guard == report.stopped_by
    since = before.since if same and before is not None else report.ended_at
    return PausedBy(report.stopped_by, report.why, since)


@dataclass(frozen=True, slots=True)
class LoadedState:
    """A state and the version it was read at; None: there was no record."""

    state: SweepState
    version: str | None


_DECODER = msgspec.json.Decoder(SweepState)


async def load(records: Records, name: str) -> LoadedState:
    """The state of one sweep; a fresh one where none is stored."""
    record = await records.get(stored_sweep(name))
    return LoadedState(SweepState(), None) if record is None else decode_state(name, record)


def decode_state(name: str, record: Record) -> LoadedState:
    """The state in a record; StoreBroken if it holds none."""
    try:
        state: SweepState = decoded(_DECODER.decode, record.value)
        return LoadedState(_renamed(state, sweep_from_stored), record.version)
    except ValueError as error:
        raise StoreBroken(
            f"the state of the sweep {name} is not one that wrasse wrote: {error}",
            do="see who else writes there, then delete the record; the sweep starts over from the first page",
        ) from error


def _encoded(state: SweepState) -> bytes:
    """The bytes of a state. If names of other programs make it too long for a record, older reports, and then the
    cursor, are left out; without a cursor the sweep starts over from the first page."""
    state = _renamed(state, stored_sweep)
    for less in (state, replace(state, reports=state.reports[-1:]), SweepState(state.ran_at, paused=state.paused)):
        value = msgspec.json.encode(less)
        if len(value) <= VALUE_BYTES_MAX:
            break
    return value


async def save(records: Records, name: str, loaded: LoadedState, state: SweepState) -> bool:
    """Writes the state unless another engine has gone on from where it was read."""
    key, value = stored_sweep(name), _encoded(state)
    if loaded.version is None:
        return bool(await records.create(key, value))
    return bool(await records.put(key, value, at=loaded.version))


def _renamed(state: SweepState, name: Callable[[str], str]) -> SweepState:
    """With the sweeps in its reports by the names that this gives them."""
    if all(name(report.sweep) == report.sweep for report in state.reports):
        return state
    reports = tuple(replace(report, sweep=name(report.sweep)) for report in state.reports)
    return replace(state, reports=reports)


@dataclass(frozen=True, slots=True)
class SweepSchedule:
    """When a sweep is due: every `interval`, and up to `jitter` of it later. Results are in seconds."""

    interval: timedelta
    jitter: float = 0.1

    def __post_init__(self) -> None:
        assert self.interval > timedelta(0), "an interval is above zero"
        assert 0 <= self.jitter <= 1, "jitter is a share of the interval"

    def first(self, u: float) -> float:
        """How long after the start the first run is due: spread, so that sweeps do not all begin at once."""
        return min(self.interval.total_seconds(), STAGGER_MAX) * u

    def after(self, passed: timedelta, u: float) -> float:
        """How long from now until the next run, when the last one began `passed` ago; never negative."""
        return max(0.0, self.interval.total_seconds() * (1 + self.jitter * u) - passed.total_seconds())

    def fresh(self, ran_at: datetime | None, at: datetime) -> bool:
        """Whether the last run, here or elsewhere, began less than an interval ago. One in the future does not count:
        the store's clock was set back, and a sweep must not wait for it to catch up."""
        return ran_at is not None and ran_at <= at < ran_at + self.interval


def backoff(failures: int, u: float) -> float:
    """How long to wait after so many outages in a row: doubling, capped, and never less than half."""
    assert failures >= 1, "a backoff follows a failure"
    longest = min(BACKOFF_FIRST * (1 << min(failures - 1, 16)), BACKOFF_MAX)
    return longest * (1 + u) / 2


def sweep_lease(instance: str) -> str:
    """The key of the lease under which an instance of a sweep, or a group of them, runs."""
    return f"sweep/{stored_sweep(instance)}"


@dataclass(frozen=True, slots=True)
class SweepBackend:
    """Where the leases and states of sweeps are: in the backend that they sweep, so that two engines take turns exactly
    if they sweep the same things."""

    lease_manager: LeaseManager
    state: Records


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sweep at one place, how often it runs, and what bounds it. Instances of one sweep differ by name, such as
    `stuck_jobs@tasks`; without one it is the sweep's own. Sweeps of one `group` run together, a batch each in turn,
    under one lease and with the home, the interval, the budget and the guards of the first of them."""

    sweep: AnySweep
    interval: timedelta
    jitter: float = 0.1
    budget: RunBudget = field(default_factory=RunBudget)
    guards: tuple[Guard, ...] = ()
    enabled: bool = True
    name: str = ""
    group: str = ""
    home: SweepBackend | None = None  # None: that of the engine

    @property
    def instance(self) -> str:
        """What it is called in leases, state, journal and metrics."""
        return self.name or self.sweep.name

    @property
    def schedule(self) -> SweepSchedule:
        """When it is due."""
        return SweepSchedule(self.interval, self.jitter)

    @property
    def lease_key(self) -> str:
        """The lease that makes it run in one place."""
        return sweep_lease(self.group or self.instance)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all sweeps of an engine use."""

    home: SweepBackend
    context: RunContext
    owner: str
    lease_ttl: timedelta
    guards: tuple[Guard, ...] = ()  # asked by every sweep, before its own

    def home_of(self, scheduled: Scheduled) -> SweepBackend:
        """Where the lease and the state of a sweep are."""
        return scheduled.home or self.home


@dataclass(frozen=True, slots=True)
class Ran:
    """It ran here. `saved` is False when the state could not be written: the next run starts where this one did."""

    report: Report
    state: SweepState
    saved: bool


@dataclass(frozen=True, slots=True)
class Fresh:
    """It ran less than an interval ago, here or elsewhere."""

    state: SweepState
    passed: timedelta


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another engine is running it. `lease` is None if it has finished meanwhile."""

    lease: Lease | None
    left: timedelta


async def take_turns(
    group: Sequence[Scheduled], shared: Shared, *, force: bool = False, wait: timedelta = NO_WAIT
) -> tuple[Ran, ...] | Fresh | Elsewhere:
    """One turn of the sweeps of a group: how each ran, or why none did. `force` runs also what is fresh; `wait` is how
    long to wait for another engine to finish."""
    first = group[0]
    if not force and (fresh := await _fresh(group, shared, await _loaded(group, shared))):
        return fresh
    lease_manager = shared.home_of(first).lease_manager
    lease = await lease_manager.acquire(first.lease_key, shared.owner, shared.lease_ttl, wait=wait)
    if lease is None:
        other = await lease_manager.get(first.lease_key)
        left = timedelta(0) if other is None else other.expires_at - await lease_manager.now()
        return Elsewhere(other, left)
    async with renewing(RenewedLease(lease_manager, lease, shared.lease_ttl, shared.context.clock)) as holding:
        loaded = await _loaded(group, shared)
        if not force and (fresh := await _fresh(group, shared, loaded)):
            return fresh
        return await _run(group, shared, loaded, holding)


async def dry_run(scheduled: Scheduled, shared: Shared) -> Report:
    """What a run would do now: from the same cursor, under the same guards and budget, without a lease."""
    loaded = await load(shared.home_of(scheduled).state, scheduled.instance)
    guards = (*shared.guards, *scheduled.guards)
    recall(guards, loaded.state.memory)
    return await run_once(
        scheduled.sweep,
        shared.context,
        name=scheduled.instance,
        cursor=loaded.state.cursor,
        budget=scheduled.budget,
        guards=guards,
        dry_run=True,
    )


async def _loaded(group: Sequence[Scheduled], shared: Shared) -> tuple[LoadedState, ...]:
    return tuple([await load(shared.home_of(each).state, each.instance) for each in group])


async def _fresh(group: Sequence[Scheduled], shared: Shared, loaded: Sequence[LoadedState]) -> Fresh | None:
    """A group is as fresh as the one of it that ran longest ago."""
    at, schedule = await shared.home_of(group[0]).lease_manager.now(), group[0].schedule
    runs = [each.state.ran_at for each in loaded]
    known = [ran_at for ran_at in runs if ran_at is not None and schedule.fresh(ran_at, at)]
    return Fresh(loaded[0].state, at - min(known)) if len(known) == len(runs) else None


async def _run(
    group: Sequence[Scheduled], shared: Shared, loaded: Sequence[LoadedState], holding: RenewedLease
) -> tuple[Ran, ...]:
    ran_at, first = await shared.home_of(group[0]).lease_manager.now(), group[0]
    guards = (LeaseGuard(holding), *shared.guards, *first.guards)
    recall(guards, loaded[0].state.memory)
    members = [
        Member(each.sweep, each.instance, before.state.cursor) for each, before in zip(group, loaded, strict=True)
    ]
    reports = await run_group(members, shared.context, budget=first.budget, guards=guards)
    return tuple(
        [
            await _saved(each, shared, before, report, ran_at, guards)
            for each, before, report in zip(group, loaded, reports, strict=True)
        ]
    )


async def _saved(
    scheduled: Scheduled, shared: Shared, loaded: LoadedState, report: Report, ran_at: datetime, guards: Sequence[Guard]
) -> Ran:
    # A run that a guard of this process alone stopped at once does not count: a healthy engine need not wait for it.
    in_vain = report.seen == 0 and report.stopped_by in OWN_GUARDS
    state = remember(loaded.state, report, loaded.state.ran_at if in_vain else ran_at, guards)
    try:
        saved = await save(shared.home_of(scheduled).state, scheduled.instance, loaded, state)
    except StoreUnavailable:
        saved = False
    return Ran(report, state, saved)


def remember(state: SweepState, report: Report, ran_at: datetime | None, guards: Sequence[Guard]) -> SweepState:
    """The state after a run under these guards."""
    names = frozenset(guard.name for guard in guards) | {BACKEND_DOWN}
    memory = {name: text for name, text in state.memory.items() if name in names}
    for guard in guards:
        if (text := guard.memory()) is not None:
            memory[guard.name] = text
    return after_run(state, report, ran_at, names, memory)


def recall(guards: Sequence[Guard], memory: Mapping[str, str]) -> None:
    """Passes to guards what the last run, here or in another engine, stored; nothing if that cannot be read."""
    for guard in guards:
        try:
            guard.recall(memory.get(guard.name))
        except ValueError:
            guard.recall(None)
