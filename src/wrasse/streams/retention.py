"""How far a stream may be trimmed, by age and never beyond what a protecting group has acked; and the trimming.

Rules are found by pattern: an exact subject has precedence over a pattern with `*`, that over one with `>`, and among
equals the longer one. A stream without a rule is never trimmed. The protecting groups depend on the stream: the
archiver protects archived streams and all dead letters, workers protect the queue of a task type. A protecting group
that does not exist protects everything. `judge` and the rules are pure.

`Trimmer` trims in bounded steps. Each is one atomic operation of the backend, which checks age and groups again. Steps
are repeated until nothing is left to trim or the time of one batch is over; the next run continues. Where a rule allows
data loss, entries that every group has acked are trimmed first, so that the rest can be counted as lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreUnavailable
from wrasse.ports.outcome import Outcome
from wrasse.ports.rules.subjects import matches
from wrasse.ports.streams import START, EntryId, GroupState, Streams, StreamState
from wrasse.streams.alerts import Alert, Alerts
from wrasse.streams.delivery import ROOT, is_dead_letter_subject
from wrasse.streams.publisher import Publisher

ARCHIVER = "archiver"
SLACK = 100  # without `exact` a stream is trimmed once it is over its age by this part of it
OVERDUE = 2  # times its age: then an alert names the group that prevents the trim
SLICE = 20.0  # seconds of one batch; the engine ends a call after sixty
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """How long entries of matching streams are kept. `protect` names groups that prevent a trim, besides those that
    always do; with `allow_data_loss` none does."""

    pattern: str
    age: timedelta
    exact: bool = False
    protect: tuple[str, ...] = ()
    allow_data_loss: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """The limits of one stream: its rule, and the groups that protect it."""

    rule: RetentionRule
    protect: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retention:
    """All rules, and the patterns of the streams that are archived."""

    rules: tuple[RetentionRule, ...] = ()
    archived: tuple[str, ...] = ()
    root: str = ROOT

    def of(self, subject: str) -> Bound | None:
        """The limits of this stream; None without a rule."""
        rule = rule_for(self.rules, subject)
        return None if rule is None else Bound(rule, self.protecting(subject, rule))

    def protecting(self, subject: str, rule: RetentionRule | None) -> tuple[str, ...]:
        """The groups that must have acked what is trimmed."""
        found = [] if rule is None else list(rule.protect)
        if is_dead_letter_subject(subject, self.root) or any(matches(pattern, subject) for pattern in self.archived):
            found.append(ARCHIVER)
        if (workers := workers_of(subject, self.root)) is not None:
            found.append(workers)
        return tuple(dict.fromkeys(found))


def rule_for(rules: Iterable[RetentionRule], subject: str) -> RetentionRule | None:
    """The rule for this subject."""
    fitting = [rule for rule in rules if matches(rule.pattern, subject)]
    return max(fitting, key=lambda rule: closeness(rule.pattern), default=None)


def closeness(pattern: str) -> tuple[bool, bool, int, tuple[bool, ...]]:
    """How specific a pattern is: greater is more specific. Among equally long ones, the one with the earlier exact
    token."""
    tokens = pattern.split(".")
    spelled = tuple(token not in ("*", ">") for token in tokens)
    return all(spelled), tokens[-1] != ">", sum(spelled) * 256 + len(pattern), spelled


def workers_of(subject: str, root: str = ROOT) -> str | None:
    """The group of workers for this stream, if it is the queue of a task type."""
    tokens = subject.split(".")
    if len(tokens) == 4 and tokens[0] == root and tokens[1] == "tasks" and tokens[3] == "queue":
        return f"{tokens[2]}-workers"
    return None


class Stand(StrEnum):
    """The state of a stream with regard to its retention."""

    YOUNG = "nothing is old enough"
    DUE = "due"
    HELD = "a group has not acked it"
    MISSING = "a protecting group is missing"
    UNPROVEN = "the floor of a protecting group proves nothing"


@dataclass(frozen=True, slots=True)
class Judged:
    """The state of a stream, and the responsible group. `overdue`: prevented for longer than OVERDUE times its age."""

    stand: Stand
    group: str = ""
    overdue: bool = False


def judge(state: StreamState, bound: Bound, at: datetime) -> Judged:
    """Whether something of a stream can be trimmed now."""
    rule = bound.rule
    slack = timedelta(0) if rule.exact else rule.age / SLACK
    if state.first is None or state.first >= horizon(at, rule.age + slack):
        return Judged(Stand.YOUNG)
    if rule.allow_data_loss:
        return Judged(Stand.DUE)
    unknown = next((group.name for group in state.groups if group.invalid), None)
    if unknown is not None:
        return Judged(Stand.HELD, unknown, state.first < horizon(at, rule.age * OVERDUE))
    floors = {group.name: group.floor for group in state.groups}
    missing = next((name for name in bound.protect if name not in floors), None)
    if missing is not None:
        return Judged(Stand.MISSING, missing)
    unproven = next((group.name for group in state.groups if group.name in bound.protect and not group.protects), None)
    if unproven is not None:
        return Judged(Stand.UNPROVEN, unproven)
    lowest = min(bound.protect, key=lambda name: floors[name], default="")
    if lowest and floors[lowest] < state.first:
        return Judged(Stand.HELD, lowest, state.first < horizon(at, rule.age * OVERDUE))
    return Judged(Stand.DUE)


def server_age_for(state: StreamState, bound: Bound | None) -> timedelta | None:
    """The age limit that the server itself should enforce: that of the rule, if no group reads or protects the stream.
    Never less than the rule says, and none where a group reads or protects it, even if data loss is allowed: lost
    entries are to be counted."""
    server = state.server_age
    if server is None or bound is None or bound.protect or state.groups or server.read:
        return None
    return max(bound.rule.age, server.least)


def horizon(at: datetime, age: timedelta) -> EntryId:
    """The first id that is not older than `age`."""
    ms = (to_micros(at) - age // _MICROSECOND) // 1_000
    return EntryId(ms, 0) if ms > 0 else START


@dataclass(frozen=True, slots=True)
class TrimOrder:
    """Trim this stream as far as allowed, up to `entries_max` entries per step."""

    subject: str
    bound: Bound
    entries_max: int


class RetentionTally:
    """Numbers that only grow, for metrics to read."""

    __slots__ = ("alerts", "lost", "trimmed", "trimmed_pending")

    def __init__(self) -> None:
        self.trimmed = 0  # entries, of which
        self.lost = 0  # some protecting group had not acked
        self.trimmed_pending = 0  # entries that another program trimmed while pending in a group
        self.alerts = 0


class Trimmer:
    """Trims streams of one backend."""

    def __init__(self, streams: Streams, alerts: Alerts, clock: Clock, tally: RetentionTally) -> None:
        self._streams = streams
        self._alerts = alerts
        self._clock = clock
        self._publisher = Publisher(streams, clock)
        self._removed: dict[str, int] = {}  # since the last call of `removed`
        self.tally = tally

    def ends(self) -> float:
        """When a batch that begins now ends."""
        return self._clock.monotonic() + SLICE

    async def trim(self, order: TrimOrder, ends: float) -> Outcome:
        """Trims one stream until `ends`; `conflict` if there was nothing to trim."""
        removed = await self._trim_steps(order, order.bound.protect, ends)
        if order.bound.rule.allow_data_loss and self._clock.monotonic() < ends:
            removed += await self._trim_unacked(order, ends)
        return Outcome.DONE if removed else Outcome.CONFLICT

    def removed(self) -> Mapping[str, int]:
        """How many entries were trimmed, by stream, since the last call."""
        removed, self._removed = self._removed, {}
        return removed

    async def publish(self, subject: str, payload: bytes) -> None:
        """Publishes an event; a failure is ignored."""
        with contextlib.suppress(StoreUnavailable):
            await self._publisher.publish(subject, payload)

    async def _trim_steps(self, order: TrimOrder, protect: Sequence[str], ends: float) -> int:
        removed = 0
        while True:
            done = await self._streams.trim(
                order.subject, age=order.bound.rule.age, below=None, protect=protect, limit=order.entries_max
            )
            removed += done.count
            self.tally.trimmed += done.count
            if done.count:
                self._removed[order.subject] = self._removed.get(order.subject, 0) + done.count
            if not done.more or self._clock.monotonic() >= ends:
                return removed

    async def _trim_unacked(self, order: TrimOrder, ends: float) -> int:
        """Trims entries that a protecting group has not acked, too."""
        before = await self._streams.info(order.subject)
        removed = await self._trim_steps(order, (), ends)
        after = await self._streams.info(order.subject)
        lost = lost_entries(before, after, order.bound.protect, removed)
        if lost:
            self.tally.lost += lost
            await self._alerts.say(
                Alert(
                    order.subject,
                    "entries were trimmed that a protecting group had not acked, as retention allows here",
                    "take allow_data_loss from its retention rule to keep them",
                    group=", ".join(order.bound.protect),
                    count=lost,
                )
            )
        return removed


def lost_entries(before: StreamState | None, after: StreamState | None, protect: Sequence[str], removed: int) -> int:
    """How many of the removed entries some protecting group had not acked: pending, or never read. Pure."""
    if before is None or after is None or not removed:
        return removed if protect else 0
    added = after.appended - before.appended
    later = {group.name: group for group in after.groups}
    earlier = {group.name: group for group in before.groups}
    return max((_unacked(earlier.get(name), later.get(name), added, removed) for name in protect), default=0)


def _unacked(before: GroupState | None, after: GroupState | None, added: int, removed: int) -> int:
    if before is None or after is None:
        return removed
    pending = max(before.pending - after.pending, 0)
    if before.lag is None or after.lag is None:
        return removed  # unknown: all of them, rather than too few
    return min(pending + max(before.lag + added - after.lag, 0), removed)
