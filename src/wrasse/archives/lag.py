"""Archiving lag: messages, bytes and age of what is not archived, and an alert beyond limits.

It is measured by a task beside the archiving, since the lag of an archiver that cannot write matters most. An alert is
sent once, and again after the repeat interval; trimming continues below what is archived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from wrasse.archives.cursor import Cursors
from wrasse.archives.tally import Lag
from wrasse.errors import StoreBroken
from wrasse.ports.streams import START, Streams, StreamState
from wrasse.streams.alerts import Alert, Alerts, worth_telling


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

    async def look(self, subjects: Iterable[str]) -> Lag:
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
