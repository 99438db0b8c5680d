"""Time: no step of a clock, pause or restart shortens a grace, and whatever the cadence, what is an orphan goes."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from hypothesis import example, given, settings, strategies as st

from orphan_field import HOUR, SEED, Field, at_key
from wrasse.backends.memory.sightings import MemorySightings
from wrasse.clock import ManualClock

DELETING = replace(SEED, quarantine=timedelta(0))
GRACE = DELETING.graces.superseded
KEY = at_key("ws1", "old")

WAITS = st.tuples(st.just("wait"), st.sampled_from([1, 20, 45, 60, 90, 130, 240, 1440]))
STEPS = st.tuples(st.just("step"), st.sampled_from([-1440, -60, -1, 1, 60, 1440]))
OTHERS = st.tuples(st.sampled_from(["run", "run", "run", "restart", "refer", "unrefer", "rewrite"]), st.just(0))
STORIES = st.lists(st.one_of(WAITS, STEPS, OTHERS), max_size=25)


class Story:
    """A store and a database with a true clock, and sightings with one that is set forward and back."""

    def __init__(self, place: Path) -> None:
        self.true = ManualClock()
        self.wrong = ManualClock()
        self.field = Field(place, DELETING, sightings=MemorySightings(self.wrong), clock=self.true)
        self.since: float | None = None  # when, by true time, the series of scans that saw it began
        self.scans = 0
        self.reference = None

    async def plant(self) -> None:
        await self.field.put("ws1", "old", "home.tar.gz")
        await self.field.put("ws1", "new", "home.tar.gz")
        self.field.refer("ws1", "new")
        await self.field.arm()

    async def tell(self, what: str, minutes: int) -> None:
        match what:
            case "wait":
                self.true.advance(timedelta(minutes=minutes))
                self.wrong.advance(timedelta(minutes=minutes))
            case "step":
                self.wrong.step(timedelta(minutes=minutes))
            case "restart":
                self.field.scanner = self.field.another()
            case "refer" if self.reference is None:
                self.reference = self.field.refer("ws1", "old")
            case "unrefer" if self.reference is not None:
                self.field.rows.remove(self.reference)
                self.reference = None
            case "rewrite":
                await self._rewrite()
            case "run":
                await self.run()

    async def _rewrite(self) -> None:
        head = await self.field.objects.head(KEY)
        if head is not None:
            await self.field.objects.replace(KEY, b"again", at=head.info.version)
            self.since = None

    async def run(self) -> None:
        """One scan, and what must be true if it took the archive away."""
        there = await self.field.objects.head(KEY) is not None
        report = await self.field.run()
        assert not report.errors, report.errors
        if self.reference is not None:
            self.since = None
        elif there:
            now = self.true.monotonic()
            self.since, self.scans = (now, 1) if self.since is None else (self.since, self.scans + 1)
            if await self.field.objects.head(KEY) is None:
                assert self.scans >= 2, "it went at its first scan"
                assert now - self.since >= GRACE.total_seconds(), "it went before its grace was over"


@settings(max_examples=150)
@example([("run", 0), ("restart", 0), ("step", 1440), ("run", 0)])
@example([("run", 0), ("wait", 60), ("refer", 0), ("run", 0), ("unrefer", 0), ("run", 0), ("wait", 60), ("run", 0)])
@given(STORIES)
def test_no_step_of_a_clock_no_pause_and_no_restart_shortens_a_grace(events: list[tuple[str, int]]) -> None:
    async def told() -> None:
        with tempfile.TemporaryDirectory() as place:
            story = Story(Path(place))
            await story.plant()
            for what, minutes in events:
                await story.tell(what, minutes)
            assert await story.field.objects.head(at_key("ws1", "new")) is not None

    asyncio.run(told())


@settings(max_examples=40)
@given(st.lists(st.integers(1, 7 * 24 * 60), min_size=1, max_size=4), st.booleans())
def test_whatever_the_cadence_an_orphan_goes_within_its_grace_and_two_runs(gaps: list[int], restarts: bool) -> None:
    async def told() -> None:
        with tempfile.TemporaryDirectory() as place:
            story = Story(Path(place))
            await story.plant()
            await story.run()
            passed, turn = timedelta(0), 0
            longest = timedelta(minutes=max(gaps))
            while await story.field.objects.head(KEY) is not None:
                assert passed < GRACE + 2 * longest, "it is still there"
                if restarts:
                    await story.tell("restart", 0)
                gap = gaps[turn % len(gaps)]
                await story.tell("wait", gap)
                await story.run()
                passed, turn = passed + timedelta(minutes=gap), turn + 1
            assert passed >= GRACE

    asyncio.run(told())


async def test_a_jump_forward_between_two_looks_of_one_process_is_not_believed(tmp_path: Path) -> None:
    field = Field(tmp_path, DELETING)
    await field.put("ws1", "old")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await field.run()
    field.clock.step(timedelta(days=1))
    await field.run(after=HOUR)
    assert len(await field.keys()) == 4
