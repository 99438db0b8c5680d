"""Aged entries: what one look decides. What every backend does with it is in tests/conformance/test_aged_entries.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.sweep import Action, Keep
from wrasse.ports.streams import Draft, EntryId, GroupState, StreamState
from wrasse.runtime.forecast import next_lines
from wrasse.streams.alerts import ALERTS, Alerts
from wrasse.streams.group_census import PlainSurvey
from wrasse.streams.retention import Bound, Retention, RetentionRule, RetentionTally, Trimmer
from wrasse.sweeps import aged_entries
from wrasse.sweeps.aged_entries import AgedEntries, AgedStream

DAY = timedelta(days=1)
START_OF_TIME = datetime(1970, 1, 1, tzinfo=UTC)


class Place:
    """Streams, and the sweep over them."""

    def __init__(self, *rules: RetentionRule) -> None:
        self.clock = ManualClock()
        self.store = Memory(self.clock)
        alerts = Alerts(self.store.records(ALERTS), self.store.streams, self.clock, AgedEntries.name)
        trimmer = Trimmer(self.store.streams, alerts, self.clock, RetentionTally())
        self.sweep = AgedEntries(PlainSurvey(self.store.streams), Retention(rules), trimmer, alerts)

    async def verdicts(self, limit: int = 100) -> list[Action[object] | Keep]:
        found: list[Action[object] | Keep] = []
        after: str | None = None
        while True:
            page = await self.sweep.find(after, limit)
            found += [self.sweep.decide(suspect, page.at) for suspect in page]
            after = page.cursor
            if after is None:
                return found


async def test_a_plan_says_whose_entries_an_allowed_loss_may_take() -> None:
    place = Place(RetentionRule("gbe.>", DAY, allow_data_loss=True))
    await place.store.streams.append([Draft("gbe.tasks.mail.queue", b"1")])
    place.clock.advance(2 * DAY)

    (verdict,) = await place.verdicts()

    assert isinstance(verdict, Action)
    assert (verdict.verb, "may lose what mail-workers did not ack" in verdict.reason) == ("trim", True)


async def test_a_group_whose_floor_proves_nothing_is_told_of_and_nothing_is_planned() -> None:
    rule = RetentionRule("s", DAY, protect=("hasty",))
    place, at = Place(rule), START_OF_TIME + 2 * DAY
    group = GroupState("hasty", EntryId(2, 2), EntryId(2, 2), 0, protects=False)
    state = StreamState("s", 1, 1, 1, EntryId(1, 1), EntryId(1, 1), (group,), at)

    verdict = place.sweep.decide(AgedStream(state, Bound(rule, ("hasty",)), ()), at)

    assert isinstance(verdict, Action)
    assert (verdict.verb, "'hasty' gives up after some deliveries" in verdict.reason) == ("alert", True)
    assert any("gives up after some deliveries" in line for line in next_lines(state, Bound(rule, ("hasty",))))


async def test_young_streams_are_not_shown_one_by_one() -> None:
    place = Place(RetentionRule("gbe.>", DAY))
    await place.store.streams.append([Draft(f"gbe.{n}", b"1") for n in range(50)])

    assert await place.verdicts() == [Keep("nothing is old enough")]


async def test_several_pages_see_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aged_entries, "PAGE", 7)
    place = Place(RetentionRule("gbe.*.old", DAY, exact=True))
    await place.store.streams.append([Draft(f"gbe.{n:02}.{'old' if n % 9 == 0 else 'kept'}", b"1") for n in range(40)])
    place.clock.advance(2 * DAY)

    found = [verdict.suspect for verdict in await place.verdicts(limit=2) if isinstance(verdict, Action)]

    assert found == [f"gbe.{n:02}.old" for n in range(0, 40, 9)]
