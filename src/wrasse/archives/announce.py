"""Events of an archiver: `gbe.events.system.archive` after each archive, `gbe.events.system.error` as an alarm.

A failure to publish an event changes nothing else. Archives of the stream of archive events are not announced: each
would cause another one.

`LagWatch` measures what is not archived (messages, bytes and age) and sends an alert beyond limits: once, and again
after the repeat interval. It runs in a task beside the archiving, since the lag of an archiver that cannot write
matters most. Trimming continues below what is archived. `ArchiverTally` counts what an archiver did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from wrasse.archives.batch import ArchiveFacts
from wrasse.archives.cursor import Cursors
from wrasse.archives.naming import ArchiveName
from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.ports.streams import START, Streams, StreamState
from wrasse.streams.alerts import Alert, AlertEvent, Alerts, worth_telling
from wrasse.streams.delivery import ROOT
from wrasse.streams.publisher import Publisher


@dataclass(frozen=True, slots=True)
class Lag:
    """What is not archived yet: how many messages, about how many bytes, and the age of the oldest."""

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class ArchiverTally:
    """Counters of one archiver."""

    archives: int = 0
    messages: int = 0
    bytes: int = 0  # as stored
    outages: int = 0
    alarms: int = 0
    lost: int = 0  # entries trimmed before they were archived
    events_lost: int = 0
    lag: Lag = field(default_factory=Lag)

    def count(self, messages: int, size: int) -> None:
        """One archive was written."""
        self.archives += 1
        self.messages += messages
        self.bytes += size


class ArchiveEvent(msgspec.Struct, frozen=True):
    """An archive was written. `bytes` is its stored size, `raw_bytes` that of its lines."""

    stream: str
    domain: str
    count: int
    marked: int
    bytes: int
    raw_bytes: int
    first_id: str
    last_id: str
    destination: str
    key: str


class Announcer:
    """Publishes events about archives."""

    def __init__(self, streams: Streams, clock: Clock, tally: ArchiverTally, root: str = ROOT) -> None:
        self._publisher = Publisher(streams, clock)
        self._keys = streams.dedup_window > timedelta(0)
        self._tally = tally
        self._archived = f"{root}.events.system.archive"
        self._errors = f"{root}.events.system.error"

    async def archived(self, name: ArchiveName, facts: ArchiveFacts, size: int, destination: str) -> None:
        """An archive was written."""
        if name.subject in (self._archived, self._errors):
            return
        event = ArchiveEvent(
            name.subject,
            name.domain,
            facts.count,
            facts.marked,
            size,
            facts.raw_bytes,
            str(facts.first),
            str(facts.last),
            destination,
            str(name),
        )
        # After a crash another process announces the same archive again: an idempotency key deduplicates it.
        key = hashlib.sha256(str(name).encode("utf-8", "surrogateescape")).hexdigest() if self._keys else ""
        await self._publish(self._archived, msgspec.json.encode(event), key)

    async def alarm(self, subject: str, error: str, do: str) -> None:
        """Alerts the operator."""
        self._tally.alarms += 1
        await self._publish(self._errors, msgspec.json.encode(AlertEvent(subject, error, do, "archiver")), "")

    async def _publish(self, subject: str, payload: bytes, key: str) -> None:
        try:
            await self._publisher.publish(subject, payload, key=key)
        except (StoreUnavailable, StoreBroken):
            self._tally.events_lost += 1


@dataclass(frozen=True, slots=True)
class LagLimits:
    """The limits for one stream, and how often an alert is repeated."""

    messages: int = 10_000
    age: timedelta = timedelta(hours=1)
    repeat: timedelta = timedelta(hours=1)

    def exceeded(self, lag: Lag) -> bool:
        """Whether the limits are exceeded."""
        return lag.messages > self.messages or lag.seconds > self.age.total_seconds()


class LagWatch:
    """Measures the lag of streams."""

    def __init__(
        self, streams: Streams, cursors: Cursors, alerts: Alerts | None, group: str, limits: LagLimits
    ) -> None:
        self._streams = streams
        self._cursors = cursors
        self._alerts = alerts
        self._group = group
        self._limits = limits

    async def check(self, subjects: Iterable[str]) -> Lag:
        """The lag of all of these together: sums, and the age of the oldest message."""
        whole, told = Lag(), {} if self._alerts is None else await self._alerts.told()
        behind: set[str] = set()
        for subject in subjects:
            try:
                state = await self._streams.info(subject)
                lag = None if state is None else await self._lag(state)
            except StoreBroken:
                continue  # the archiver reports the error
            if state is None or lag is None:
                continue
            whole = Lag(whole.messages + lag.messages, whole.bytes + lag.bytes, max(whole.seconds, lag.seconds))
            if self._alerts is None or not self._limits.exceeded(lag):
                continue
            alert = self._alert(state, lag)
            behind.add(alert.name)
            if worth_telling(alert, told.get(alert.name), state.at, self._limits.repeat):
                await self._alerts.tell(alert, told.get(alert.name), state.at)
        for name, each in told.items():
            if self._alerts is not None and name not in behind:
                await self._settle_if_over(self._alerts, each.stream, name)
        return whole

    async def _settle_if_over(self, alerts: Alerts, subject: str, name: str) -> None:
        try:
            state = await self._streams.info(subject)
            # Another archiver may have the stream by now: its lag is measured before the alert is deleted.
            over = state is None or not self._limits.exceeded(await self._lag(state))
        except StoreBroken:
            return
        if over:
            told = (await alerts.told()).get(name)
            if told is not None:
                await alerts.settle(told)

    async def _lag(self, state: StreamState) -> Lag:
        cursor = await self._cursors.load(state.subject)
        after = START if cursor is None else cursor.after
        if state.last is None or state.last <= after:
            return Lag()
        first = await self._streams.chunk(state.subject, after, 1)
        if not len(first):
            return Lag()
        passed = None if cursor is None else cursor.passed
        if passed is None:
            passed = state.appended - next((g.lag or 0 for g in state.groups if g.name == self._group), state.length)
        messages = max(1, min(state.appended - passed, state.length))
        age = (first.at - first.id(0).at).total_seconds()
        return Lag(messages, state.bytes * messages // max(state.length, 1), max(age, 0.0))

    def _alert(self, state: StreamState, lag: Lag) -> Alert:
        return Alert(
            state.subject,
            f"archiving of {state.subject!r} lags behind",
            "check that an archiver runs, and its log; the store of archives may be down or slow",
            self._group,
            lag.messages,
            state.at - timedelta(seconds=lag.seconds),
            "lag",
        )
