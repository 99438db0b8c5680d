"""Reports: read back as written, bounded, and told when there is something to tell."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given, strategies as st
from msgspec.structs import replace

from wrasse.engine.report import (
    ERRORS_MAX,
    REASONS_MAX,
    Planned,
    Report,
    RunTally,
    Totals,
    describe,
    worth_telling,
)
from wrasse.errors import StoreUnavailable

T0 = datetime(2026, 1, 1, tzinfo=UTC)
QUIET = Report("r1", "stuck_jobs", T0, T0 + timedelta(seconds=1))
COUNTS = st.integers(min_value=0, max_value=1 << 40)


@given(
    kept=st.dictionaries(st.text(max_size=10), COUNTS, max_size=3),
    done=COUNTS,
    took=st.timedeltas(min_value=timedelta(0)),
    cursor=st.none() | st.text(),
    stopped_by=st.none() | st.text(),
    plan=st.lists(st.builds(Planned, st.text(), st.text(), st.text()), max_size=3),
)
def test_a_report_reads_back_as_it_was_written(
    kept: dict[str, int],
    done: int,
    took: timedelta,
    cursor: str | None,
    stopped_by: str | None,
    plan: list[Planned],
) -> None:
    report = replace(
        QUIET, kept=kept, done=done, took=took, cursor=cursor, stopped_by=stopped_by, plan=tuple(plan), errors=("x",)
    )
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_a_report_that_did_something_is_told() -> None:
    assert worth_telling(replace(QUIET, done=1), QUIET)


def test_the_first_report_is_told() -> None:
    assert worth_telling(QUIET, None)


def test_quiet_reports_are_told_every_ten_minutes() -> None:
    later = replace(QUIET, ended_at=QUIET.ended_at + timedelta(minutes=10))
    sooner = replace(QUIET, ended_at=QUIET.ended_at + timedelta(minutes=9))
    assert (worth_telling(sooner, QUIET), worth_telling(later, QUIET)) == (False, True)


def test_a_guard_that_begins_or_ends_to_hold_is_told_once() -> None:
    held = replace(QUIET, stopped_by="mass_death")
    told = [worth_telling(held, QUIET), worth_telling(held, held), worth_telling(QUIET, held)]
    assert told == [True, False, True]


def test_an_error_that_repeats_is_told_once() -> None:
    failing = replace(QUIET, failed=1, errors=("decide: KeyError",))
    assert [worth_telling(failing, QUIET), worth_telling(failing, failing)] == [True, False]


def test_totals_add_up_what_runs_did_and_when_the_last_good_one_ended() -> None:
    totals = Totals()
    totals.add(replace(QUIET, seen=3, kept={"young": 2}, done=1, took=timedelta(seconds=2)))
    totals.add(replace(QUIET, stopped_by="backend_down", ended_at=T0 + timedelta(hours=1)))
    stopped = {"backend_down": 1}
    assert totals == Totals(2, seen=3, kept=2, done=1, seconds=2.0, last_good_at=QUIET.ended_at, stopped=stopped)


def test_a_sweep_with_endless_reasons_fills_neither_report_nor_memory() -> None:
    tally = RunTally()
    for number in range(1_000):
        tally.keep(f"reason {number}")
        tally.fault("decide", StoreUnavailable(f"fault {number}"))
    assert len(tally.kept) == REASONS_MAX + 1
    assert tally.kept["other"] == 1_000 - REASONS_MAX
    assert len(tally.errors) == ERRORS_MAX


def test_a_foreign_error_is_described_by_kind_and_place_only() -> None:
    try:
        {}["secret payload"]
    except KeyError as error:
        text = describe(error)
    assert text.startswith("KeyError at test_report.py:")
