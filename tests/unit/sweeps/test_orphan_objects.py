"""Orphan archives: what is referenced stays, what is not goes after its grace, and nothing wrong is believed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from orphan_field import DAY, HOUR, SEED, Field, at_key
from wrasse.backends.memory.objects import MemoryObjects
from wrasse.backends.memory.sightings import MemorySightings
from wrasse.clock import ManualClock
from wrasse.engine.report import ERROR
from wrasse.errors import StoreUnavailable
from wrasse.orphans.root import MARK, Caps
from wrasse.orphans.scan import read_approval
from wrasse.orphans.scanner import Scanner
from wrasse.ports.catalog import CatalogSnapshot, Reference
from wrasse.ports.journal import LineFilter
from wrasse.ports.objects import ObjectDelete, ObjectInfo, OpenUpload
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.sightings import Sighting, SightingState

DELETING = replace(SEED, quarantine=timedelta(0))


@pytest.fixture
async def field(tmp_path: Path) -> Field:
    """A workspace with its archive, and an older one that it superseded; armed."""
    field = Field(tmp_path, DELETING)
    await field.put("ws1", "old")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    return field


def left(*archives: tuple[str, str]) -> list[str]:
    return [key for each in archives for key in (at_key(*each), at_key(*each, "home.tar.gz.meta"))]


async def rounds(field: Field, *gaps: timedelta) -> None:
    for gap in gaps:
        report = await field.run(after=gap)
        assert not report.errors, report.errors


async def test_an_archive_that_was_superseded_goes_after_its_grace_and_no_earlier(field: Field) -> None:
    await rounds(field, timedelta(0), 2 * HOUR - timedelta(seconds=1))
    assert await field.keys() == left(("ws1", "new"), ("ws1", "old"))
    await rounds(field, timedelta(seconds=1))
    assert await field.keys() == left(("ws1", "new"))


async def test_a_reference_to_one_file_keeps_every_file_of_its_archive(field: Field) -> None:
    await field.put("ws1", "new2", "home.tar.gz", "home.tar.gz.meta", "notes.txt")
    field.refer("ws1", "new2")
    await rounds(field, timedelta(0), HOUR, HOUR)
    assert at_key("ws1", "new2", "notes.txt") in await field.keys()


async def test_an_operation_id_keeps_its_archive_though_no_key_was_saved(field: Field) -> None:
    field.rows.add(Reference("archives/ws1/old/", prefix=True, owner="ws1", rule="op_id"))
    await rounds(field, *[HOUR] * 10)
    assert await field.keys() == left(("ws1", "new"), ("ws1", "old"))


async def test_a_workspace_does_not_protect_another_whose_name_begins_like_it(field: Field) -> None:
    await field.put("ws12", "old")
    await field.put("ws12", "new")
    field.refer("ws12", "new")
    field.rows.add(Reference("archives/ws1/old/", prefix=True, rule="op_id"))
    await rounds(field, *[HOUR] * 4)
    assert await field.keys() == left(("ws1", "new"), ("ws1", "old"), ("ws12", "new"))


async def test_archives_of_a_soft_deleted_row_go_but_not_while_its_operation_may_run(field: Field) -> None:
    await field.put("ws2", "a")
    await field.put("ws3", "a")
    now = field.clock.now()
    field.refer("ws2", "a", ended_at=now)
    running = field.refer("ws3", "a", ended_at=now, started_at=now + HOUR)
    await rounds(field, *[HOUR] * 3)
    assert await field.keys() == left(("ws1", "new"), ("ws3", "a"))
    assert running in await field.catalog.referenced([at_key("ws3", "a")])
    await rounds(field, *[HOUR] * 3)
    assert await field.keys() == left(("ws1", "new"))


async def test_what_belongs_to_nobody_has_the_longest_grace(field: Field) -> None:
    await field.put("stranger", "a")
    await rounds(field, *[DAY] * 30)
    assert await field.keys() == left(("stranger", "a"), ("ws1", "new"))
    await rounds(field, DAY)
    assert await field.keys() == left(("ws1", "new"))


@pytest.mark.parametrize("gap", [HOUR, 4 * HOUR, HOUR / 2, HOUR + timedelta(seconds=60), 3 * DAY])
async def test_whatever_the_cadence_it_goes_at_the_first_run_after_the_grace(field: Field, gap: timedelta) -> None:
    await rounds(field, timedelta(0))
    passed = timedelta(0)
    while passed < 2 * HOUR:
        assert len(await field.keys()) == 4
        await rounds(field, gap)
        passed += gap
    assert await field.keys() == left(("ws1", "new"))


async def test_one_look_is_never_enough(field: Field) -> None:
    field.clock.advance(30 * DAY)
    await rounds(field, timedelta(0))
    assert len(await field.keys()) == 4


async def test_lost_sightings_only_delay(field: Field, tmp_path: Path) -> None:
    await rounds(field, timedelta(0), HOUR)
    fresh = Field(tmp_path, DELETING, objects=field.objects, catalog=field.catalog, clock=field.clock)
    await fresh.arm()
    await rounds(fresh, HOUR, HOUR)
    assert len(await fresh.keys()) == 4
    await rounds(fresh, HOUR)
    assert len(await fresh.keys()) == 2


async def test_an_archive_that_was_referenced_in_between_starts_again(field: Field) -> None:
    await rounds(field, timedelta(0), HOUR)
    again = field.refer("ws1", "old")
    await rounds(field, HOUR)
    field.rows.remove(again)
    await rounds(field, timedelta(0), HOUR)
    assert len(await field.keys()) == 4
    await rounds(field, HOUR)
    assert len(await field.keys()) == 2


async def test_an_archive_that_was_written_again_starts_again(field: Field) -> None:
    await rounds(field, timedelta(0), HOUR)
    await rewrite(field, at_key("ws1", "old"))
    await rounds(field, HOUR, HOUR)
    assert len(await field.keys()) == 4
    await rounds(field, HOUR)
    assert len(await field.keys()) == 2


async def test_an_archive_whose_bytes_were_written_again_starts_again_too(field: Field) -> None:
    await rounds(field, timedelta(0), HOUR)
    key = at_key("ws1", "old")
    (info,) = await field.objects.page(key, None, 1)
    await field.objects.delete([ObjectDelete(key, info.version)])
    await field.objects.create(key, b"homehome.tar.gz")
    await rounds(field, HOUR)
    assert len(await field.keys()) == 4


async def rewrite(field: Field, key: str) -> None:
    head = await field.objects.head(key)
    assert head is not None
    assert await field.objects.replace(key, b"another", at=head.info.version)


class Between:
    """A catalog that lets something happen before it is asked for the last time."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.happens: list[tuple[str, str]] = []
        self.rewritten: list[str] = []
        self.fails = ""

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[CatalogSnapshot]:
        if self.fails == "snapshot":
            raise StoreUnavailable("the database is gone")
        async with self.field.rows.snapshot() as snapshot:
            yield snapshot

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        if self.fails == "referenced":
            raise StoreUnavailable("the database is gone")
        for each in self.happens:
            self.field.refer(*each)
        found = await self.field.rows.referenced(keys, below=below)
        for key in self.rewritten:
            await rewrite(self.field, key)
        return found


async def with_between(field: Field) -> Between:
    between = field.catalog = Between(field)
    field.scanner = field.another()
    return between


class During(Between):
    """A catalog in whose snapshot something is uploaded and committed, which the snapshot does not show."""

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[CatalogSnapshot]:
        async with self.field.rows.snapshot() as snapshot:
            for workspace, op in self.happens:
                await self.field.put(workspace, op)
                self.field.refer(workspace, op)
            self.happens = []
            yield snapshot


async def test_an_upload_that_is_committed_while_we_look_is_not_even_noted(field: Field) -> None:
    during = During(field)
    field.catalog = during
    field.scanner = field.another()
    during.happens = [("ws1", "fresh")]
    await rounds(field, timedelta(0))
    assert await field.sightings.get("archives", ["archives/ws1/fresh/", "archives/ws1/old/"]) != [None, None]
    assert (await field.sightings.get("archives", ["archives/ws1/fresh/"])) == [None]


async def test_a_reference_between_look_and_delete_saves_the_archive(field: Field) -> None:
    between = await with_between(field)
    await rounds(field, timedelta(0), HOUR)
    between.happens.append(("ws1", "old"))
    report = await field.run(after=HOUR)
    assert (report.planned, report.conflict, len(await field.keys())) == (1, 1, 4)


async def test_a_new_version_between_last_look_and_delete_is_not_deleted(field: Field) -> None:
    between = await with_between(field)
    await rounds(field, timedelta(0), HOUR)
    between.rewritten = [at_key("ws1", "old", "home.tar.gz.meta")]
    report = await field.run(after=HOUR)
    assert (report.conflict, len(await field.keys())) == (1, 4), "the marker was written again: nothing of it goes"


@pytest.mark.parametrize("what", ["snapshot", "referenced"])
async def test_a_database_that_fails_deletes_nothing_and_is_told(field: Field, what: str) -> None:
    between = await with_between(field)
    await rounds(field, timedelta(0), HOUR)
    between.fails = what
    report = await field.run(after=HOUR)
    assert (report.stopped_by, len(await field.keys())) == ("backend_down", 4)
    between.fails = ""
    await rounds(field, HOUR)
    assert len(await field.keys()) == 2


class Faulty(MemoryObjects):
    """A store whose listing or deleting goes wrong."""

    wrong = ""

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        page = await super().page(prefix, after, 2 if self.wrong == "cut" else limit)
        if prefix != "archives/":
            return page
        if self.wrong == "cut" and after is not None:
            raise StoreUnavailable("500 in the middle of the listing")
        if self.wrong == "order":
            return Page(page.items[::-1], page.cursors[::-1], page.at, page.more)
        if self.wrong == "twice":
            return Page(page.items[:1] + page.items, page.cursors[:1] + page.cursors, page.at, page.more)
        return page

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        refused = [each for each in deletes if self.wrong and self.wrong in each.key]
        ends = iter(await super().delete([each for each in deletes if each not in refused]))
        return [Outcome.FAILED if each in refused else next(ends) for each in deletes]


async def faulty_field(tmp_path: Path) -> tuple[Field, Faulty]:
    field = Field(tmp_path, DELETING)
    store = Faulty(field.clock)
    field.objects = store
    field.scanner = field.another()
    for op in ("bad", "new", "old"):
        await field.put("ws1", op)
    field.refer("ws1", "new")
    await field.arm()
    return field, store


@pytest.mark.parametrize("wrong", ["cut", "order", "twice"])
async def test_a_listing_that_is_cut_or_out_of_order_is_not_believed(tmp_path: Path, wrong: str) -> None:
    field, store = await faulty_field(tmp_path)
    await rounds(field, timedelta(0), HOUR)
    store.wrong = wrong
    report = await field.run(after=HOUR)
    assert report.stopped_by in (ERROR, "backend_down")
    store.wrong = ""
    assert len(await field.keys()) == 6


async def test_one_bad_key_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    field, store = await faulty_field(tmp_path)
    await rounds(field, timedelta(0), HOUR)
    store.wrong = "bad/home.tar.gz.meta"
    report = await field.run(after=HOUR)
    assert (report.done, report.failed) == (1, 1)
    assert await field.keys() == left(("ws1", "bad"), ("ws1", "new"))
    store.wrong = ""
    await rounds(field, HOUR)
    assert await field.keys() == left(("ws1", "new"))


async def test_the_marker_goes_first_and_what_is_left_of_a_unit_goes_at_the_next_run(tmp_path: Path) -> None:
    field, store = await faulty_field(tmp_path)
    await rounds(field, timedelta(0), HOUR)
    store.wrong = "bad/home.tar.gz"
    report = await field.run(after=HOUR)
    assert report.failed == 1
    assert at_key("ws1", "bad", "home.tar.gz.meta") in await field.keys()
    store.wrong = "nothing"
    (meta,) = list(await store.page(at_key("ws1", "bad", "home.tar.gz.meta"), None, 1))
    await store.delete([ObjectDelete(meta.key, meta.version)])
    await rounds(field, timedelta(minutes=1))
    assert await field.keys() == left(("ws1", "new"))


async def test_foreign_keys_are_reported_and_never_touched(field: Field) -> None:
    for key in ("archives/readme.txt", "archives/ws1/old/sub/x", "archives/ws1/old"):
        await field.objects.create(key, b"foreign")
    await rounds(field, *[DAY] * 40)
    foreign = ["archives/ws1/old", "archives/ws1/old/sub/x"]
    assert await field.keys() == ["archives/readme.txt", *left(("ws1", "new")), *foreign]
    assert field.scanner.result is not None
    assert field.scanner.result.scan.counts["foreign"] == 3


async def test_a_dry_run_lists_exactly_what_the_run_deletes_and_leaves_no_trace(field: Field) -> None:
    await rounds(field, timedelta(0))
    field.clock.advance(2 * HOUR)
    before = await field.sightings.standing("archives")
    dry = await field.run(dry=True)
    assert await field.sightings.standing("archives") == before
    report = await field.run()
    assert [each.suspect for each in dry.plan] == ["archives/ws1/old/"]
    assert (report.planned, report.done) == (dry.planned, 1)


async def test_a_root_that_is_not_armed_only_plans(tmp_path: Path) -> None:
    field = Field(tmp_path, DELETING)
    await field.put("ws1", "old")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await rounds(field, timedelta(0))
    report = await field.run(after=2 * HOUR)
    assert (dict(report.kept), report.planned, len(await field.keys())) == ({"not armed": 1}, 0, 4)


async def test_another_configuration_has_to_be_armed_again(field: Field) -> None:
    await rounds(field, timedelta(0), HOUR)
    report = await field.run(field.another(marker=".done"), after=HOUR)
    assert dict(report.kept) == {"not armed": 1}


async def test_no_reference_at_all_is_not_believed(field: Field) -> None:
    await rounds(field, timedelta(0), HOUR)
    field.rows.remove(*await all_rows(field))
    report = await field.run(after=2 * HOUR)
    assert report.stopped_by == ERROR
    assert "no reference at all" in report.why
    assert len(await field.keys()) == 4


async def all_rows(field: Field) -> list[Reference]:
    async with field.rows.snapshot() as snapshot:
        return list(await snapshot.page(None, 10_000))


@pytest.mark.parametrize("share", [0.5, 0.75, 0.9])
async def test_a_database_that_answers_too_little_for_hours_loses_nothing(tmp_path: Path, share: float) -> None:
    field = Field(tmp_path, replace(DELETING, graces=replace(DELETING.graces, owner_unknown=2 * HOUR)))
    for n in range(600):
        await field.put(f"ws{n:03}", "a", "home.tar.gz")
        field.refer(f"ws{n:03}", "a")
    await field.arm()
    await rounds(field, timedelta(0), HOUR)
    rows = await all_rows(field)
    field.rows.remove(*rows[int(len(rows) * share) :])
    for _ in range(6):
        report = await field.run(after=HOUR)
        assert report.stopped_by == ERROR
    assert len(await field.keys()) == 600


async def test_a_plan_beyond_the_cap_is_held_until_somebody_names_the_round(tmp_path: Path) -> None:
    field = Field(tmp_path, replace(DELETING, caps=Caps(objects_max=5)))
    for n in range(10):
        await field.put("ws1", f"old{n}")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await rounds(field, timedelta(0), HOUR)
    report = await field.run(after=HOUR)
    assert (dict(report.kept), len(await field.keys())) == ({"plan too large": 10}, 22)
    assert any("--allow" in note for note in report.notes)
    refused = read_approval((await field.sightings.standing("archives")).value).refused
    await field.arm(allow=refused)
    assert (await field.run(actions_max=4)).done == 4
    assert (await field.run(actions_max=4)).done == 4
    assert (await field.run()).done == 2
    assert await field.keys() == left(("ws1", "new"))
    assert read_approval((await field.sightings.standing("archives")).value).allowed == ""


async def test_leave_for_one_plan_is_no_leave_for_a_larger_one(tmp_path: Path) -> None:
    field = Field(tmp_path, replace(DELETING, caps=Caps(objects_max=5)))
    for n in range(10):
        await field.put("ws1", f"old{n}", "home.tar.gz")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await rounds(field, timedelta(0), HOUR, HOUR)
    refused = read_approval((await field.sightings.standing("archives")).value).refused
    for n in range(10):
        await field.put("ws1", f"more{n}", "home.tar.gz")
    await rounds(field, timedelta(0), 2 * HOUR)
    await field.arm(allow=refused)
    report = await field.run()
    assert dict(report.kept) == {"plan too large": 20}


async def test_young_objects_are_not_even_noted(tmp_path: Path) -> None:
    field = Field(tmp_path, replace(DELETING, age_min=3 * HOUR))
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await rounds(field, timedelta(0))
    await field.put("ws1", "old")
    await rounds(field, HOUR, HOUR, HOUR - timedelta(seconds=1))
    assert (await field.sightings.get("archives", ["archives/ws1/old/"])) == [None]
    await rounds(field, timedelta(seconds=1), 2 * HOUR)
    assert await field.keys() == left(("ws1", "new"))


async def test_the_newest_units_of_a_living_owner_are_kept(tmp_path: Path) -> None:
    field = Field(tmp_path, replace(DELETING, keep_newest=2))
    for n in range(4):
        await field.put("ws1", f"op{n}")
        field.clock.advance(HOUR)
    field.refer("ws1", "op0")
    await field.arm()
    await rounds(field, *[HOUR] * 4)
    assert await field.keys() == left(("ws1", "op0"), ("ws1", "op2"), ("ws1", "op3"))


async def test_quarantine_moves_and_purge_deletes_after_its_time(tmp_path: Path) -> None:
    field = Field(tmp_path)
    await field.put("ws1", "old")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await rounds(field, timedelta(0), 2 * HOUR)
    assert (await field.keys(), len(await field.trash())) == (left(("ws1", "new")), 2)
    await rounds(field, 7 * DAY - timedelta(seconds=1))
    assert len(await field.trash()) == 2
    await rounds(field, timedelta(seconds=1))
    assert (await field.keys(), await field.trash()) == (left(("ws1", "new")), [])


@pytest.mark.parametrize("by", ["move", MARK])
async def test_a_reference_to_what_is_in_quarantine_brings_it_back(tmp_path: Path, by: str) -> None:
    field = Field(tmp_path, replace(SEED, quarantine_by=by))
    await field.put("ws1", "old", data=b"precious")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await rounds(field, timedelta(0), 2 * HOUR)
    field.refer("ws1", "old")
    await rounds(field, HOUR)
    assert (await field.keys(), await field.trash()) == (left(("ws1", "new"), ("ws1", "old")), [])
    assert await contents(field, at_key("ws1", "old")) == b"precioushome.tar.gz"
    await rounds(field, 30 * DAY, 30 * DAY)
    assert len(await field.keys()) == 4


async def test_what_is_written_where_something_was_moved_away_goes_in_its_turn(tmp_path: Path) -> None:
    field = Field(tmp_path)
    await field.put("ws1", "old")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await rounds(field, timedelta(0), 2 * HOUR)
    await field.put("ws1", "old", data=b"another")
    await rounds(field, HOUR, 7 * DAY)
    assert (len(await field.keys()), await field.trash()) == (4, [])
    await rounds(field, HOUR, 2 * HOUR, 7 * DAY)
    assert (await field.keys(), await field.trash()) == (left(("ws1", "new")), [])


async def test_leave_for_a_large_plan_does_not_make_a_broken_database_right(tmp_path: Path) -> None:
    field = Field(tmp_path, replace(DELETING, caps=Caps(objects_max=5)))
    for n in range(10):
        await field.put("ws1", f"old{n}", "home.tar.gz")
        await field.put(f"other{n}", "a", "home.tar.gz")
        field.refer(f"other{n}", "a")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await rounds(field, timedelta(0), 2 * HOUR)
    await field.arm(allow=read_approval((await field.sightings.standing("archives")).value).refused)
    field.rows.remove(*await all_rows(field))
    assert (await field.run()).stopped_by == ERROR
    assert len(await field.keys()) == 22


async def test_bringing_back_overwrites_nothing_and_keeps_the_copy(tmp_path: Path) -> None:
    field = Field(tmp_path)
    await field.put("ws1", "old", data=b"precious")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await rounds(field, timedelta(0), 2 * HOUR)
    await field.objects.create(at_key("ws1", "old"), b"somebody else's")
    field.refer("ws1", "old")
    report = await field.run(after=HOUR)
    assert (report.done, report.conflict) == (0, 1)
    assert await contents(field, at_key("ws1", "old")) == b"somebody else's"
    (copy,) = [key for key in await field.trash() if key.endswith("home.tar.gz")]
    assert await contents(field, copy) == b"precioushome.tar.gz"


async def contents(field: Field, key: str) -> bytes:
    return b"".join([chunk async for chunk in field.objects.read(key)])


async def test_marks_leave_objects_where_they_are_until_they_are_purged(tmp_path: Path) -> None:
    field = Field(tmp_path, replace(SEED, quarantine_by=MARK))
    await field.put("ws1", "old")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await rounds(field, timedelta(0), 2 * HOUR)
    assert (len(await field.keys()), await field.trash()) == (4, [])
    await rounds(field, 7 * DAY)
    assert await field.keys() == left(("ws1", "new"))


async def test_two_processes_at_once_do_what_one_does(field: Field, tmp_path: Path) -> None:
    other = field.another()
    await rounds(field, timedelta(0))
    field.clock.advance(2 * HOUR)
    await other.scan(note=True)
    mine = await field.run()
    assert mine.done == 1
    assert list(await other.remove([each.what for each in other.page(None, 10)])) == [Outcome.CONFLICT]
    assert await field.keys() == left(("ws1", "new"))


class Interrupted(MemorySightings):
    """Sightings of which another process commits a round while they are read."""

    other: Scanner | None = None

    async def page(
        self, root: str, after: str | None, limit: int, state: SightingState | None = None
    ) -> Page[Sighting]:
        if self.other is not None:
            scanner, self.other = self.other, None
            await scanner.scan(note=True)
        return await super().page(root, after, limit, state)


async def test_a_verdict_is_worth_nothing_once_its_sighting_began_again(field: Field) -> None:
    await rounds(field, timedelta(0))
    field.clock.advance(2 * HOUR)
    other = field.another()
    await other.scan(note=False)
    stale = [each.what for each in other.page(None, 10)]
    again = field.refer("ws1", "old")
    await rounds(field, timedelta(0))
    field.rows.remove(again)
    await rounds(field, timedelta(0))
    assert list(await other.remove(stale)) == [Outcome.CONFLICT]
    assert len(await field.keys()) == 4


class Uploading(MemoryObjects):
    """A store with uploads in parts."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.multipart = self
        self.open: list[OpenUpload] = []
        self._time = clock

    async def uploads(self, prefix: str, after: str | None, limit: int) -> Page[OpenUpload]:
        found = [each for each in self.open if each.key.startswith(prefix) and (after is None or each.id > after)]
        shown = tuple(found[:1])
        return Page(shown, tuple(each.id for each in shown), self._time.now(), len(found) > 1)

    async def abort(self, uploads: Sequence[OpenUpload]) -> Sequence[Outcome]:
        ends = [Outcome.DONE if each in self.open else Outcome.CONFLICT for each in uploads]
        self.open = [each for each in self.open if each not in uploads]
        return ends


async def test_unfinished_uploads_are_given_up_when_old_and_wanted_by_nobody(tmp_path: Path) -> None:
    clock = ManualClock()
    store = Uploading(clock)
    field = Field(tmp_path, DELETING, objects=store, clock=clock)
    await field.put("ws1", "old")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    for number, op in enumerate(["old", "gone", "new"]):
        store.open.append(OpenUpload(at_key("ws1", op, "big"), f"upload-{number}", clock.now()))
    await rounds(field, timedelta(0), DAY)
    assert len(store.open) == 3
    store.open.append(OpenUpload(at_key("ws1", "young", "big"), "upload-9", clock.now()))
    report = await field.run(after=6 * DAY, actions_max=1)
    report = await field.run(after=timedelta(0))
    assert [each.id for each in store.open] == ["upload-2", "upload-9"], report
    lines = list(await field.journal.page(LineFilter(), None, 10))
    ends = sorted((line.intent.suspect, line.outcome) for line in lines if line.intent.verb == "abort")
    assert ends == [
        (at_key("ws1", "gone", "big"), Outcome.DONE),
        (at_key("ws1", "new", "big"), Outcome.CONFLICT),
        (at_key("ws1", "old", "big"), Outcome.DONE),
    ]


async def test_a_round_worked_out_beside_another_is_thrown_away(tmp_path: Path) -> None:
    clock = ManualClock()
    sightings = Interrupted(clock)
    field = Field(tmp_path, DELETING, sightings=sightings, clock=clock)
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await rounds(field, timedelta(0))
    sightings.other = field.another()
    report = await field.run()
    assert "another process" in report.why
    last = (await sightings.standing("archives")).last
    assert last is not None
    assert last.number == 2


async def test_losing_many_to_new_references_in_one_batch_stops_the_run(tmp_path: Path) -> None:
    field = Field(tmp_path, DELETING)
    between = await with_between(field)
    for n in range(150):
        await field.put("ws1", f"op{n:03}", "home.tar.gz")
    await field.put("ws1", "zz")
    field.refer("ws1", "zz")
    await field.arm()
    await rounds(field, timedelta(0))
    between.happens = [("ws1", f"op{n:03}") for n in range(10)]
    report = await field.run(after=2 * HOUR)
    assert (report.stopped_by, report.done, report.conflict) == ("orphans", 90, 10)


async def test_every_removal_has_a_line_with_its_outcome(field: Field) -> None:
    await rounds(field, timedelta(0), 2 * HOUR)
    page = await field.journal.page(LineFilter(), None, 10)
    (line,) = page.items
    assert (line.intent.verb, line.intent.suspect, line.outcome) == ("delete", "archives/ws1/old/", Outcome.DONE)
    assert line.intent.reason == "superseded at each of 2 looks, for 2h"


async def test_a_step_of_one_clock_shortens_no_grace(field: Field) -> None:
    await rounds(field, timedelta(0))
    field.clock.step(DAY)
    await rounds(field, timedelta(minutes=1))
    assert len(await field.keys()) == 4
    field.clock.step(-DAY)
    await rounds(field, timedelta(minutes=1), 2 * HOUR - timedelta(minutes=3))
    assert len(await field.keys()) == 4


async def test_references_that_come_late_are_measured_and_told(field: Field) -> None:
    await field.put("ws1", "late")
    await rounds(field, timedelta(0), HOUR)
    field.refer("ws1", "late")
    report = await field.run(after=timedelta(minutes=10))
    assert any("too short" in note for note in report.notes)
