"""Sweeps of one's own: taken into use by the file, given their ports, run like every other, refused when wrong."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cli.command_line import wrasse
from processes.daemons import running, until
from wrasse.api.app import connect
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.config.load import load
from wrasse.errors import ConfigError
from wrasse.ports.journal import LineFilter
from wrasse.ports.records import Collection
from wrasse.runtime.engine import build_sweep
from wrasse.runtime.open_ports import OpenPorts

MODULE = '''
from __future__ import annotations
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, ClassVar
from wrasse.engine.sweep import Action, Keep
from wrasse.ports.groups import Groups
from wrasse.ports.jobs import JobQueue
from wrasse.ports.journal import Journal
from wrasse.ports.objects import Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Collection, Records
from wrasse.ports.streams import Streams

@dataclass(frozen=True, slots=True)
class OldCarts:
    """Carts that nobody bought."""
    name: ClassVar[str] = "old_carts"
    each: ClassVar[bool] = True
    carts: Annotated[Records, Collection.named("carts")]
    ready: JobQueue
    lines: Journal
    streams: Streams
    groups: Groups
    objects: Objects
    kept: timedelta = timedelta(days=30)
    tags: tuple[str, ...] = ()
    batch_max: int = 10

    async def find(self, after, limit):
        return await self.carts.due(None, after, limit)

    def decide(self, suspect, at):
        if suspect.due_at is None or at - suspect.due_at < self.kept:
            return Keep("young")
        return Action("delete", suspect.key, "old", suspect)

    async def apply(self, actions):
        written = [await self.carts.delete(each.change.key, at=each.change.version) for each in actions]
        return [each.outcome for each in written]

@dataclass(frozen=True, slots=True)
class Wrong:
    thing: int
    records: Records
    interval: int = 1
    odd: object = None

    async def find(self, after): ...
    async def decide(self, suspect, at): ...

@dataclass
class Thawed: ...

def function(): ...
'''


@pytest.fixture
def shop(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a module of sweeps, forgotten again afterwards."""
    (place / "shop_sweeps.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    yield place
    sys.modules.pop("shop_sweeps", None)


def configure(place: Path, sweeps: str) -> Path:
    (place / "wrasse.yaml").write_text("sweeps:\n" + sweeps)
    return place / "wrasse.yaml"


def refusal(place: Path, sweeps: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(configure(place, sweeps), environ={})
    return str(caught.value)


async def test_a_sweep_of_ones_own_is_given_the_ports_it_asks_for_and_takes_away_what_is_due(shop: Path) -> None:
    file = configure(shop, "  old_carts: {use: 'shop_sweeps:OldCarts', kept: 2d}\n")
    clock = ManualClock()
    file.write_text(file.read_text() + "backends: {jobs: 'memory:', records: 'memory:', objects: 'memory:'}\n")
    async with connect(file, clock=clock) as app:
        opened = await app.open("records", "engine")
        carts = opened.records.records(Collection.named("carts"))
        await carts.create("a", b"{}", due_at=clock.now())
        clock.advance(timedelta(days=1))
        await carts.create("b", b"{}", due_at=clock.now())
        clock.advance(timedelta(days=1))
        report = await (await app.engine()).sweep_now("old_carts")
        lines = await opened.journal.page(LineFilter(sweep="old_carts"), None, 10)
        assert (report.seen, report.done, dict(report.kept)) == (2, 1, {"young": 1})
        assert [line.intent.suspect for line in lines] == ["a"]
        assert (await carts.get("a"), (await carts.get("b")) is None) == (None, False)


def test_a_sweep_of_ones_own_is_listed_planned_and_run_by_the_command_line(shop: Path) -> None:
    configure(shop, "  old_carts: {use: 'shop_sweeps:OldCarts'}\n")
    listed = {each["name"]: each["takes_away"] for each in wrasse("sweep", "--list", "--json").json["sweeps"]}
    assert listed["old_carts"] == "Carts that nobody bought."
    assert wrasse("sweep", "old-carts", "--dry-run").out.startswith("old_carts: would take 0 actions")
    assert {each["sweep"] for each in wrasse("sweep", "--json").json["reports"]} >= {"old_carts", "stuck_jobs"}


def test_doctor_checks_it_too(shop: Path) -> None:
    configure(shop, "  old_carts: {use: 'shop_sweeps:OldCarts'}\n")
    assert "old_carts has never run" in wrasse("doctor").out


def test_one_class_may_be_two_sweeps_of_different_settings(shop: Path) -> None:
    file = configure(shop, "  a: {use: 'shop_sweeps:OldCarts'}\n  b: {use: 'shop_sweeps:OldCarts', kept: 2d}\n")

    async def names() -> tuple[str, ...]:
        async with connect(file) as app:
            return (await app.engine()).names

    assert asyncio.run(names())[-2:] == ("a", "b")


def test_its_fields_are_settings_in_file_and_environment(shop: Path) -> None:
    file = configure(shop, "  old_carts: {use: 'shop_sweeps:OldCarts', kept: 2d, tags: [x, y], actions_max: 5}\n")
    own = load(file, environ={"WRASSE_SWEEPS_OLD_CARTS_BATCH_MAX": "7"}).settings.sweeps["old_carts"]
    assert own.fields == {"kept": timedelta(days=2), "tags": ("x", "y"), "batch_max": 7}
    assert (own.actions_max, own.interval) == (5, timedelta(minutes=1))
    assert "kept: 2d  # wrasse.yaml line 2" in wrasse("config", "show").out


def test_a_wrong_field_is_a_mistake_with_its_place(shop: Path) -> None:
    told = refusal(shop, "  old_carts:\n    use: shop_sweeps:OldCarts\n    kepd: 2d\n")
    assert told == "wrasse.yaml line 4: there is no setting 'kepd' in sweeps.old_carts\ndo: write 'kept'"


def test_a_class_that_is_no_sweep_is_refused_with_everything_it_lacks(shop: Path) -> None:
    told = refusal(shop, "  w: {use: 'shop_sweeps:Wrong'}\n")
    for lack in (
        "wrasse.yaml line 2: sweeps.w: shop_sweeps:Wrong is not a sweep",
        "has a find that does not take (self, after, limit)",
        "has an async decide",
        "has no method apply(self, actions)",
        "has no `name",
        "has no `each",
        "has no `batch_max`",
        "has a field 'thing' without a default",
        "has records 'records' without a collection",
        "has a setting 'interval', which every sweep has",
        "has a setting 'odd' of an unsupported type",
    ):
        assert lack in told


@pytest.mark.parametrize(
    ("use", "told"),
    [
        ("shop_sweeps:Thawed", "is not a frozen dataclass"),
        ("shop_sweeps:function", "is a function, not a class"),
        ("shop_sweeps:OldCart", "there is no sweep 'OldCart' in shop_sweeps"),
        ("shop_sweep:OldCarts", "there is no module 'shop_sweep'"),
        ("shop_sweeps", "is not of the form module:name"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_sentence(shop: Path, use: str, told: str) -> None:
    assert told in refusal(shop, f"  w: {{use: '{use}'}}\n")


def test_a_name_that_no_metric_could_carry_is_refused(shop: Path) -> None:
    assert "a sweep is named 'Old carts'" in refusal(shop, "  Old carts: {use: 'shop_sweeps:OldCarts'}\n")


def test_a_name_without_a_class_is_still_an_unknown_name(shop: Path) -> None:
    assert "there is no setting 'stuck_job' in sweeps" in refusal(shop, "  stuck_job: {interval: 1m}\n")


def test_an_installed_sweep_is_known_by_its_name_and_idle_until_that_stands_in_the_file(shop: Path) -> None:
    package = shop / "shop-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[wrasse.sweeps]\nold_carts = shop_sweeps:OldCarts\n")
    assert "old_carts" not in load(configure(shop, ""), environ={}).settings.sweeps
    own = load(configure(shop, "  old_carts: {kept: 2d}\n"), environ={}).settings.sweeps["old_carts"]
    assert (own.use, own.fields["kept"]) == ("shop_sweeps:OldCarts", timedelta(days=2))


async def test_it_is_guarded_by_every_backend_that_it_depends_on(shop: Path) -> None:
    settings = load(configure(shop, "  old_carts: {use: 'shop_sweeps:OldCarts'}\n"), environ={}).settings
    clock = ManualClock()
    here, ahead = Memory(clock), Memory(ManualClock(clock.now() + timedelta(hours=1)))
    opened = OpenPorts(dict.fromkeys(("jobs", "records", "engine", "streams"), here), ahead, here.journal)
    scheduled = build_sweep("old_carts", settings, opened, clock)
    held = {guard.name: reason for guard in scheduled.guards if (reason := await guard.pause_reason())}
    assert held == {"clock": "this host's clock is 1h behind the backend's"}


def test_a_running_process_sweeps_it_and_shows_it_in_metrics_and_status(shop: Path) -> None:
    configure(shop, "  old_carts: {use: 'shop_sweeps:OldCarts', interval: 100ms}\n")
    with running(shop, "--role=sweeper") as daemon:
        ran = 'wrasse_sweep_runs_total{sweep="old_carts"}'
        until(lambda: daemon.metrics().get(ran), "a run of it counted")
        status = json.loads(daemon.get("/status.json")[1])
        assert "old_carts" in {each["name"] for each in status["sweeps"]}
        assert "old_carts" in daemon.get("/")[1]
