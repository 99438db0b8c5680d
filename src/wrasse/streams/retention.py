"""How far a stream may be trimmed: by age, and never beyond what a protecting group has acked. Pure.

Rules are found by pattern: an exact subject has precedence over a pattern with `*`, that over one with `>`, and among
equals the longer one. A stream without a rule is never trimmed. The protecting groups depend on the stream: the
archiver protects archived streams and all dead letters, workers protect the queue of a task type. A protecting group
that does not exist protects everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from wrasse.clock import to_micros
from wrasse.ports.rules.subjects import matches
from wrasse.ports.streams import START, EntryId, StreamState
from wrasse.streams.dead_letter import ROOT, is_dead_letter_subject

ARCHIVER = "archiver"
SLACK = 100  # without `exact` a stream is trimmed once it is over its age by this part of it
OVERDUE = 2  # times its age: then an alert names the group that prevents the trim
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
