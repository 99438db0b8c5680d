"""What a sweep remembers between runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.guard import BackendRestarted, MassDeath, SharedHealthChecks
from wrasse.engine.report import Report
from wrasse.engine.turn import ENGINE_STATE, REPORTS_KEPT, SweepState, after_run, load, recall, save
from wrasse.errors import StoreBroken
from wrasse.ports.guard import Guard

from .scene import Scene

T0 = datetime(2026, 1, 1, tzinfo=UTC)
QUIET = Report("r", "old_bottles", T0, T0)
HOUR = timedelta(hours=1)
GUARDS = frozenset({"clock", "mass_death"})


def _after(state: SweepState, *reports: Report) -> SweepState:
    for report in reports:
        state = after_run(state, report, report.started_at, GUARDS, {})
    return state


async def test_a_state_reads_back_as_it_was_written(scene: Scene) -> None:
    records = scene.memory.records(ENGINE_STATE)
    state = after_run(SweepState(), replace(QUIET, cursor="c", stopped_by="clock"), T0, GUARDS, {"clock": "m"})
    assert await save(records, "x", await load(records, "x"), state)
    assert (await load(records, "x")).state == state


async def test_a_sweep_goes_on_from_the_state_it_left_under_its_stored_name(scene: Scene) -> None:
    records = scene.memory.records(ENGINE_STATE)
    before = SweepState(cursor="c", reports=(replace(QUIET, sweep="orphan_archives@root"),))
    await records.create("orphan_archives@root", msgspec.json.encode(before))
    loaded = await load(records, "orphan_objects@root")
    assert loaded.state == SweepState(cursor="c", reports=(replace(QUIET, sweep="orphan_objects@root"),))
    assert await save(records, "orphan_objects@root", loaded, loaded.state)
    (record,) = await records.page("", None, 10)
    assert (record.key, record.value) == ("orphan_archives@root", msgspec.json.encode(before))


async def test_an_engine_that_was_overtaken_does_not_put_its_cursor_over_a_later_one(scene: Scene) -> None:
    records = scene.memory.records(ENGINE_STATE)
    await save(records, "x", await load(records, "x"), SweepState(cursor="a"))
    overtaken = await load(records, "x")
    assert await save(records, "x", await load(records, "x"), SweepState(cursor="c"))
    assert not await save(records, "x", overtaken, SweepState(cursor="b"))
    assert (await load(records, "x")).state.cursor == "c"


async def test_a_record_somebody_else_wrote_is_an_error_with_a_way_out(scene: Scene) -> None:
    records = scene.memory.records(ENGINE_STATE)
    await records.create("x", b"not ours")
    with pytest.raises(StoreBroken, match="state of the sweep x"):
        await load(records, "x")


def test_the_last_twenty_reports_are_kept() -> None:
    reports = [replace(QUIET, run=str(number), planned=1) for number in range(50)]
    assert _after(SweepState(), *reports).reports == tuple(reports[-REPORTS_KEPT:])


def test_quiet_reports_do_not_push_out_those_that_have_something_to_tell() -> None:
    busy = replace(QUIET, run="busy", planned=1)
    quiet = [replace(QUIET, run=str(number)) for number in range(50)]
    assert [report.run for report in _after(SweepState(), busy, *quiet).reports] == ["busy", "49"]


def test_a_hold_counts_from_the_first_run_it_stopped() -> None:
    held = [replace(QUIET, stopped_by="clock", ended_at=T0 + timedelta(minutes=n)) for n in range(3)]
    state = _after(SweepState(), *held)
    assert state.paused is not None
    assert (state.paused.guard, state.paused.since) == ("clock", T0)


def test_another_guard_begins_a_hold_of_its_own() -> None:
    later = T0 + timedelta(minutes=1)
    state = _after(
        SweepState(),
        replace(QUIET, stopped_by="clock"),
        replace(QUIET, stopped_by="mass_death", ended_at=later),
    )
    assert state.paused is not None
    assert (state.paused.guard, state.paused.since) == ("mass_death", later)


@pytest.mark.parametrize("stopped_by", [None, "actions_max"])
def test_a_run_that_no_guard_stopped_ends_the_hold(stopped_by: str | None) -> None:
    state = _after(SweepState(), replace(QUIET, stopped_by="clock"), replace(QUIET, stopped_by=stopped_by))
    assert state.paused is None


@pytest.mark.parametrize(
    "state",
    [
        SweepState(T0, cursor="c" * 300_000, reports=(replace(QUIET, cursor="c" * 300_000),) * 5),
        SweepState(T0, cursor="c" * 2_000_000),
    ],
)
async def test_a_state_with_names_of_any_length_is_kept_as_far_as_it_fits(scene: Scene, state: SweepState) -> None:
    records = scene.memory.records(ENGINE_STATE)
    assert await save(records, "x", await load(records, "x"), state)
    kept = (await load(records, "x")).state
    assert kept.ran_at == T0
    assert kept.cursor in (state.cursor, None)


@pytest.mark.parametrize(
    "guard", [MassDeath(Memory().jobs, HOUR), BackendRestarted(SharedHealthChecks(Memory(), ManualClock()), HOUR)]
)
@pytest.mark.parametrize("memory", ["", "x", '{"looked_at":"2026-01-01T00:00:00"}', '{"identity":1}', "[" * 5_000])
async def test_what_a_guard_remembered_is_forgotten_where_it_cannot_be_read(guard: Guard, memory: str) -> None:
    recall([guard], {guard.name: memory})
    assert await guard.pause_reason() is None
