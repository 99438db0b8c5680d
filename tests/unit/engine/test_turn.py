"""One turn: when it is due, who runs it, and what is remembered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from faults import FaultyRecords, Network, Script
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.guard import Activity, Traffic, backend_guards
from wrasse.engine.loop import ENGINE_LEASES, LEASE_TTL
from wrasse.engine.run import AnySweep, RunBudget
from wrasse.engine.turn import (
    ENGINE_STATE,
    Elsewhere,
    Fresh,
    Ran,
    Scheduled,
    Shared,
    SweepBackend,
    dry_run,
    load,
    take_turns,
)
from wrasse.leases.manager import LeaseManager
from wrasse.ports.guard import Guard
from wrasse.ports.records import Collection, Record
from wrasse.sweeps.stuck_jobs import StuckJobs

from .scene import HEARTBEAT_TIMEOUT, SECOND, OldBottles, Scene

INTERVAL = timedelta(seconds=10)
TTL = timedelta(seconds=20)


async def take_turn(scheduled: Scheduled, shared: Shared, *, force: bool = False) -> Ran | Fresh | Elsewhere:
    found = await take_turns((scheduled,), shared, force=force)
    return found[0] if isinstance(found, tuple) else found


def _engine(scene: Scene, owner: str = "me", leases: Collection = ENGINE_LEASES) -> Shared:
    """What one engine has of its own; the store behind it is everybody's."""
    lease_manager = LeaseManager(scene.memory.records(leases), scene.clock)
    return Shared(SweepBackend(lease_manager, scene.memory.records(ENGINE_STATE)), scene.frame, owner, TTL)


def _bottles(scene: Scene, *guards: Guard, budget: RunBudget | None = None) -> Scheduled:
    return _every(OldBottles(scene.status), *guards, budget=budget)


def _every(sweep: AnySweep, *guards: Guard, budget: RunBudget | None = None) -> Scheduled:
    return Scheduled(sweep, INTERVAL, budget=budget or RunBudget(), guards=guards)


async def test_a_sweep_that_never_ran_is_due(scene: Scene) -> None:
    scene.status.fill(3)
    found = await take_turn(_bottles(scene), _engine(scene))
    assert isinstance(found, Ran)
    assert (found.report.done, found.saved) == (3, True)


async def test_a_sweep_that_another_engine_just_ran_is_left_alone(scene: Scene) -> None:
    await take_turn(_bottles(scene), _engine(scene, "me"))
    scene.pass_time(INTERVAL - SECOND)
    found = await take_turn(_bottles(scene), _engine(scene, "you"))
    assert isinstance(found, Fresh)
    assert found.passed == INTERVAL - SECOND


async def test_three_engines_and_ten_intervals_make_ten_runs(scene: Scene) -> None:
    engines = [_engine(scene, name) for name in ("a", "b", "c")]
    found = []
    for _ in range(10):
        found += await asyncio.gather(*(take_turn(_bottles(scene), engine) for engine in engines))
        found += [await take_turn(_bottles(scene), engine) for engine in engines]
        scene.pass_time(INTERVAL)
    assert sum(isinstance(each, Ran) for each in found) == 10


async def test_a_sweep_that_another_engine_ran_while_we_asked_for_the_lease_is_left_alone(scene: Scene) -> None:
    class Late(FaultyRecords):
        """Another engine does a whole turn before our first question arrives."""

        async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
            if not scene.status.batches:
                await take_turn(_bottles(scene), _engine(scene, "other"))
            return await super().get(key, entering=entering)

    scene.status.fill(1)
    healthy = _engine(scene)
    late = LeaseManager(Late(scene.memory.records(ENGINE_LEASES), Network(Script({}))), scene.clock)
    found = await take_turn(_bottles(scene), replace(healthy, home=replace(healthy.home, lease_manager=late)))
    assert isinstance(found, Fresh)


async def test_looking_at_a_sweep_that_is_fresh_costs_no_write(scene: Scene) -> None:
    await take_turn(_bottles(scene), _engine(scene))
    calls = Script({})
    lease_manager = LeaseManager(FaultyRecords(scene.memory.records(ENGINE_LEASES), Network(calls)), scene.clock)
    healthy = _engine(scene)
    await take_turn(_bottles(scene), replace(healthy, home=replace(healthy.home, lease_manager=lease_manager)))
    assert calls.calls == ["due"]


async def test_a_forced_turn_runs_also_what_is_fresh(scene: Scene) -> None:
    await take_turn(_bottles(scene), _engine(scene))
    assert isinstance(await take_turn(_bottles(scene), _engine(scene), force=True), Ran)


async def test_a_sweep_that_runs_elsewhere_is_left_to_its_owner(scene: Scene) -> None:
    other = _engine(scene, "other")
    await other.home.lease_manager.acquire("sweep/old_bottles", "other", TTL)
    found = await take_turn(_bottles(scene), _engine(scene))
    assert isinstance(found, Elsewhere)
    assert found.lease is not None
    assert (found.lease.owner, found.left) == ("other", TTL)


async def test_the_sweep_of_an_engine_that_died_is_taken_over_when_its_lease_ends(scene: Scene) -> None:
    await _engine(scene).home.lease_manager.acquire("sweep/old_bottles", "dead", TTL)
    scene.pass_time(TTL)
    assert isinstance(await take_turn(_bottles(scene), _engine(scene)), Ran)


async def test_a_process_killed_in_a_run_keeps_the_others_waiting_for_ten_seconds_at_most(scene: Scene) -> None:
    dead = replace(_engine(scene, "dead"), lease_ttl=LEASE_TTL)
    assert await dead.home.lease_manager.acquire(_bottles(scene).lease_key, "dead", dead.lease_ttl) is not None
    scene.pass_time(timedelta(seconds=10))
    assert isinstance(await take_turn(_bottles(scene), _engine(scene)), Ran)


def test_the_lease_of_a_sweep_has_its_stored_name(scene: Scene) -> None:
    named = [replace(_bottles(scene), name=name).lease_key for name in ("orphan_objects@root", "stuck_jobs@tasks")]
    assert named == ["sweep/orphan_archives@root", "sweep/stuck_jobs@tasks"]


async def test_the_lease_is_given_back_after_a_run(scene: Scene) -> None:
    shared = _engine(scene)
    await take_turn(_bottles(scene), shared)
    assert await shared.home.lease_manager.get("sweep/old_bottles") is None


async def test_the_lease_is_given_back_by_a_run_that_is_cancelled(scene: Scene) -> None:
    shared, applying = _engine(scene), asyncio.Event()

    class Endless(OldBottles):
        __slots__ = ()

        async def apply(self, actions):  # type: ignore[no-untyped-def]
            applying.set()
            await asyncio.Event().wait()

    scene.status.fill(1)
    async with asyncio.TaskGroup() as tasks:
        turn = tasks.create_task(take_turn(_every(Endless(scene.status)), shared))
        await applying.wait()
        turn.cancel()
    assert turn.cancelled()
    assert await shared.home.lease_manager.get("sweep/old_bottles") is None


async def test_the_cursor_survives_the_process_so_that_what_fails_does_not_starve_the_rest(scene: Scene) -> None:
    scene.status.fill(30).unbreakable.update(f"b{number:05}" for number in range(10))
    scheduled = _bottles(scene, budget=RunBudget(actions_max=10))
    for owner in ("first", "second", "third"):
        await take_turn(scheduled, _engine(scene, owner))
        scene.pass_time(INTERVAL)
    assert [batch[0] for batch in scene.status.batches] == ["b00010", "b00020"]


async def test_a_run_whose_lease_is_over_stops_within_one_batch(scene: Scene) -> None:
    scene.status.fill(30)
    scene.status.before_apply = lambda: scene.pass_time(TTL)
    found = await take_turn(_bottles(scene), _engine(scene))
    assert isinstance(found, Ran)
    assert (found.report.stopped_by, found.report.done) == ("lost_lease", 10)


async def test_an_engine_that_was_overtaken_leaves_the_later_cursor_alone(scene: Scene) -> None:
    scene.status.fill(30)
    later = _bottles(scene, budget=RunBudget(actions_max=15))

    class Overtaken(OldBottles):
        """While it applies its first batch, its lease ends and another engine does a whole run."""

        __slots__ = ()

        async def apply(self, actions):  # type: ignore[no-untyped-def]
            if not scene.status.batches:
                scene.pass_time(TTL)
                await take_turn(later, _engine(scene, "other"))
            return await OldBottles.apply(self, actions)

    found = await take_turn(_every(Overtaken(scene.status)), _engine(scene))
    assert isinstance(found, Ran)
    assert (found.report.stopped_by, found.saved) == ("lost_lease", False)
    assert (await load(scene.memory.records(ENGINE_STATE), "old_bottles")).state.cursor == "b00014"


async def test_two_engines_that_both_believe_to_be_the_only_one_rescue_each_job_once(scene: Scene) -> None:
    jobs = await scene.held_jobs(200)
    scene.pass_time(HEARTBEAT_TIMEOUT)
    apart = [_engine(scene, name, Collection.named(name)) for name in ("one", "two")]
    turns = (take_turn(_every(StuckJobs(scene.jobs, batch_max=7)), engine, force=True) for engine in apart)
    reports = [found.report for found in await asyncio.gather(*turns) if isinstance(found, Ran)]
    records = [await scene.jobs.get(job.job.id) for job in jobs]
    assert [record.info.rescues for record in records if record is not None] == [1] * 200
    assert (len(reports), sum(report.done for report in reports)) == (2, 200)


async def test_a_restart_seen_by_one_engine_also_holds_the_next(scene: Scene) -> None:
    scene.status.fill(1)

    def stuck() -> Scheduled:  # each process has guards of its own
        return _bottles(scene, *backend_guards(scene.memory, scene.clock, HEARTBEAT_TIMEOUT))

    await take_turn(stuck(), _engine(scene, "first"))
    scene.memory.restart()
    scene.status.fill(1)
    stops = []
    for owner in ("second", "third", "fourth", "fifth"):
        scene.pass_time(INTERVAL)
        found = await take_turn(stuck(), _engine(scene, owner))
        assert isinstance(found, Ran)
        stops.append((found.report.stopped_by, found.state.paused is not None))
    assert stops == [("backend_restarted", True)] * 3 + [(None, False)]


async def test_an_engine_whose_clock_is_off_does_not_delay_a_healthy_one(scene: Scene) -> None:
    scene.status.fill(1)
    off = ManualClock(scene.clock.now() + timedelta(minutes=1))
    held = await take_turn(_bottles(scene, *backend_guards(scene.memory, off)), _engine(scene, "off"))
    found = await take_turn(_bottles(scene, *backend_guards(scene.memory, scene.clock)), _engine(scene, "healthy"))
    assert isinstance(held, Ran)
    assert (held.report.stopped_by, held.saved) == ("clock", True)
    assert isinstance(found, Ran)
    assert found.report.done == 1


@pytest.mark.parametrize("guard", ["stopping", "traffic"])
async def test_a_turn_that_this_process_could_not_use_is_left_to_the_next(scene: Scene, guard: str) -> None:
    class Holds(Guard):
        name = guard

        async def pause_reason(self) -> str | None:
            return "not here, not now"

    scene.status.fill(1)
    held = await take_turn(_bottles(scene, Holds()), _engine(scene, "here"))
    found = await take_turn(_bottles(scene), _engine(scene, "elsewhere"))
    assert isinstance(held, Ran)
    assert (held.report.stopped_by, held.state.ran_at) == (guard, None)
    assert isinstance(found, Ran)


async def test_a_run_that_its_guard_stopped_on_the_way_counts_as_one(scene: Scene) -> None:
    scene.status.fill(30)
    activity = Activity(scene.clock)
    scene.status.before_apply = activity.note
    found = await take_turn(_bottles(scene, Traffic(activity, HEARTBEAT_TIMEOUT, scene.clock)), _engine(scene, "busy"))
    after = await take_turn(_bottles(scene), _engine(scene, "idle"))
    assert isinstance(found, Ran)
    assert (found.report.stopped_by, found.report.done) == ("traffic", 10)
    assert isinstance(after, Fresh)


async def test_a_hold_says_since_when_across_processes(scene: Scene) -> None:
    def stuck() -> Scheduled:
        return _bottles(scene, *backend_guards(scene.memory, scene.clock, HEARTBEAT_TIMEOUT))

    await take_turn(stuck(), _engine(scene, "first"))
    scene.memory.restart()
    scene.pass_time(INTERVAL)
    since = scene.clock.now()
    for owner in ("second", "third"):
        found = await take_turn(stuck(), _engine(scene, owner))
        scene.pass_time(INTERVAL)
    assert isinstance(found, Ran)
    assert found.state.paused is not None
    assert (found.state.paused.guard, found.state.paused.since) == ("backend_restarted", since)


async def test_a_run_whose_state_could_not_be_written_still_counts(scene: Scene) -> None:
    scene.status.fill(3)
    network = Network(Script({}))
    healthy = _engine(scene)
    shared = replace(healthy, home=replace(healthy.home, state=FaultyRecords(healthy.home.state, network)))

    def cut() -> None:
        network.down = True

    scene.status.before_apply = cut
    found = await take_turn(_bottles(scene), shared)
    assert isinstance(found, Ran)
    assert (found.report.done, found.saved) == (3, False)


async def test_a_dry_run_needs_no_lease_and_leaves_no_trace(scene: Scene) -> None:
    scene.status.fill(3)
    shared = _engine(scene)
    await shared.home.lease_manager.acquire("sweep/old_bottles", "other", TTL)
    report = await dry_run(_bottles(scene), shared)
    assert [line.suspect for line in report.plan] == ["b00000", "b00001", "b00002"]
    assert list(await shared.home.state.page("", None, 10)) == []


async def test_a_dry_run_starts_where_the_next_run_would(scene: Scene) -> None:
    scene.status.fill(25).unbreakable.update(f"b{number:05}" for number in range(10))
    scheduled = _bottles(scene, budget=RunBudget(actions_max=10))
    await take_turn(scheduled, _engine(scene))
    report = await dry_run(scheduled, _engine(scene))
    assert report.plan[0].suspect == "b00010"


@pytest.mark.parametrize("name", ["", "old_bottles@cellar"])
async def test_instances_of_one_sweep_have_lease_state_and_journal_of_their_own(scene: Scene, name: str) -> None:
    scene.status.fill(1)
    scheduled = Scheduled(OldBottles(scene.status), INTERVAL, name=name)
    await take_turn(scheduled, _engine(scene))
    instance = name or "old_bottles"
    assert [line.intent.sweep for line in await scene.lines()] == [instance]
    assert (await load(scene.memory.records(ENGINE_STATE), instance)).version is not None
    assert scheduled.lease_key == f"sweep/{instance}"


async def test_engines_that_sweep_different_stores_do_not_wait_for_each_other(scene: Scene) -> None:
    found: list[object] = []
    here, there = Memory(scene.clock), Memory(scene.clock)
    for own, owner in ((here, "one"), (there, "two"), (there, "one")):
        home = SweepBackend(LeaseManager(own.records(ENGINE_LEASES), scene.clock), own.records(ENGINE_STATE))
        found.append(await take_turn(replace(_bottles(scene), home=home), _engine(scene, owner)))
    assert [type(each) for each in found] == [Ran, Ran, Fresh]
