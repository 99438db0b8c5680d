"""Aged entries: older than their stream's retention, and acked by every group that protects it.

evidence      the stream's first entry is older than its rule says, by the backend's clock
grace         the age of the rule, and unless it is exact a hundredth of it more
precondition  age and the floor of every protecting group, checked again in the step that trims
if wrong      with a rule that is too short, entries are gone that were still to be read; what an archiver or a worker
              group still needs is never trimmed, unless the rule allows it explicitly
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

import msgspec

from wrasse.duration import format_duration
from wrasse.engine.sweep import WIRED, Action, Keep
from wrasse.jobs.stream_tasks.events import SweepReport
from wrasse.jobs.stream_tasks.fields import SWEEPS
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.streams import ServerAges, StreamState, Surveys
from wrasse.streams.alerts import Alert, Alerts, SentAlert, Settle, Tell, worth_telling
from wrasse.streams.retention import (
    ARCHIVER,
    Bound,
    Judged,
    Retention,
    Stand,
    Trimmer,
    TrimOrder,
    judge,
    server_age_for,
)

PAGE = 1_000  # streams read at once


@dataclass(frozen=True, slots=True)
class AgedStream:
    """A stream with something to do: entries past their age, alerts sent about it, or a server that removes by age
    entries of the groups in `protected`."""

    state: StreamState
    bound: Bound | None
    told: tuple[SentAlert, ...]
    protected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherAge:
    """A stream whose server's maximal age differs from `wanted`; None: for ever."""

    subject: str
    wanted: timedelta | None
    why: str


@dataclass(frozen=True, slots=True)
class StaleAlert:
    """An alert about a stream that no longer exists."""

    told: SentAlert


@dataclass(frozen=True, slots=True)
class QuietStreams:
    """Streams up to this one have nothing to do."""

    subject: str


@dataclass(frozen=True, slots=True)
class SetAge:
    """Sets the server's maximal age of this stream, or removes it."""

    subject: str
    age: timedelta | None


Suspect = AgedStream | OtherAge | StaleAlert | QuietStreams
Change = TrimOrder | SetAge | Tell | Settle


@dataclass(frozen=True, slots=True)
class AgedEntries:
    """Trims streams to their retention, as far as protecting groups allow. A server that can remove by age gets the age
    of streams without groups, so that they stay within it while no sweep runs; the age is removed once a group
    exists."""

    name: ClassVar[str] = "aged_entries"
    each: ClassVar[bool] = True

    surveys: Surveys
    retention: Retention
    trimmer: Trimmer
    alerts: Alerts
    entries_max: int = 10_000
    alerts_every: timedelta = timedelta(hours=1)
    batch_max: int = 10
    ages: ServerAges | None = field(default=None, metadata=WIRED)

    async def find(self, after: str | None, limit: int) -> Page[Suspect]:
        page = await self.surveys.survey(">", after, PAGE)
        told = await self.alerts.told()
        last = None if not page.more else page.cursors[-1]
        found = [*self._worth(page, told), *_gone(page, told, after or "", last)]
        found.sort(key=lambda each: each[0])
        if len(found) > limit:
            return Page.cut(found, limit, page.at)
        if not found and len(page):
            found = [(page.cursors[-1], QuietStreams(page.cursors[-1]))]
        cursors = [at for at, _ in found]
        if last is not None:
            cursors[-1] = last  # nothing to check is between the last suspect and the end of this page
        return Page(tuple(suspect for _, suspect in found), tuple(cursors), page.at, page.more)

    def decide(self, suspect: Suspect, at: datetime) -> Action[Change] | Keep:
        if isinstance(suspect, QuietStreams):
            return Keep(Stand.YOUNG.value)
        if isinstance(suspect, StaleAlert):
            return Action("settle", suspect.told.stream, "the stream is gone", Settle(suspect.told))
        if isinstance(suspect, OtherAge):
            verb = "end_age" if suspect.wanted is None else "set_age"
            return Action(verb, suspect.subject, suspect.why, SetAge(suspect.subject, suspect.wanted))
        subject, bound = suspect.state.subject, suspect.bound
        found = Judged(Stand.YOUNG) if bound is None else judge(suspect.state, bound, at)
        told = {each.name: each for each in suspect.told}
        alerts = [alert for alert in (_alert(subject, found), _aged_by_others(suspect)) if alert is not None]
        for alert in alerts:
            if worth_telling(alert, told.get(alert.name), at, self.alerts_every):
                return Action("alert", subject, alert.what, Tell(alert, told.get(alert.name), at))
        over = next((each for each in suspect.told if each.name not in {alert.name for alert in alerts}), None)
        if over is not None:
            return Action("settle", subject, f"no longer so: {over.what}", Settle(over))
        if found.stand is not Stand.DUE or bound is None:
            return Keep("no rule matches it" if bound is None else found.stand.value)
        reason = f"entries older than {bound.rule.pattern!r} keeps them"
        if bound.rule.allow_data_loss and bound.protect:
            reason += f"; may lose what {' and '.join(bound.protect)} did not ack"
        return Action("trim", subject, reason, TrimOrder(subject, bound, self.entries_max))

    async def apply(self, actions: Sequence[Action[Change]]) -> Sequence[Outcome]:
        ends = self.trimmer.ends()
        outcomes = [await self._applied(action.change, ends) for action in actions]
        await self._report()
        return outcomes

    async def _report(self) -> None:
        """Publishes what was trimmed, as the sweep of tasks does what it moved."""
        # Not of the stream of reports itself, which would cause a report each time.
        removed = [count for subject, count in self.trimmer.removed().items() if subject != SWEEPS]
        if removed:
            event = SweepReport(0, 0, streams_trimmed=len(removed), entries_trimmed=sum(removed))
            await self.trimmer.publish(SWEEPS, msgspec.json.encode(event))

    async def _applied(self, change: Change, ends: float) -> Outcome:
        match change:
            case TrimOrder():
                return await self.trimmer.trim(change, ends)
            case SetAge():
                assert self.ages is not None, "found only where there are ages"
                return await self.ages.keep_for(change.subject, change.age)
            case Tell():
                self.trimmer.tally.alerts += 1
                return await self.alerts.tell(change.alert, change.told, change.at)
            case Settle():
                return await self.alerts.settle(change.told)

    def _worth(self, page: Page[StreamState], told: Mapping[str, SentAlert]) -> Iterator[tuple[str, Suspect]]:
        """The streams of a page that need a check."""
        by_stream: dict[str, list[SentAlert]] = {}
        for each in told.values():
            by_stream.setdefault(each.stream, []).append(each)
        for state in page:
            bound, known = self.retention.of(state.subject), tuple(by_stream.get(state.subject, ()))
            due = bound is not None and judge(state, bound, page.at).stand is not Stand.YOUNG
            protected = self._unasked(state, bound)
            if self.ages is not None and (other := _other_age(state, bound)) is not None:
                yield state.subject, other
            if due or known or protected:
                yield state.subject, AgedStream(state, bound, known, protected)

    def _unasked(self, state: StreamState, bound: Bound | None) -> tuple[str, ...]:
        """The groups that cannot protect a stream, since its server removes entries by an age that is not ours."""
        server = state.server_age
        if server is None or server.age is None or server.ours:
            return ()
        return self.retention.protecting(state.subject, None if bound is None else bound.rule)


def _other_age(state: StreamState, bound: Bound | None) -> OtherAge | None:
    """The age that the server should have, if it has another."""
    server, wanted = state.server_age, server_age_for(state, bound)
    if server is None or not server.ours or server.age == wanted:
        return None
    if wanted is None:
        why = "no rule matches it any more" if bound is None else "a group reads or protects it: it may only be trimmed"
    else:
        why = f"no group reads it: its server keeps it to {format_duration(wanted)}, also while no sweep runs"
    return OtherAge(state.subject, wanted, why)


def _gone(
    page: Page[StreamState], told: Mapping[str, SentAlert], after: str, last: str | None
) -> Iterator[tuple[str, Suspect]]:
    """Alerts about streams of this page's range that no longer exist."""
    there = {state.subject for state in page}
    for each in told.values():
        subject = each.stream
        if subject > after and (last is None or subject <= last) and subject not in there:
            yield subject, StaleAlert(each)


def _aged_by_others(suspect: AgedStream) -> Alert | None:
    if not suspect.protected:
        return None
    return Alert(
        suspect.state.subject,
        "the server removes entries of this stream by age, whether or not they were acked, and it was not wrasse that"
        " told it to",
        "take the maximal age from the stream: nats stream edit --max-age=0",
        ", ".join(suspect.protected),
        topic="max_age",
    )


def _alert(subject: str, found: Judged) -> Alert | None:
    group = found.group
    if found.stand is Stand.MISSING and group == ARCHIVER:
        return Alert(
            subject,
            "nothing of this stream is trimmed, although it is older than its retention: no archiver has read it",
            "start its archiver, or add it to archiver.streams; allow_data_loss in its retention rule gives it up",
            group,
        )
    if found.stand is Stand.MISSING:
        return Alert(
            subject,
            f"nothing of this stream is trimmed: its protecting group {group!r} does not exist",
            "start who reads it in that group, or take the group from its retention rule",
            group,
        )
    if found.stand is Stand.UNPROVEN:
        return Alert(
            subject,
            f"nothing of this stream is trimmed: its protecting group {group!r} gives up after some deliveries, so its"
            " floor may pass entries that are not acked",
            "take its limit of deliveries away, as wrasse doctor says, or the group from its retention rule",
            group,
        )
    if found.stand is Stand.HELD and found.overdue:
        return Alert(
            subject,
            f"entries twice as old as their retention are kept, since the group {group!r} has not acked them",
            "look at that group: wrasse streams info",
            group,
        )
    return None
