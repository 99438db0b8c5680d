"""The sweeps of streams on a backend under test, built as the wiring builds them, with a clock that tests move."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from conformance.stores import Store
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.report import Report
from wrasse.engine.run import AnySweep, RunContext, run_once
from wrasse.ids import Ids
from wrasse.ports.groups import Groups
from wrasse.ports.streams import START, Draft, EntryId, Streams, Surveys
from wrasse.streams.alerts import ALERTS, Alerts
from wrasse.streams.envelope import decode
from wrasse.streams.group_census import IDLE_OBSERVATIONS, Census, IdleObservations, PlainSurvey
from wrasse.streams.retention import Retention, RetentionRule, RetentionTally, Trimmer
from wrasse.sweeps.aged_entries import AgedEntries
from wrasse.sweeps.dead_consumers import DeadConsumers

ERRORS = "gbe.events.system.error"
DAY = timedelta(days=1)


class Alarm(msgspec.Struct):
    """An alert as its readers see it."""

    stream: str
    error: str
    source: str
    group: str = ""
    count: int = 0
    oldest_at: datetime | None = None


class Upkeep:
    """Streams with sweeps over them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tally = RetentionTally()
        self._journal = Memory(store.clock).journal

    @property
    def streams(self) -> Streams:
        found: Streams = self.store.backend.streams  # type: ignore[attr-defined]
        return found

    @property
    def groups(self) -> Groups:
        found: Groups = self.store.backend.groups  # type: ignore[attr-defined]
        return found

    @property
    def surveys(self) -> Surveys:
        backend = self.store.backend
        return backend.surveys or PlainSurvey(self.streams)

    def alerts(self, source: str) -> Alerts:
        return Alerts(self.store.backend.records(ALERTS), self.streams, self.store.clock, source)

    def aged_entries(self, *rules: RetentionRule, archived: tuple[str, ...] = ()) -> AgedEntries:
        alerts = self.alerts(AgedEntries.name)
        trimmer = Trimmer(self.streams, alerts, self.store.clock, self.tally)
        return AgedEntries(self.surveys, Retention(rules, archived), trimmer, alerts)

    def dead_consumers(self, **settings: timedelta | tuple[str, ...]) -> DeadConsumers:
        alerts = self.alerts(DeadConsumers.name)
        looks, known = (
            IdleObservations(self.store.backend.records(IDLE_OBSERVATIONS)),
            self.store.backend.capabilities.knows_holders,
        )
        census = Census(self.surveys, self.groups, alerts, looks, known)
        return DeadConsumers(census, self.groups, alerts, self.tally, **settings)  # type: ignore[arg-type]

    async def run(self, sweep: AnySweep, *, dry_run: bool = False) -> Report:
        frame = RunContext(self._journal, self.store.clock, Ids(self.store.clock))
        report = await run_once(sweep, frame, dry_run=dry_run)
        assert not report.errors, report.errors
        assert not report.stopped_by, report.why
        return report

    async def append(self, subject: str, *bodies: bytes) -> list[EntryId]:
        return list(await self.streams.append([Draft(subject, body) for body in bodies]))

    async def bodies(self, subject: str) -> list[bytes]:
        return [entry.body for entry in await self.streams.read(subject, START, 1_000)]

    async def alarms(self) -> list[Alarm]:
        entries = await self.streams.read(ERRORS, START, 1_000)
        return [msgspec.json.decode(decode(entry.body).payload, type=Alarm) for entry in entries]

    def pass_time(self, time: timedelta) -> None:
        assert isinstance(self.store.clock, ManualClock)
        self.store.clock.advance(time)
