"""Traffic, lost lease and mass death: when they hold, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.engine.guard import Activity, LeaseGuard, MassDeath, Traffic, Wave, mass_death
from wrasse.leases.core import leases_in
from wrasse.leases.lease_scope import RenewedLease
from wrasse.leases.manager import LeaseManager
from wrasse.ports.jobs import WorkerInfo, WorkerState

from .scene import HEARTBEAT_TIMEOUT, SECOND, Scene

T0 = datetime(2026, 1, 1, tzinfo=UTC)
GRACE = timedelta(minutes=5)


def _workers(alive: int, silent_for: Sequence[timedelta], at: datetime = T0) -> list[WorkerState]:
    untils = [at + HEARTBEAT_TIMEOUT] * alive + [at - gone for gone in silent_for]
    return [WorkerState(WorkerInfo(f"w{n}"), until - HEARTBEAT_TIMEOUT, until) for n, until in enumerate(untils)]


def _judge(workers: Sequence[WorkerState], at: datetime = T0, wave: Wave | None = None) -> str | None:
    return mass_death(workers, at, wave or Wave(), HEARTBEAT_TIMEOUT, 0.5, 5).reason


async def test_an_idle_sweep_may_start_only_after_its_grace_without_operations(scene: Scene) -> None:
    activity = Activity(scene.clock)
    guard = Traffic(activity, GRACE, scene.clock)
    activity.note()
    scene.pass_time(GRACE - SECOND)
    assert await guard.pause_reason() == "in use less than 5m ago"
    scene.pass_time(SECOND)
    assert await guard.pause_reason() is None


async def test_what_was_never_used_is_idle(scene: Scene) -> None:
    assert await Traffic(Activity(scene.clock), GRACE, scene.clock).pause_reason() is None


async def test_a_run_stops_when_the_term_of_its_lease_is_over(scene: Scene) -> None:
    lease_manager = LeaseManager(scene.memory.records(leases_in(".wrasse")), scene.clock)
    lease = await lease_manager.acquire("sweep/x", "me", HEARTBEAT_TIMEOUT)
    assert lease is not None
    guard = LeaseGuard(RenewedLease(lease_manager, lease, HEARTBEAT_TIMEOUT, scene.clock))
    scene.pass_time(HEARTBEAT_TIMEOUT - SECOND)
    assert await guard.pause_reason() is None
    scene.pass_time(SECOND)
    assert await guard.pause_reason() == "the lease sweep/x ended or changed hands"


def test_most_workers_falling_silent_at_once_hold_the_run() -> None:
    assert _judge(_workers(alive=4, silent_for=[SECOND] * 5)) == "5 of 9 workers lost their heartbeat within 30s"


def test_fewer_than_five_silent_workers_never_delay_recovery() -> None:
    assert _judge(_workers(alive=0, silent_for=[SECOND] * 4)) is None


def test_half_of_the_workers_falling_silent_is_not_more_than_half() -> None:
    assert _judge(_workers(alive=6, silent_for=[SECOND] * 6)) is None


def test_workers_that_die_one_after_the_other_are_no_mass_death() -> None:
    looked = Wave(looked_at=T0 - 20 * HEARTBEAT_TIMEOUT)
    assert _judge(_workers(alive=2, silent_for=[n * HEARTBEAT_TIMEOUT for n in range(10)]), wave=looked) is None


def test_a_mass_death_between_two_looks_far_apart_is_noticed() -> None:
    looked = Wave(looked_at=T0 - 10 * HEARTBEAT_TIMEOUT)
    assert _judge(_workers(alive=1, silent_for=[5 * HEARTBEAT_TIMEOUT] * 6), wave=looked) is not None


def test_deaths_that_an_earlier_look_let_pass_are_not_held_against_those_who_leave_later() -> None:
    looked = Wave(looked_at=T0 - SECOND)
    assert _judge(_workers(alive=1, silent_for=[timedelta(minutes=30)] * 6), wave=looked) is None


def test_workers_that_come_back_end_the_hold_at_once() -> None:
    held = mass_death(_workers(alive=1, silent_for=[SECOND] * 6), T0, Wave(), HEARTBEAT_TIMEOUT, 0.5, 5).wave
    later = T0 + 10 * SECOND
    assert _judge(_workers(alive=7, silent_for=[], at=later), at=later, wave=held) is None


@pytest.mark.parametrize("before", [Wave(), Wave(looked_at=T0 - 10 * SECOND)], ids=["first look", "looked before"])
def test_after_twice_the_silence_the_run_goes_on_and_says_so(before: Wave) -> None:
    gone = _workers(alive=0, silent_for=[SECOND] * 6)
    held = mass_death(gone, T0, before, HEARTBEAT_TIMEOUT, 0.5, 5).wave
    assert _judge(gone, T0 + 2 * HEARTBEAT_TIMEOUT - SECOND, held) is not None
    found = mass_death(gone, T0 + 2 * HEARTBEAT_TIMEOUT, held, HEARTBEAT_TIMEOUT, 0.5, 5)
    assert found.reason is None
    assert found.note == "6 of 6 workers lost their heartbeat and did not come back in 1m; they count as dead"
    assert _judge(gone, T0 + 2 * HEARTBEAT_TIMEOUT + SECOND, found.wave) is None


def test_a_second_wave_that_begins_while_it_holds_gets_a_hold_of_its_own() -> None:
    held = mass_death(_workers(alive=6, silent_for=[SECOND] * 8), T0, Wave(), HEARTBEAT_TIMEOUT, 0.5, 5).wave
    end = T0 + 2 * HEARTBEAT_TIMEOUT
    both = _workers(alive=0, silent_for=[2 * HEARTBEAT_TIMEOUT + SECOND] * 8 + [SECOND] * 6, at=end)
    second = mass_death(both, end, held, HEARTBEAT_TIMEOUT, 0.5, 5)
    assert second.reason == "6 of 6 workers lost their heartbeat within 30s"
    assert second.note == "8 of 8 workers lost their heartbeat and did not come back in 1m; they count as dead"
    assert _judge(both, end + 2 * HEARTBEAT_TIMEOUT - SECOND, second.wave) is not None
    third = mass_death(both, end + 2 * HEARTBEAT_TIMEOUT, second.wave, HEARTBEAT_TIMEOUT, 0.5, 5)
    assert (third.reason, "they count as dead" in third.note) == (None, True)
    assert _judge(both, end + 2 * HEARTBEAT_TIMEOUT + SECOND, third.wave) is None


def test_a_second_wave_is_held_for_though_the_first_came_back() -> None:
    held = mass_death(_workers(alive=1, silent_for=[SECOND] * 7), T0, Wave(), HEARTBEAT_TIMEOUT, 0.5, 5).wave
    later = T0 + 2 * HEARTBEAT_TIMEOUT - SECOND
    back = mass_death(_workers(alive=2, silent_for=[SECOND] * 6, at=later), later, held, HEARTBEAT_TIMEOUT, 0.5, 5)
    much_later = later + 2 * HEARTBEAT_TIMEOUT - SECOND
    still = _workers(alive=2, silent_for=[2 * HEARTBEAT_TIMEOUT] * 6, at=much_later)
    assert back.reason == "6 of 8 workers lost their heartbeat within 30s"
    assert _judge(still, much_later, back.wave) is not None


def test_those_who_fall_silent_with_the_first_wave_do_not_prolong_its_hold() -> None:
    held = mass_death(_workers(alive=8, silent_for=[SECOND] * 9), T0, Wave(), HEARTBEAT_TIMEOUT, 0.5, 5).wave
    end = T0 + 2 * HEARTBEAT_TIMEOUT
    gone = _workers(
        alive=0, silent_for=[2 * HEARTBEAT_TIMEOUT + SECOND] * 9 + [HEARTBEAT_TIMEOUT + 5 * SECOND] * 8, at=end
    )
    found = mass_death(gone, end, held, HEARTBEAT_TIMEOUT, 0.5, 5)
    assert (found.reason, found.note.startswith("17 of 17")) == (None, True)


def test_a_few_that_died_while_it_held_are_not_held_for() -> None:
    held = mass_death(_workers(alive=4, silent_for=[SECOND] * 6), T0, Wave(), HEARTBEAT_TIMEOUT, 0.5, 5).wave
    end = T0 + 2 * HEARTBEAT_TIMEOUT
    gone = _workers(alive=0, silent_for=[2 * HEARTBEAT_TIMEOUT + SECOND] * 6 + [SECOND] * 4, at=end)
    found = mass_death(gone, end, held, HEARTBEAT_TIMEOUT, 0.5, 5)
    assert (found.reason, _judge(gone, end + SECOND, found.wave)) == (None, None)


def test_a_second_wave_may_begin_before_the_first_hold_ends_and_swell_after_it() -> None:
    held = mass_death(_workers(alive=9, silent_for=[SECOND] * 10), T0, Wave(), HEARTBEAT_TIMEOUT, 0.5, 5).wave
    end = T0 + 2 * HEARTBEAT_TIMEOUT
    at_its_end = _workers(alive=5, silent_for=[2 * HEARTBEAT_TIMEOUT + SECOND] * 10 + [SECOND] * 4, at=end)
    found = mass_death(at_its_end, end, held, HEARTBEAT_TIMEOUT, 0.5, 5)
    later = end + 2 * SECOND
    swollen = _workers(
        alive=0, silent_for=[2 * HEARTBEAT_TIMEOUT + 3 * SECOND] * 10 + [3 * SECOND] * 4 + [SECOND] * 5, at=later
    )
    assert found.reason is None
    assert _judge(swollen, later, found.wave) == "9 of 9 workers lost their heartbeat within 30s"


def test_a_wave_that_is_found_late_is_held_for_just_as_long() -> None:
    late = _workers(alive=1, silent_for=[5 * HEARTBEAT_TIMEOUT] * 6)
    held = mass_death(late, T0, Wave(looked_at=T0 - 10 * HEARTBEAT_TIMEOUT), HEARTBEAT_TIMEOUT, 0.5, 5).wave
    assert _judge([*late, *_workers(2, [], T0 + HEARTBEAT_TIMEOUT)], T0 + HEARTBEAT_TIMEOUT, held) is not None


@given(
    alive=st.integers(0, 20),
    gone=st.lists(st.integers(0, 3600), max_size=30),
    looks=st.lists(st.integers(1, 120), min_size=1, max_size=60),
)
def test_one_mass_death_never_holds_for_longer_than_twice_the_silence(
    alive: int, gone: list[int], looks: list[int]
) -> None:
    workers = _workers(0, [timedelta(seconds=g) for g in gone])
    wave, at, held_since = Wave(), T0, None
    for pause in looks:
        living = _workers(alive, [], at)
        found = mass_death([*living, *workers], at, wave, HEARTBEAT_TIMEOUT, 0.5, 5)
        held_since = None if found.reason is None else held_since or at
        assert held_since is None or at - held_since < 2 * HEARTBEAT_TIMEOUT
        wave, at = found.wave, at + timedelta(seconds=pause)


@given(alive=st.integers(0, 20), gone=st.lists(st.integers(1, 3600), max_size=20))
def test_a_fleet_of_which_half_is_alive_is_never_held(alive: int, gone: list[int]) -> None:
    if alive >= len(gone):
        assert _judge(_workers(alive, [timedelta(seconds=g) for g in gone])) is None


async def test_the_guard_counts_the_workers_of_the_queue(scene: Scene) -> None:
    for number in range(6):
        await scene.jobs.heartbeat(WorkerInfo(f"w{number}"), [], heartbeat_timeout=HEARTBEAT_TIMEOUT)
    guard = MassDeath(scene.jobs, HEARTBEAT_TIMEOUT)
    assert await guard.pause_reason() is None
    scene.pass_time(HEARTBEAT_TIMEOUT + SECOND)
    assert await guard.pause_reason() == "6 of 6 workers lost their heartbeat within 30s"


async def test_a_hold_for_a_mass_death_goes_on_in_another_process(scene: Scene) -> None:
    for number in range(6):
        await scene.jobs.heartbeat(WorkerInfo(f"w{number}"), [], heartbeat_timeout=HEARTBEAT_TIMEOUT)
    scene.pass_time(HEARTBEAT_TIMEOUT + SECOND)
    here, elsewhere = MassDeath(scene.jobs, HEARTBEAT_TIMEOUT), MassDeath(scene.jobs, HEARTBEAT_TIMEOUT)
    await here.pause_reason()
    scene.pass_time(2 * HEARTBEAT_TIMEOUT)
    elsewhere.recall(here.memory())
    assert await elsewhere.pause_reason() is None
    assert "they count as dead" in elsewhere.note()
