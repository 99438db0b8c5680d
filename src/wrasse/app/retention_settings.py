"""The settings of retention: how long streams keep their entries, as the design document writes it, and more. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, ClassVar

from wrasse.app.setting_key import Key
from wrasse.errors import WrasseError
from wrasse.ports.groups import check_group
from wrasse.ports.subjects import check_pattern
from wrasse.streams.retention import Retention, RetentionRule

STREAM_SWEEPS = ("aged_entries", "dead_consumers")  # which follow sweeper.interval unless told
RETENTION_KEYS = "age, exact, protect, allow_data_loss"


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long the entries of the streams are kept that one pattern matches. A duration alone is its age."""

    short: ClassVar[str] = "age"

    age: Annotated[timedelta, Key("how old entries may get", seed=True)] = timedelta(0)
    exact: Annotated[bool, Key("whether they go at that age, and not a hundredth of it later")] = False
    protect: Annotated[
        tuple[str, ...], Key("groups that must have acked what goes, besides those that always must")
    ] = ()
    allow_data_loss: Annotated[bool, Key("whether entries go that no protecting group has acked")] = False


def retention_of(rules: Mapping[str, RetentionSettings], archived: Sequence[str]) -> Retention:
    """The rules, for streams of which these patterns are archived."""
    return Retention(
        tuple(
            RetentionRule(pattern, own.age, own.exact, own.protect, own.allow_data_loss)
            for pattern, own in rules.items()
        ),
        tuple(archived),
    )


def retention_rules(rules: Mapping[str, RetentionSettings]) -> Iterator[tuple[bool, str, str, str]]:
    """What is right: whether it is, of which setting, what is wrong, and what to write."""
    for pattern, own in rules.items():
        why = _unfit(pattern, own)
        yield why is None, "retention", f"is not right: {why.message if why else ''}", why.do if why else ""
        yield (
            own.age > timedelta(0),
            "retention",
            f"keeps nothing of {pattern!r}: its age is missing or 0",
            "write a duration such as 7d, or remove the line: without a rule nothing is trimmed",
        )


def _unfit(pattern: str, own: RetentionSettings) -> WrasseError | None:
    try:
        check_pattern(pattern)
        for group in own.protect:
            check_group("a", group)
    except WrasseError as why:
        return why
    return None
