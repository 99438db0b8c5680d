"""The guards about the backend: down, restarted or evicting, and clocks that disagree."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from faults import Fault, FaultyHeart, Network, Script
from wrasse.clock import ManualClock
from wrasse.engine.guard import (
    BackendDown,
    BackendRestarted,
    ClockSample,
    ClockSkew,
    KnownBackend,
    SharedHealthChecks,
    after_clock_sample,
    after_sample,
    backend_guards,
)
from wrasse.engine.run import first_pause
from wrasse.ports.guard import HealthSample

from .scene import HEARTBEAT_TIMEOUT, SECOND, Scene

T0 = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_backend_that_does_not_answer_holds_the_run(scene: Scene) -> None:
    network = Network(Script({}))
    guard = BackendDown(
        SharedHealthChecks(FaultyHeart(scene.memory, network), scene.clock), scene.clock, HEARTBEAT_TIMEOUT
    )
    network.down = True
    assert await guard.pause_reason() == "pulse did not arrive"


@pytest.mark.parametrize(("outage", "holds"), [(timedelta(seconds=9), False), (timedelta(seconds=10), True)])
async def test_an_outage_long_enough_to_miss_a_beat_holds_for_one_silence_more(
    scene: Scene, outage: timedelta, holds: bool
) -> None:
    network = Network(Script({}))
    guard = BackendDown(
        SharedHealthChecks(FaultyHeart(scene.memory, network), scene.clock), scene.clock, HEARTBEAT_TIMEOUT
    )
    network.down = True
    await guard.pause_reason()
    scene.pass_time(outage)
    network.down = False
    assert (await guard.pause_reason() is not None) is holds
    scene.pass_time(HEARTBEAT_TIMEOUT - SECOND)
    assert (await guard.pause_reason() is not None) is holds
    scene.pass_time(SECOND)
    assert await guard.pause_reason() is None


async def test_a_backend_that_takes_too_long_counts_as_down(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wrasse.engine.guard.HEALTH_CHECK_MAX", 0.001)
    slow = FaultyHeart(scene.memory, Network(Script({0: Fault(slow_request=60)})))
    stop = await first_pause(backend_guards(slow, scene.clock, HEARTBEAT_TIMEOUT))
    assert stop is not None
    assert stop.by == "backend_down"


async def test_a_restart_holds_one_silence_from_the_first_good_answer(scene: Scene) -> None:
    guard = BackendRestarted(SharedHealthChecks(scene.memory, scene.clock), HEARTBEAT_TIMEOUT)
    assert await guard.pause_reason() is None
    scene.memory.restart()
    assert await guard.pause_reason() == "the backend restarted or another took over, less than 30s ago"
    scene.pass_time(HEARTBEAT_TIMEOUT - SECOND)
    assert await guard.pause_reason() is not None
    scene.pass_time(SECOND)
    assert await guard.pause_reason() is None


@dataclass
class Evicting:
    """A backend that dropped keys to make room."""

    clock: ManualClock
    evicted: int = 0

    async def health_sample(self) -> HealthSample:
        return HealthSample("server", self.clock.now(), self.evicted)


async def test_an_eviction_holds_one_silence(scene: Scene) -> None:
    heart = Evicting(scene.clock)
    guard = BackendRestarted(SharedHealthChecks(heart, scene.clock), HEARTBEAT_TIMEOUT)
    await guard.pause_reason()
    heart.evicted += 1
    assert await guard.pause_reason() == "the backend evicted keys to make room, less than 30s ago"
    scene.pass_time(HEARTBEAT_TIMEOUT)
    assert await guard.pause_reason() is None


async def test_a_restart_that_happened_while_no_engine_ran_is_noticed(scene: Scene) -> None:
    before = BackendRestarted(SharedHealthChecks(scene.memory, scene.clock), HEARTBEAT_TIMEOUT)
    await before.pause_reason()
    scene.memory.restart()
    after = BackendRestarted(SharedHealthChecks(scene.memory, scene.clock), HEARTBEAT_TIMEOUT)
    after.recall(before.memory())
    assert await after.pause_reason() is not None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(-60, 60)), max_size=30))
def test_the_same_backend_without_evictions_is_held_for_one_silence_at_most(
    answers: list[tuple[str, int, int]],
) -> None:
    known: KnownBackend | None = None
    at = T0
    for identity, evicted, passed in answers:
        at += timedelta(seconds=passed)
        known, _ = after_sample(known, HealthSample(identity, at, evicted), HEARTBEAT_TIMEOUT)
    if known is not None:
        calm = HealthSample(known.identity, at + HEARTBEAT_TIMEOUT, known.evicted)
        assert after_sample(known, calm, HEARTBEAT_TIMEOUT)[1] is None


async def test_three_guards_cost_one_question_a_look(scene: Scene) -> None:
    script = Script({})
    guards = backend_guards(FaultyHeart(scene.memory, Network(script)), scene.clock, HEARTBEAT_TIMEOUT)
    for _ in range(4):
        assert await first_pause(guards) is None
    assert script.calls == ["pulse"] * 4


class _Skewed:
    """A backend whose clock is off."""

    def __init__(self, clock: ManualClock, by: timedelta) -> None:
        self.clock, self.by = clock, by

    async def health_sample(self) -> HealthSample:
        return HealthSample("x", self.clock.now() - self.by)


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (timedelta(seconds=5), None),
        (timedelta(hours=25), "this host's clock is 1d1h ahead of the backend's"),
        (timedelta(seconds=-6), "this host's clock is 6s behind the backend's"),
    ],
)
async def test_a_clock_too_far_from_the_backends_holds(scene: Scene, by: timedelta, said: str | None) -> None:
    guard = ClockSkew(SharedHealthChecks(_Skewed(scene.clock, by), scene.clock), scene.clock, HEARTBEAT_TIMEOUT)
    assert await guard.pause_reason() == said
    assert guard.skew == by


@pytest.mark.parametrize("step", [timedelta(hours=8), timedelta(minutes=-1)])
async def test_a_laptop_that_wakes_up_holds_one_silence(scene: Scene, step: timedelta) -> None:
    guard = ClockSkew(SharedHealthChecks(scene.memory, scene.clock), scene.clock, HEARTBEAT_TIMEOUT)
    await guard.pause_reason()
    scene.pass_time(10 * SECOND)
    scene.clock.step(step)
    assert await guard.pause_reason() == "this host's clock jumped, less than 30s ago"
    scene.pass_time(HEARTBEAT_TIMEOUT - SECOND)
    assert await guard.pause_reason() is not None
    scene.pass_time(SECOND)
    assert await guard.pause_reason() is None


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(-100, 100)), max_size=30))
def test_clocks_that_agree_again_are_held_for_one_silence_at_most(looks: list[tuple[int, int]]) -> None:
    looked: ClockSample | None = None
    now, monotonic = T0, 0.0
    for passed, stepped in looks:
        now, monotonic = now + timedelta(seconds=passed + stepped), monotonic + passed
        looked, _ = after_clock_sample(looked, now, monotonic, HEARTBEAT_TIMEOUT, timedelta(seconds=5))
    calm = monotonic + HEARTBEAT_TIMEOUT.total_seconds()
    assert after_clock_sample(looked, now + HEARTBEAT_TIMEOUT, calm, HEARTBEAT_TIMEOUT, timedelta(seconds=5))[1] is None


async def test_a_sweep_without_silence_is_not_held_after_a_restart(scene: Scene) -> None:
    guards = backend_guards(scene.memory, scene.clock)
    await first_pause(guards)
    scene.memory.restart()
    scene.clock.step(timedelta(hours=1))
    assert await first_pause(guards) is None
