"""Dead consumers: named consumers of a group that give no sign of life any more.

evidence      the consumer's own deadline has passed; of another program's, that it did nothing for a day, seen by two
              runs, and that it has no pending entries
grace         `gone_for` after that deadline, or between the two runs
precondition  still without a sign of life in the step that hands over its pending entries and removes it
if wrong      a live consumer is registered again by its next request; its pending entries go to others with their
              count kept, so a message may be handled twice; none is lost, and no group is ever removed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from wrasse.engine.sweep import Action, Keep
from wrasse.ports.groups import ConsumerState, Groups
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.streams.alerts import Alert, Alerts, Settle, Tell, worth_telling
from wrasse.streams.group_census import (
    Alive,
    Census,
    ConsumerChanged,
    Forgotten,
    IdleObservation,
    SilentConsumer,
    Suspect,
    Troubled,
)
from wrasse.streams.retention import RetentionTally


@dataclass(frozen=True, slots=True)
class IdleNote:
    """Store that this consumer of another program was found idle."""

    state: ConsumerState
    at: datetime
    instead_of: IdleObservation | None


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete this observation: its consumer is active again, or gone."""

    look: IdleObservation


@dataclass(frozen=True, slots=True)
class Retire:
    """Hand over this consumer's pending entries, and remove it with its observation."""

    state: ConsumerState
    look: IdleObservation | None


Change = IdleNote | Forget | Retire | Tell | Settle


@dataclass(frozen=True, slots=True)
class DeadConsumers:
    """Removes dead consumers, and alerts about groups without live consumers. On NATS none is removed: AckWait of the
    durable releases a dead consumer's entries. A group is alerted about there when entries are pending, no consumer
    waits, and nothing was delivered or acked for `stale_after`."""

    name: ClassVar[str] = "dead_consumers"
    each: ClassVar[bool] = True

    census: Census
    groups: Groups
    alerts: Alerts
    tally: RetentionTally
    gone_for: timedelta = timedelta(minutes=10)
    stale_after: timedelta = timedelta(minutes=10)
    alerts_every: timedelta = timedelta(hours=1)
    ignore: tuple[str, ...] = ()
    batch_max: int = 100

    async def find(self, after: str | None, limit: int) -> Page[Suspect]:
        return await self.census.page(after, limit, self.ignore)

    def decide(self, suspect: Suspect, at: datetime) -> Action[Change] | Keep:
        match suspect:
            case Alive():
                return Keep("AckWait of its durable frees what a dead consumer held" if suspect.served else "alive")
            case Forgotten():
                return Action("settle", suspect.told.stream, "the group is gone", Settle(suspect.told))
            case ConsumerChanged(look):
                return Action("forget", " ".join(look.name), "it is not silent any more, or gone", Forget(look))
            case Troubled():
                return self._about_group(suspect, at)
            case SilentConsumer():
                return self._about_consumer(suspect, at)

    async def apply(self, actions: Sequence[Action[Change]]) -> Sequence[Outcome]:
        return [await self._applied(action.change) for action in actions]

    def _about_consumer(self, suspect: SilentConsumer, at: datetime) -> Action[Change] | Keep:
        state = suspect.state
        name = f"{state.subject} {state.group} {state.consumer}"
        if at < state.until:
            return Keep("alive")
        if not state.foreign:
            if at - state.until < self.gone_for:
                return Keep("silent for a short while only")
            silent = f"silent for {_minutes(at - state.until)} min longer than it said; {state.pending} go to others"
            return Action("retire", name, silent, Retire(state, suspect.first))
        if state.pending:
            return Keep("another program's, and it holds something")
        if suspect.first is None:
            idle = f"another program's, idle for {_minutes(at - state.seen_at)} min: to be looked at once more"
            return Action("note", name, idle, IdleNote(state, at, suspect.older))
        if at - suspect.first.at < self.gone_for:
            return Keep("another program's, to be looked at once more")
        idle = f"another program's, idle for {_minutes(at - state.seen_at)} min, and it holds nothing"
        return Action("retire", name, idle, Retire(state, suspect.first))

    def _about_group(self, suspect: Troubled, at: datetime) -> Action[Change] | Keep:
        group, name = suspect.group, f"{suspect.subject} {suspect.group.name}"
        told_lost = next((each for each in suspect.told if each.name.endswith(f"\n{LOST}")), None)
        lost = group.lost - (0 if told_lost is None else told_lost.count)
        if lost > 0:
            tell = Tell(_lost(suspect, group.lost), told_lost, at, lost)
            return Action("alert", name, f"{lost} entries were trimmed while pending", tell)
        told = next((each for each in suspect.told if not each.name.endswith(f"\n{LOST}")), None)
        stale = _stale(suspect) if self._is_stale(suspect, at) else None
        if stale is not None and worth_telling(stale, told, at, self.alerts_every):
            return Action("alert", name, f"{stale.what}: {stale.count} pending", Tell(stale, told, at))
        if stale is None and told is not None:
            return Action("settle", name, f"no longer so: {told.what}", Settle(told))
        return Keep("alive" if stale is None else "no consumer reads the group; the alert was sent")

    def _is_stale(self, suspect: Troubled, at: datetime) -> bool:
        oldest = suspect.group.oldest_pending_at
        waits = suspect.group.pending > 0 and oldest is not None and at - oldest >= self.stale_after
        active = suspect.group.active_at
        quiet = active is None or at - active >= self.stale_after
        return waits and quiet and (suspect.alive_until is None or suspect.alive_until <= at)

    async def _applied(self, change: Change) -> Outcome:
        match change:
            case IdleNote():
                return await self.census.idle_observations.note(change.state, change.at, change.instead_of)
            case Forget():
                return await self.census.idle_observations.forget(change.look)
            case Retire(state, look):
                retired = await self.groups.retire(state.subject, state.group, state.consumer)
                if look is not None:
                    await self.census.idle_observations.forget(look)
                return retired
            case Tell():
                told = await self.alerts.tell(change.alert, change.told, change.at)
                self.tally.alerts += 1
                self.tally.trimmed_pending += change.lost if told is Outcome.DONE else 0
                return told
            case Settle():
                return await self.alerts.settle(change.told)


LOST = "lost"


def _lost(suspect: Troubled, count: int) -> Alert:
    return Alert(
        suspect.subject,
        "entries were trimmed while they were pending in this group: they will not be handled",
        "find out who trims this stream without regard to its groups, such as a MAXLEN of a producer",
        suspect.group.name,
        count,
        topic=LOST,
    )


def _stale(suspect: Troubled) -> Alert:
    group = suspect.group
    return Alert(
        suspect.subject,
        "entries of this group are pending, and no consumer of it lives",
        "start a consumer of this group, or acknowledge the entries that are not needed",
        group.name,
        group.pending,
        group.oldest_pending_at,
    )


def _minutes(time: timedelta) -> int:
    return time // timedelta(minutes=1)
