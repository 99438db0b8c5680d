"""What was seen to be idle before: consumers of other programs are only removed if two looks found the same.

Kept in memory and bounded: what is forgotten, by a restart or because there are very many, is looked at twice again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from wrasse.ports.groups import ConsumerState

LOOKS_MAX = 10_000
_SAME = timedelta(seconds=1)  # by which two looks may differ about the same moment: it is told as an age


@dataclass(frozen=True, slots=True)
class Look:
    """A consumer as it was found: when, and since when it had done nothing."""

    at: datetime
    seen_at: datetime


class Looks:
    """The first look at each idle consumer."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: OrderedDict[tuple[str, str, str], Look] = OrderedDict()

    def first(self, state: ConsumerState) -> Look | None:
        """When this consumer was first found as idle as it is now; None if it never was, or did something since."""
        look = self._first.get((state.subject, state.group, state.consumer))
        return look if look is not None and state.seen_at - look.seen_at <= _SAME else None

    def note(self, state: ConsumerState, at: datetime) -> None:
        """This look is the first one."""
        name = state.subject, state.group, state.consumer
        self._first[name] = Look(at, state.seen_at)
        self._first.move_to_end(name)
        while len(self._first) > LOOKS_MAX:
            self._first.popitem(last=False)

    def forget(self, state: ConsumerState) -> None:
        """It is gone."""
        self._first.pop((state.subject, state.group, state.consumer), None)
