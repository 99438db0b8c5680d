"""Streams: ordered logs of entries, each named by a subject.

Promise. Entries of one stream have ids that only grow; an append is durable when it returns, all or none of a batch.
Bodies come back byte for byte. `trim` removes only what is older than `age` by the backend's own clock AND below the
floor of every protecting group, both judged in the same atomic step; a protecting group that does not exist trims
nothing.

Costs. append: one round trip a batch. read: one round trip a page, flat in the length of the stream. trim: one round
trip per `limit` entries.

Groups of readers are in `groups.py`: what appends and trims is not what delivers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from wrasse.ports.page import Page

BODY_BYTES_MAX = 2 << 20
APPENDS_MAX = 10_000


@dataclass(frozen=True, slots=True, order=True)
class EntryId:
    """Where an entry is: milliseconds of its append by the backend's clock, and a number that makes it unique."""

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> EntryId:
        """Reads what `str` wrote."""
        ms, _, seq = text.partition("-")
        return cls(int(ms), int(seq or 0))


START = EntryId(0, 0)


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry to append. Two drafts with one `key` inside the backend's window make one entry."""

    subject: str
    body: bytes
    key: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored entry. `fields` holds what a foreign program wrote that is not an entry of ours; then `body` is
    empty."""

    id: EntryId
    subject: str
    body: bytes
    fields: Mapping[str, bytes] | None = None


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What one stream may hold at most; appends beyond `entries_max` or `bytes_max` are refused, never dropped."""

    entries_max: int | None = None
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group of one stream. Everything at or below `floor` is acked; `delivered` is how far it has read."""

    name: str
    floor: EntryId
    delivered: EntryId
    pending: int
    oldest_pending_at: datetime | None = None
    consumers: int = 0


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream in numbers. `appended` counts every entry it ever held."""

    subject: str
    length: int
    bytes: int
    appended: int
    first: EntryId | None
    last: EntryId | None
    groups: tuple[GroupState, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What one trim did. `floor` is how far it was allowed to go; `held_by` names the group that held it there, or
    the protecting group that is missing. `more` says that there is more to trim now."""

    count: int
    floor: EntryId
    held_by: str
    more: bool
    at: datetime


class Streams(Protocol):
    """The port."""

    @property
    def dedup_window(self) -> timedelta:
        """How long a draft's key is remembered; zero where the backend has no such thing and refuses keys."""
        ...

    async def ensure(self, subject: str, limits: StreamLimits) -> bool:
        """Makes the stream exist with these limits; False if it already was so."""
        ...

    async def append(self, drafts: Sequence[Draft]) -> Sequence[EntryId]:
        """Appends all or none, in order; a draft whose key is known answers with the first entry's id."""
        ...

    async def read(self, subject: str, after: EntryId, limit: int) -> Page[Entry]:
        """Entries after this id, in order, delivered to nobody."""
        ...

    async def info(self, subject: str) -> StreamState | None:
        """One stream with its groups."""
        ...

    async def subjects(self, pattern: str, after: str | None, limit: int) -> Page[str]:
        """Subjects that match, in byte order. `*` is one token, `>` one or more at the end."""
        ...

    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        """Removes up to `limit` entries from the start: older than `age`, and below `below`, whichever are given,
        and never above the floor of a group in `protect`."""
        ...
