"""Roots: what may not be configured, what the preset gives, and what may be believed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from orphan_field import HOUR, SEED
from wrasse.backends.memory.catalog import MemoryCatalog
from wrasse.clock import ManualClock
from wrasse.config.orphans import OrphanRoot, OrphanSeed, queries_of, root_of
from wrasse.errors import ConfigError, StoreBroken
from wrasse.orphans.root import Caps, Graces, PinnedCatalog, WriterTime, read_pins
from wrasse.orphans.scan import Approval, after, beyond, implausible, read_approval, write_approval
from wrasse.ports.catalog import Reference
from wrasse.ports.sightings import CompleteScan

PRESET = OrphanRoot(preset="workspaces", database="sqlite:app.db")
AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_preset_is_the_design_document() -> None:
    root = root_of("archives", PRESET, OrphanSeed())
    assert root.graces == Graces(2 * HOUR, 2 * HOUR, timedelta(days=30))
    assert (root.age_min, root.keep_newest, root.quarantine) == (2 * HOUR, 0, timedelta(days=7))
    assert (root.prefix, root.template.text) == ("archives/", "archives/{id}/{op_id}/{file}")


def test_its_two_variables_are_seconds() -> None:
    assert root_of("archives", PRESET, OrphanSeed(orphan_delay=14_400)).graces.superseded == 4 * HOUR


def test_queries_of_ones_own_have_the_long_graces() -> None:
    own = OrphanRoot(template="up/{id}/{file}", unit="object", database="sqlite:app.db", queries=("refs",))
    root = root_of("up", own, OrphanSeed(orphan_delay=7_200))
    assert root.graces == Graces(timedelta(hours=24), timedelta(days=30), timedelta(days=30))
    assert (root.age_min, root.keep_newest) == (timedelta(hours=24), 1)


def test_a_delay_shorter_than_the_writer_may_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="shorter than a write may take: 4 x 30m"):
        root_of("archives", PRESET, OrphanSeed(orphan_delay=7_199))
    fast = replace(PRESET, writer_timeout=timedelta(minutes=10), writer_retries=1)
    assert root_of("archives", fast, OrphanSeed(orphan_delay=1_200)).writer == WriterTime(timedelta(minutes=10), 1)


@pytest.mark.parametrize(("own", "why"), [
    (replace(PRESET, database=""), "no database"),
    (replace(PRESET, queries=("refs",)), "a preset or queries"),
    (OrphanRoot(template="a/{b}/{c}", database="sqlite:x"), "a preset or queries"),
    (OrphanRoot(database="sqlite:x", queries=("refs",)), "no template"),
    (replace(PRESET, template=".trash/{id}/{op_id}/{file}"), "prefix"),
    (replace(PRESET, table="a; DROP TABLE b"), "not a valid table name"),
    (replace(PRESET, keep_newest=-1), "below zero"),
    (replace(PRESET, template="archives/{day}/{id}/{op_id}/{file}"), "does not fit the template"),
])  # fmt: skip
def test_a_root_that_cannot_be_right_is_refused_with_why(own: OrphanRoot, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        root_of("archives", own, OrphanSeed())


def test_a_name_that_no_metric_could_carry_is_refused() -> None:
    with pytest.raises(ConfigError, match="named"):
        root_of("My Root", PRESET, OrphanSeed())


def test_any_change_of_the_configuration_is_another_one() -> None:
    changes = [replace(PRESET, marker=".x"), replace(PRESET, table="others"), replace(PRESET, objects_max=5)]
    digests = {root_of("archives", own, OrphanSeed()).digest for own in (PRESET, *changes)}
    assert len(digests) == 4
    assert root_of("archives", PRESET, OrphanSeed()).digest in digests


def test_a_configuration_is_told_by_what_armed_roots_and_plans_have_stored_of_it() -> None:
    assert root_of("archives", PRESET, OrphanSeed()).digest == "87f61e0297a86188"


def test_another_store_is_another_configuration_also_where_the_root_names_none() -> None:
    here, there = (root_of("archives", PRESET, OrphanSeed(), f"s3://{name}") for name in ("here", "there"))
    assert here.digest != there.digest


def test_secrets_of_urls_stay_out_of_plans() -> None:
    own = replace(PRESET, database="postgresql://me:secret@db/app", store="s3://key:secret@bucket")
    assert "secret" not in repr(root_of("archives", own, OrphanSeed()))


def test_fixed_text_before_the_id_is_part_of_what_the_preset_refers_to() -> None:
    own = replace(PRESET, template="up/ws-{id}/{op_id}/{file}")
    assert "'up/ws-' || id || '/' || op_id || '/'" in queries_of(own)[1].sql
    assert root_of("archives", own, OrphanSeed()).prefix == "up/"


def test_mysql_joins_texts_in_its_own_way() -> None:
    assert "CONCAT('archives/', id, '/', op_id, '/')" in queries_of(replace(PRESET, database="mysql://db/app"))[1].sql


GOOD = {"listed": 2_000, "units": 1_000, "rows": 1_000, "rows_live": 1_000, "matched": 990, "protected": 990}


@pytest.mark.parametrize(("now", "why"), [
    ({"rows": 0}, "no reference at all"),
    ({"protected": 0}, "names any"),
    ({"listed": 0, "units": 0}, "the listing is empty"),
    ({"rows": 799}, "799 references, and there were 1000"),
    ({"matched": 900}, "90.0% of the references"),
    ({"turned_oddly": 51}, "51 of 990"),
])  # fmt: skip
def test_what_cannot_be_right_is_not_believed(now: dict[str, int], why: str) -> None:
    assert why in implausible({**GOOD, **now}, GOOD, Caps())


@pytest.mark.parametrize("now", [{}, {"rows": 800}, {"matched": 945}, {"turned_oddly": 50}, {"rows": 5_000}])
def test_what_may_be_right_is_believed(now: dict[str, int]) -> None:
    assert implausible({**GOOD, **now}, GOOD, Caps()) == ""


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_larger_plan_is_never_more_welcome(due: int, more: int) -> None:
    caps = Caps()
    held = beyond({"listed": 200_000, "due_objects": due}, 0, caps)
    assert not held or beyond({"listed": 200_000, "due_objects": due + more}, 0, caps)


def test_a_plan_is_held_beyond_any_of_its_caps() -> None:
    assert not beyond({"listed": 10, "due_objects": 1_000}, 1_000, Caps())
    assert "1001 of 10 objects" in beyond({"listed": 10, "due_objects": 1_001}, 0, Caps())
    assert not beyond({"listed": 200_000, "due_objects": 2_000}, 0, Caps())
    assert "bytes" in beyond({"listed": 10, "bytes": 1 << 40, "due_bytes": 1 << 39}, 0, Caps())
    assert "one group" in beyond({}, 1_001, Caps())


def test_leave_shrinks_with_the_plan_it_was_given_for_and_ends_with_it() -> None:
    leave = Approval("digest", "r1", "too many", 100, "r1", plan=True)
    made = CompleteScan("r", "r2", 2, AT, AT, 0, {"due_objects": 60})
    lifted = after(leave, made, "", lifted=True)
    assert (lifted.due, lifted.overruled) == (60, True)
    assert after(lifted, made, "", lifted=False) == Approval("digest")
    assert after(leave, made, "too many", lifted=False) == Approval("digest", "r2", "too many", 60, plan=True)


@pytest.mark.parametrize(("leave", "rows", "believed"), [
    (Approval("d", "r1", "why", 0, "r1", rows=700, protected=700), 700, True),
    (Approval("d", "r1", "why", 0, "r1", rows=700, protected=700), 600, False),
    (Approval("d", "r1", "why", 0, "r1", plan=True), 700, False),
    (Approval("d", "r1", "why", 0, "", rows=700, protected=700), 700, False),
    (Approval("d", "r1", "why", 0, "r0", rows=700, protected=700), 700, False),
])  # fmt: skip
def test_leave_to_believe_less_is_no_leave_to_believe_still_less(leave: Approval, rows: int, believed: bool) -> None:
    assert leave.believes(CompleteScan("r", "r2", 2, AT, AT, 0, {"rows": rows, "protected": rows})) is believed


def test_a_value_that_is_no_approval_is_an_error() -> None:
    assert read_approval(write_approval(Approval("a", "b"))) == Approval("a", "b")
    with pytest.raises(StoreBroken):
        read_approval(b"[1]")


async def test_pins_of_a_file_protect_like_rows_and_in_order(tmp_path: Path) -> None:
    rows = MemoryCatalog(ManualClock())
    rows.add(*(Reference(f"archives/w/{n}/x") for n in range(7)))
    (tmp_path / "pins").write_text("# kept by hand\narchives/w/35/\n\narchives/a/1/x\narchives/z/1/x\n")
    catalog = PinnedCatalog(rows, tmp_path / "pins")
    keys, cursor = [], None
    async with catalog.snapshot() as snapshot:
        while True:
            page = await snapshot.page(cursor, 2)
            keys += [each.key for each in page]
            if not page.more:
                break
            cursor = page.cursors[-1]
    assert keys == sorted(keys)
    assert len(keys) == 10
    found = await catalog.referenced(["archives/w/35/", "archives/a/1/", "archives/b/1/"], below=True)
    assert [each and each.rule for each in found] == ["pin in pins", "pin in pins", None]


def test_a_file_of_pins_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreBroken, match="cannot be read"):
        read_pins(tmp_path / "pins")


def test_a_root_says_where_its_trash_is() -> None:
    assert SEED.trash == ".trash/archives/"
