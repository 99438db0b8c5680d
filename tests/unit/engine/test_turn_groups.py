"""Sweeps of one group: one lease, one budget, one set of guards; each with a cursor and reports of its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from wrasse.engine.guard import Activity, Traffic
from wrasse.engine.loop import ENGINE_LEASES, Engine
from wrasse.engine.run import RunBudget, RunContext
from wrasse.engine.turn import ENGINE_STATE, Elsewhere, Fresh, Scheduled, Shared, SweepBackend, load, take_turns
from wrasse.ids import Ids
from wrasse.leases.manager import LeaseManager
from wrasse.ports.guard import Guard

from .scene import SECOND, OldBottles, Scene, Shelf

INTERVAL = timedelta(seconds=10)
TTL = timedelta(seconds=20)


def idle(status: Shelf, name: str, *guards: Guard, budget: RunBudget | None = None) -> Scheduled:
    sweep = OldBottles(status, batch_max=1)
    return Scheduled(sweep, INTERVAL, budget=budget or RunBudget(), guards=guards, name=name, group="idle")


def two(scene: Scene, *guards: Guard, budget: RunBudget | None = None) -> tuple[Scheduled, Scheduled]:
    there = Shelf(scene.clock).fill(6)
    return idle(scene.status.fill(6), "here", *guards, budget=budget), idle(there, "there", *guards, budget=budget)


def shared(scene: Scene, owner: str = "me") -> Shared:
    lease_manager = LeaseManager(scene.memory.records(ENGINE_LEASES), scene.clock)
    return Shared(SweepBackend(lease_manager, scene.memory.records(ENGINE_STATE)), scene.frame, owner, TTL)


async def test_a_group_shares_its_budget_and_each_goes_on_where_it_stopped(scene: Scene) -> None:
    group = two(scene, budget=RunBudget(actions_max=6))
    done = []
    for _ in range(2):
        found = await take_turns(group, shared(scene))
        assert isinstance(found, tuple)
        done.append([ran.report.done for ran in found])
        scene.pass_time(INTERVAL)
    assert done == [[3, 3], [3, 3]]


async def test_a_group_runs_in_one_place(scene: Scene) -> None:
    await LeaseManager(scene.memory.records(ENGINE_LEASES), scene.clock).acquire("sweep/idle", "other", TTL)
    assert isinstance(await take_turns(two(scene), shared(scene)), Elsewhere)


async def test_a_group_that_ran_elsewhere_is_fresh(scene: Scene) -> None:
    group = two(scene)
    await take_turns(group, shared(scene, "other"))
    scene.pass_time(INTERVAL - SECOND)
    assert isinstance(await take_turns(group, shared(scene)), Fresh)


async def test_a_group_runs_when_one_of_it_never_did(scene: Scene) -> None:
    group = two(scene)
    await take_turns(group[:1], shared(scene))
    assert isinstance(await take_turns(group, shared(scene)), tuple)


async def test_traffic_stops_every_sweep_of_the_group_within_one_entry(scene: Scene) -> None:
    activity = Activity(scene.clock)
    group = two(scene, Traffic(activity, timedelta(minutes=5), scene.clock))
    scene.status.before_apply = activity.note
    found = await take_turns(group, shared(scene))
    assert isinstance(found, tuple)
    assert [(ran.report.done, ran.report.stopped_by) for ran in found] == [(1, "traffic"), (0, "traffic")]


async def test_the_engine_runs_a_group_together_and_tells_about_each(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wrasse.engine.turn.STAGGER_MAX", 0.0)
    group = two(scene)
    engine = Engine(
        group,
        home=SweepBackend(
            LeaseManager(scene.memory.records(ENGINE_LEASES), scene.clock), scene.memory.records(ENGINE_STATE)
        ),
        context=RunContext(scene.memory.journal, scene.clock, Ids(scene.clock)),
        owner="me",
    )
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.run())
        while not all(status.totals.runs for status in engine.status()):  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.002)
        engine.stop()
    assert [(status.name, status.totals.done) for status in engine.status()] == [("here", 6), ("there", 6)]


async def test_one_sweep_of_a_group_can_be_run_alone(scene: Scene) -> None:
    group = two(scene)
    engine = Engine(
        group,
        home=SweepBackend(
            LeaseManager(scene.memory.records(ENGINE_LEASES), scene.clock), scene.memory.records(ENGINE_STATE)
        ),
        context=RunContext(scene.memory.journal, scene.clock, Ids(scene.clock)),
        owner="me",
    )
    report = await engine.sweep_now("here")
    untouched = await load(scene.memory.records(ENGINE_STATE), "there")
    assert (report.done, untouched.state.ran_at) == (6, None)
