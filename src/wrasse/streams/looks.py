"""What was seen to be idle before: consumers of other programs are only removed if two looks found the same.

A look is one record where engines keep theirs, so that the second look counts whoever takes it: a sweep that is started
for each of its runs, or whose process is started again more often than `gone_for`, would otherwise never remove one.
There is at most one per consumer; one that does not fit any more, or whose consumer is gone, is forgotten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import decoded
from wrasse.ports.groups import ConsumerState
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Record, Records

LOOKS = Collection.named("streams/looks")
_PAGE = 1_000
_PAGES_MAX = 10  # what stands behind them is seen when those before it are gone
_SAME = timedelta(seconds=1)  # by which two looks may differ about the same moment: it is told as an age

Name = tuple[str, str, str]  # subject, group, consumer


@dataclass(frozen=True, slots=True)
class Look:
    """A consumer as it was found: when, and since when it had done nothing; and its record."""

    at: datetime
    seen_at: datetime
    name: Name = ("", "", "")
    key: str = ""
    version: str = ""

    def fits(self, state: ConsumerState) -> bool:
        """Whether the consumer has done nothing since."""
        return state.seen_at - self.seen_at <= _SAME


class _Stored(msgspec.Struct, frozen=True):
    name: Name
    at: datetime
    seen_at: datetime


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(_Stored).decode


def name_of(state: ConsumerState) -> Name:
    """What a look at this consumer is known by."""
    return state.subject, state.group, state.consumer


class Looks:
    """The first look at each idle consumer."""

    __slots__ = ("_records",)

    def __init__(self, records: Records) -> None:
        self._records = records

    async def known(self) -> Mapping[Name, Look]:
        """Every look that was noted."""
        found: dict[Name, Look] = {}
        after: str | None = None
        for _ in range(_PAGES_MAX):
            page = await self._records.page("", after, _PAGE)
            found |= {look.name: look for record in page if (look := _look(record)) is not None}
            after = page.cursor
            if after is None:
                break
        return found

    async def note(self, state: ConsumerState, at: datetime, instead_of: Look | None = None) -> Outcome:
        """This look is the first one; `lost` if somebody else noted another one meanwhile."""
        name = name_of(state)
        value = _ENCODE(_Stored(name, at, state.seen_at))
        if instead_of is not None:
            return (await self._records.put(instead_of.key, value, at=instead_of.version)).outcome
        key = hashlib.sha256("\n".join(name).encode()).hexdigest()[:40]
        return (await self._records.create(key, value)).outcome

    async def forget(self, look: Look) -> Outcome:
        """It says nothing any more."""
        return (await self._records.delete(look.key, at=look.version)).outcome


def _look(record: Record) -> Look | None:
    try:
        stored = decoded(_DECODE, record.value)
    except ValueError:
        return None  # of another version of wrasse: that consumer is left alone
    return Look(stored.at, stored.seen_at, stored.name, record.key, record.version)
