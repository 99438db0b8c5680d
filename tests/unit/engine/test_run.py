"""One run: what it promises whatever the sweep."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from faults import CRASH, LOST_REPLY, LOST_REQUEST, Crashed, FaultyJournal, Network, Script
from wrasse.engine.guard import Activity, Traffic
from wrasse.engine.record_journal import JOURNAL, RecordJournal
from wrasse.engine.run import Member, RunBudget, RunContext, run_group, run_once
from wrasse.errors import StoreUnavailable
from wrasse.ports.guard import Guard
from wrasse.ports.journal import Line
from wrasse.ports.outcome import Outcome

from .scene import OldBottles, OldBottlesByTheCrate, Scene, Shelf


def _broken(journal_faults: dict[int, object], scene: Scene) -> RunContext:
    network = Network(Script(journal_faults))  # type: ignore[arg-type]
    return replace(scene.frame, journal=FaultyJournal(scene.memory.journal, network))


async def test_a_run_takes_what_is_old_and_keeps_what_is_young(scene: Scene) -> None:
    scene.status.fill(3).fill(2, age=timedelta(minutes=5))
    report = await run_once(OldBottles(scene.status), scene.frame)
    assert (report.seen, report.done, dict(report.kept)) == (5, 3, {"young": 2})
    assert sorted(scene.status.bottles) == ["b00003", "b00004"]


async def test_a_run_to_the_end_of_the_listing_starts_over_the_next_time(scene: Scene) -> None:
    scene.status.fill(25)
    report = await run_once(OldBottles(scene.status), scene.frame)
    assert (report.cursor, report.stopped_by) == (None, None)


async def test_a_name_that_is_no_text_is_written_out_in_the_journal(scene: Scene) -> None:
    scene.status.fill(1)
    scene.status.bottles["a\udcff"] = replace(scene.status.bottles.pop("b00000"), name="a\udcff")
    report = await run_once(OldBottles(scene.status), scene.frame)
    (line,) = await scene.lines(run=report.run)
    assert (line.intent.suspect, line.outcome) == ("a\\udcff", Outcome.DONE)


async def test_names_of_any_length_fit_into_the_journal(scene: Scene) -> None:
    scene.status.fill(2)
    long = "n" * 5_000_000
    scene.status.bottles[long] = replace(scene.status.bottles.pop("b00000"), name=long)
    frame = replace(scene.frame, journal=RecordJournal(scene.memory.records(JOURNAL), scene.clock))
    report = await run_once(OldBottles(scene.status, reason=long), frame)
    assert (report.done, report.stopped_by) == (2, None)


async def test_every_action_has_a_journal_line_with_its_reason_and_outcome(scene: Scene) -> None:
    scene.status.fill(2)
    report = await run_once(OldBottles(scene.status), scene.frame)
    lines = await scene.lines(run=report.run)
    assert [(x.intent.verb, x.intent.suspect, x.intent.reason, x.outcome) for x in lines] == [
        ("take", "b00000", "old", Outcome.DONE),
        ("take", "b00001", "old", Outcome.DONE),
    ]


async def test_a_sweep_of_many_small_things_has_one_line_per_batch(scene: Scene) -> None:
    scene.status.fill(25)
    await run_once(OldBottlesByTheCrate(scene.status), scene.frame)
    lines = await scene.lines()
    assert [(line.intent.suspect, line.intent.count, line.detail) for line in lines] == [
        ("b00000", 10, "10 done"),
        ("b00010", 10, "10 done"),
        ("b00020", 5, "5 done"),
    ]


async def test_a_line_that_stands_for_many_tells_the_worst_that_happened_to_any(scene: Scene) -> None:
    scene.status.fill(5).unbreakable.add("b00002")
    scene.status.before_apply = lambda: scene.status.touch("b00004")
    await run_once(OldBottlesByTheCrate(scene.status), scene.frame)
    assert [(line.outcome, line.detail) for line in await scene.lines()] == [
        (Outcome.FAILED, "3 done, 1 conflict, 1 failed")
    ]


async def test_losing_the_race_changes_nothing_and_is_counted(scene: Scene) -> None:
    scene.status.fill(2)
    scene.status.before_apply = lambda: scene.status.touch("b00001")
    report = await run_once(OldBottles(scene.status), scene.frame)
    assert (report.done, report.conflict) == (1, 1)
    assert list(scene.status.bottles) == ["b00001"]


async def test_a_suspect_nobody_can_decide_about_does_not_stop_the_rest(scene: Scene) -> None:
    scene.status.fill(3)
    scene.status.bottles["b00001"] = replace(scene.status.bottles["b00001"], cursed=True)
    report = await run_once(OldBottles(scene.status), scene.frame)
    assert (report.done, report.failed, report.cursor) == (2, 1, None)


async def test_a_batch_that_raises_is_taken_apart_and_only_the_culprit_fails(scene: Scene) -> None:
    scene.status.fill(5).unbreakable.add("b00002")
    report = await run_once(OldBottles(scene.status), scene.frame)
    assert (report.done, report.failed) == (4, 1)
    outcomes = {line.intent.suspect: line.outcome for line in await scene.lines()}
    assert outcomes["b00002"] is Outcome.FAILED


async def test_errors_in_a_report_name_their_kind_and_never_their_text(scene: Scene) -> None:
    scene.status.fill(2).unbreakable.add("b00000")
    scene.status.bottles["b00001"] = replace(scene.status.bottles["b00001"], cursed=True)
    report = await run_once(OldBottles(scene.status), scene.frame)
    assert len(report.errors) == 2
    assert all("ValueError at scene.py" in error and "payload" not in error for error in report.errors)


async def test_a_backend_that_stops_answering_ends_the_run_and_keeps_the_cursor(scene: Scene) -> None:
    scene.status.fill(25)

    def fail_at_the_second_batch() -> None:
        if scene.status.batches:
            raise StoreUnavailable("the shelf did not answer")

    scene.status.before_apply = fail_at_the_second_batch
    report = await run_once(OldBottles(scene.status), scene.frame)
    assert (report.stopped_by, report.why) == ("backend_down", "the shelf did not answer")
    assert (report.done, report.unknown, report.cursor) == (10, 10, "b00009")
    assert len(await scene.lines(open=True)) == 10


async def test_a_listing_that_fails_ends_the_run_and_says_so(scene: Scene) -> None:
    scene.status.fill(1)

    def fall() -> None:
        raise OSError("the shelf fell down")

    scene.status.before_find = fall
    report = await run_once(OldBottles(scene.status), scene.frame)
    assert (report.stopped_by, report.failed, report.good) == ("error", 1, False)


async def test_nothing_is_done_that_could_not_be_journalled_first(scene: Scene) -> None:
    scene.status.fill(1)
    frame = _broken({1: LOST_REQUEST}, scene)  # the first call reads what is open
    report = await run_once(OldBottles(scene.status), frame)
    assert (report.stopped_by, scene.status.batches) == ("backend_down", [])


async def test_after_a_crash_between_intent_and_change_the_next_run_says_unknown_and_does_the_work(
    scene: Scene,
) -> None:
    scene.status.fill(1)

    def die() -> None:
        raise Crashed("apply")

    scene.status.before_apply = die
    with pytest.raises(Crashed):
        await run_once(OldBottles(scene.status), scene.frame)
    scene.status.before_apply = lambda: None
    scene.pass_time(scene.frame.open_after)
    report = await run_once(OldBottles(scene.status), scene.frame)
    assert report.done == 1
    assert [line.outcome for line in await scene.lines()] == [Outcome.UNKNOWN, Outcome.DONE]


class _Witness(OldBottles):
    """Can tell how an interrupted change ended: the bottle is there or it is not."""

    __slots__ = ()

    async def resolve(self, lines: tuple[Line, ...]) -> list[Outcome]:
        return [Outcome.CONFLICT if line.intent.suspect in self.status.bottles else Outcome.DONE for line in lines]


async def test_a_sweep_that_can_find_out_resolves_what_a_crash_left_open(scene: Scene) -> None:
    scene.status.fill(1)
    frame = _broken({2: CRASH}, scene)  # after the change, before its outcome is journalled
    with pytest.raises(Crashed):
        await run_once(_Witness(scene.status), frame)
    scene.pass_time(scene.frame.open_after)
    await run_once(_Witness(scene.status), scene.frame)
    assert [line.outcome for line in await scene.lines()] == [Outcome.DONE]


async def test_lines_of_a_run_that_may_still_be_alive_are_left_to_it(scene: Scene) -> None:
    scene.status.fill(1)
    with pytest.raises(Crashed):
        await run_once(OldBottles(scene.status), _broken({2: CRASH}, scene))
    scene.pass_time(scene.frame.open_after - timedelta(seconds=1))
    await run_once(OldBottles(scene.status), scene.frame)
    assert len(await scene.lines(open=True)) == 1


async def test_a_lost_reply_to_the_outcome_leaves_the_work_done_and_counted_once(scene: Scene) -> None:
    scene.status.fill(3)
    report = await run_once(OldBottles(scene.status), _broken({2: LOST_REPLY}, scene))
    assert (report.seen, report.done, report.unknown, report.stopped_by) == (3, 3, 0, "backend_down")
    assert scene.status.bottles == {}


async def test_a_dry_run_changes_nothing_at_all(scene: Scene) -> None:
    scene.status.fill(30)
    before = dict(scene.status.bottles)
    report = await run_once(OldBottles(scene.status), scene.frame, dry_run=True)
    assert (report.planned, report.done, report.dry_run) == (30, 0, True)
    assert (scene.status.bottles, scene.status.batches, await scene.lines()) == (before, [], ())


@given(
    ages=st.lists(st.integers(min_value=0, max_value=120), max_size=60),
    batch_max=st.integers(min_value=1, max_value=20),
    actions_max=st.integers(min_value=0, max_value=70),
    page_max=st.integers(min_value=1, max_value=40),
    start=st.one_of(st.none(), st.integers(min_value=0, max_value=60)),
)
def test_a_dry_run_plans_exactly_what_the_run_then_does(
    ages: list[int], batch_max: int, actions_max: int, page_max: int, start: int | None
) -> None:
    scene = Scene()
    for age in ages:
        scene.status.fill(1, age=timedelta(minutes=age))
    sweep = OldBottles(scene.status, batch_max=batch_max)
    frame = replace(scene.frame, page_max=page_max)
    cursor = None if start is None else f"b{start:05}"
    budget = RunBudget(actions_max=actions_max)

    async def both() -> None:
        plan = await run_once(sweep, frame, cursor=cursor, budget=budget, dry_run=True)
        done = await run_once(sweep, frame, cursor=cursor, budget=budget)
        assert [line.suspect for line in plan.plan] == [name for batch in scene.status.batches for name in batch]
        same = ("seen", "kept", "planned", "stopped_by", "cursor")
        assert [getattr(plan, x) for x in same] == [getattr(done, x) for x in same]

    asyncio.run(both())


@given(
    count=st.integers(min_value=0, max_value=80),
    batch_max=st.integers(min_value=1, max_value=30),
    actions_max=st.integers(min_value=0, max_value=100),
)
def test_a_run_never_takes_more_actions_than_its_budget(count: int, batch_max: int, actions_max: int) -> None:
    scene = Scene()
    scene.status.fill(count)
    sweep = OldBottles(scene.status, batch_max=batch_max)
    report = asyncio.run(run_once(sweep, scene.frame, budget=RunBudget(actions_max=actions_max)))
    assert report.done == min(count, actions_max)
    assert report.stopped_by == ("actions_max" if count > actions_max or actions_max == 0 else None)


async def test_a_run_out_of_time_ends_after_the_batch_under_way(scene: Scene) -> None:
    scene.status.fill(50)
    scene.status.before_apply = lambda: scene.pass_time(timedelta(seconds=4))
    budget = RunBudget(runtime_max=timedelta(seconds=10))
    report = await run_once(OldBottles(scene.status), scene.frame, budget=budget)
    assert (report.done, report.stopped_by) == (30, "runtime_max")


async def test_the_next_run_goes_on_exactly_where_the_last_one_stopped(scene: Scene) -> None:
    scene.status.fill(25)
    sweep, budget = OldBottles(scene.status), RunBudget(actions_max=12)
    first = await run_once(sweep, scene.frame, budget=budget)
    await run_once(sweep, scene.frame, budget=budget, cursor=first.cursor)
    taken = [name for batch in scene.status.batches for name in batch]
    assert taken == [f"b{number:05}" for number in range(24)]


async def test_a_page_full_of_suspects_to_keep_does_not_starve_the_one_behind_it(scene: Scene) -> None:
    scene.status.fill(1_000, age=timedelta(0)).fill(1)
    report = await run_once(OldBottles(scene.status), scene.frame, budget=RunBudget(actions_max=1))
    assert report.done == 1


async def test_traffic_stops_an_idle_sweep_within_one_batch(scene: Scene) -> None:
    scene.status.fill(50)
    activity = Activity(scene.clock)
    guard = Traffic(activity, timedelta(minutes=5), scene.clock)

    def traffic_during_the_second_batch() -> None:
        if len(scene.status.batches) == 1:
            activity.note()

    scene.status.before_apply = traffic_during_the_second_batch
    report = await run_once(OldBottles(scene.status), scene.frame, guards=[guard])
    assert (report.done, report.stopped_by, report.cursor) == (20, "traffic", "b00019")


async def test_a_guard_that_holds_from_the_start_lets_nothing_be_read(scene: Scene) -> None:
    scene.status.fill(1)
    activity = Activity(scene.clock)
    activity.note()
    guard = Traffic(activity, timedelta(minutes=5), scene.clock)
    report = await run_once(OldBottles(scene.status), scene.frame, guards=[guard], cursor="a")
    assert (report.stopped_by, report.cursor, scene.status.finds) == ("traffic", "a", [])


class _Confused(Guard):
    name = "confused"

    async def pause_reason(self) -> str | None:
        raise RuntimeError("no idea")


async def test_a_guard_that_cannot_tell_holds(scene: Scene) -> None:
    scene.status.fill(1)
    report = await run_once(OldBottles(scene.status), scene.frame, guards=[_Confused()])
    assert (report.stopped_by, scene.status.batches) == ("confused", [])


class _Preparing(OldBottles):
    """Takes for ever to prepare, and says when it was told to stop."""

    __slots__ = ()

    async def prepare(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.status.finds.append(-1)


class _HoldsTheSecondTime(Guard):
    name = "second_thoughts"

    def __init__(self) -> None:
        self.asked = 0

    async def pause_reason(self) -> str | None:
        self.asked += 1
        return "thought again" if self.asked > 1 else None


async def test_a_guard_ends_a_preparation_that_is_under_way(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wrasse.engine.run.GUARD_INTERVAL", 0.001)
    report = await run_once(_Preparing(scene.status), scene.frame, guards=[_HoldsTheSecondTime()])
    assert (report.stopped_by, scene.status.finds) == ("second_thoughts", [-1])


class _Slow(OldBottles):
    __slots__ = ()

    async def prepare(self) -> None:
        self.status.clock.advance(timedelta(hours=1))


async def test_the_time_a_sweep_takes_to_prepare_is_not_taken_from_its_run(scene: Scene) -> None:
    scene.status.fill(30)
    report = await run_once(_Slow(scene.status), scene.frame)
    assert (report.done, report.stopped_by) == (30, None)


class _Unprepared(OldBottles):
    __slots__ = ()

    async def prepare(self) -> None:
        raise StoreUnavailable("the catalog did not answer")


async def test_a_sweep_that_could_not_prepare_takes_nothing(scene: Scene) -> None:
    scene.status.fill(1)
    report = await run_once(_Unprepared(scene.status), scene.frame)
    assert (report.stopped_by, scene.status.finds) == ("backend_down", [])


class _Noting(OldBottles):
    """Notes something when it prepares, and can do without."""

    __slots__ = ()

    async def prepare(self) -> None:
        self.status.finds.append(-1)

    async def prepare_dry(self) -> None:
        self.status.finds.append(-2)


@pytest.mark.parametrize(("dry_run", "noted"), [(True, -2), (False, -1)])
async def test_what_a_sweep_would_note_is_not_noted_in_a_dry_run(scene: Scene, dry_run: bool, noted: int) -> None:
    await run_once(_Noting(scene.status), scene.frame, dry_run=dry_run)
    assert scene.status.finds[0] == noted


async def test_sweeps_of_a_group_take_turns_under_one_budget(scene: Scene) -> None:
    first, second = Shelf(scene.clock).fill(100), Shelf(scene.clock).fill(100)
    members = [Member(OldBottles(first), "first"), Member(OldBottles(second), "second")]
    reports = await run_group(members, scene.frame, budget=RunBudget(actions_max=60))
    assert [report.done for report in reports] == [30, 30]


async def test_a_group_keeps_its_budget_also_with_pages_that_were_read_before_it_was_spent(scene: Scene) -> None:
    first, second = Shelf(scene.clock).fill(100), Shelf(scene.clock).fill(100)
    members = [Member(OldBottles(first), "first"), Member(OldBottles(second), "second")]
    reports = await run_group(members, scene.frame, budget=RunBudget(actions_max=25))
    assert [(report.done, report.stopped_by) for report in reports] == [(15, "actions_max"), (10, "actions_max")]


async def test_a_run_reads_no_more_than_it_could_still_take(scene: Scene) -> None:
    scene.status.fill(50)
    await run_once(OldBottles(scene.status), scene.frame, budget=RunBudget(actions_max=12))
    assert scene.status.finds == [12]


async def test_a_broken_sweep_does_not_end_the_others_of_its_group(scene: Scene) -> None:
    good = Shelf(scene.clock).fill(30)
    members = [Member(_Unprepared(scene.status), "bad"), Member(OldBottles(good), "good")]
    bad_report, good_report = await run_group(members, scene.frame)
    assert (bad_report.stopped_by, good_report.done) == ("backend_down", 30)


async def test_a_run_pauses_between_batches(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.status.fill(30)
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("wrasse.engine.run.asyncio.sleep", note)
    await run_once(OldBottles(scene.status), scene.frame, budget=RunBudget(pause=timedelta(milliseconds=100)))
    assert pauses == [0.1, 0.1]
