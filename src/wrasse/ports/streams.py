"""Streams: ordered logs of entries, each named by a subject. Groups of readers are in `groups.py`.

Promise. Entries of one stream have ids that only grow; an append is durable when it returns, all or none of a batch.
Bodies come back byte for byte. `trim` removes only what is older than `age` by the backend's own clock AND below the
floor of every protecting group, both judged in the same atomic step; a protecting group that does not exist trims
nothing. `chunk` gives what `read` gives, in the same order, byte for byte, in columns: for readers of millions of
entries.

Costs. append: one round trip a batch. read: one round trip a page, flat in the length of the stream. chunk: the same,
and no object per entry beyond its id and its body. trim: one round trip per `limit` entries.

Surveys reads the state of many streams together, for sweeps over all of them; where a backend has none,
`streams/group_census.py` asks for one stream after the other.

Promise. What `Streams.subjects` and `Streams.info` say of each, at about one moment; a stream that vanished in between
is left out.

Costs. A few round trips a page, flat in the number of its streams.

ServerAges sets what a server removes by age on its own, also while no sweep runs, and without regard to groups.
Elsewhere sweeps alone remove what is old.

Promise. Only a stream that wrasse made gets an age, only while no group and no durable consumer of another program
reads it, and none but ours is ever changed. The age is ended before a new group counts.

Costs. A few round trips per change; nothing while nothing changes.

Entries, their ids and drafts come by the hundred thousand a second, so they are frozen Structs instead of frozen
dataclasses: these are made five times as fast, and the garbage collector need not look at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from wrasse.bounded import MS_MAX
from wrasse.clock import from_micros
from wrasse.errors import TooLarge, UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.rules.subjects import check_subject

BODY_BYTES_MAX = 24 << 20  # 32 MiB in base64, which is what the file store of NATS keeps at most
FIELDS_BYTES_MAX = 64 << 10  # so that the largest entry still has room for why it became a dead letter
FIELDS_MAX = 3_000  # fields of an entry beside its body: Redis takes some 4,000 of a script
APPENDS_MAX = 10_000
KEY_BYTES_MAX = 255
SEQ_MAX = (1 << 63) - 1
TOO_LONG = "wrasse-too-long"  # stands, with its size, for an entry that no delivery can hold; the stream has it whole
PLAIN: Mapping[int, Mapping[str, bytes]] = {}


class EntryId(msgspec.Struct, frozen=True, order=True, gc=False):
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

    @property
    def at(self) -> datetime:
        """When it was appended. Another program may have chosen the id: what is beyond the calendar is its last day."""
        return from_micros(min(self.ms, MS_MAX) * 1_000)

    @property
    def previous(self) -> EntryId:
        """The highest id below this one."""
        return EntryId(self.ms, self.seq - 1) if self.seq else EntryId(max(self.ms - 1, 0), SEQ_MAX if self.ms else 0)


START = EntryId(0, 0)


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An entry to append. Two drafts of one subject with one `key` inside the backend's window make one entry.
    `fields` stand beside the body: the particulars of a dead letter."""

    subject: str
    body: bytes
    key: str = ""
    fields: Mapping[str, bytes] | None = None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One stored entry. `fields` holds what stands beside the body; where a foreign program wrote an entry that is
    none of ours, all of it, and then `body` is empty."""

    id: EntryId
    subject: str
    body: bytes
    fields: Mapping[str, bytes] | None = None


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group of one stream. Everything at or below `floor` is acked; `delivered` is how far it has read. The
    oldest pending entry was appended at `oldest_pending_at`; `lag` counts what is not delivered yet, None where the
    backend cannot tell. `lost` counts entries that were trimmed while they were pending here, by a trim that did not
    protect the group, where the backend notices that. `consumers` counts those that the group knows, or, where it knows
    none, those that wait for entries now; `active_at` is then when something was last delivered or acked. A group that
    does not `protect` has a floor which may pass entries that were never acked: no trim relies on it. `invalid` says
    why what the backend keeps of a group cannot be read: it counts as one that has acked nothing."""

    name: str
    floor: EntryId
    delivered: EntryId
    pending: int
    oldest_pending_at: datetime | None = None
    consumers: int = 0
    lag: int | None = None
    lost: int = 0
    protects: bool = True
    active_at: datetime | None = None
    invalid: str = ""


@dataclass(frozen=True, slots=True)
class ServerAge:
    """What the server of one stream does by itself. `age` is None where it keeps everything. `ours`: wrasse made the
    stream, and whatever age it has was set by wrasse. `read`: another program has a durable consumer there."""

    age: timedelta | None = None
    ours: bool = False
    read: bool = False
    least: timedelta = timedelta(0)  # the shortest age that the server accepts


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream in numbers. `appended` counts every entry it ever held. `history` is what the backend calls itself: it
    changes when what was stored may have gone back, by a failover or a restart; empty where that cannot be told.
    `server_age` is what the server removes by age on its own; None where no server does such a thing. Of a `work_queue`
    the server removes each entry as soon as a worker has acked it, also if others have not read it."""

    subject: str
    length: int
    bytes: int
    appended: int
    first: EntryId | None
    last: EntryId | None
    groups: tuple[GroupState, ...]
    at: datetime
    history: str = ""
    server_age: ServerAge | None = None
    work_queue: bool = False


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What one trim did. `floor` is how far it was allowed to go; `held_by` names the group that stopped it there, or
    the protecting group that is missing. `more` says that there is more to trim now."""

    count: int
    floor: EntryId
    held_by: str
    more: bool
    at: datetime


@dataclass(frozen=True, slots=True)
class EntryChunk:
    """Entries of one stream that follow each other. `ids` are written as `ms-seq`; `beside` holds, by place, the fields
    of those entries that have any. `at` is the backend's clock, `more` says that there was more to read."""

    subject: str
    ids: Sequence[bytes]
    bodies: Sequence[bytes]
    beside: Mapping[int, Mapping[str, bytes]]
    at: datetime
    more: bool

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.bodies), "every entry has an id and a body"

    def __len__(self) -> int:
        return len(self.ids)

    def id(self, place: int) -> EntryId:
        """The id at this place."""
        ms, _, seq = self.ids[place].partition(b"-")
        return EntryId(int(ms), int(seq))

    def entries(self, count: int) -> Iterator[Entry]:
        """The first entries, as values."""
        for place in range(count):
            yield Entry(self.id(place), self.subject, self.bodies[place], self.beside.get(place))


class Streams(Protocol):
    """The streams of a backend."""

    @property
    def dedup_window(self) -> timedelta:
        """How long a draft's key is remembered; zero where the backend has no such thing and refuses keys."""
        ...

    async def append(self, drafts: Sequence[Draft]) -> Sequence[EntryId]:
        """Appends all or none, in order; a draft whose key is known answers with the first entry's id."""
        ...

    async def read(self, subject: str, after: EntryId, limit: int) -> Page[Entry]:
        """Entries after this id, in order; this is no delivery."""
        ...

    async def chunk(self, subject: str, after: EntryId, limit: int) -> EntryChunk:
        """What `read` gives, in columns."""
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
        and never above the floor of a group in `protect`. What is removed is pending nowhere any more."""
        ...


class Surveys(Protocol):
    """The states of many streams at once."""

    async def survey(self, pattern: str, after: str | None, limit: int) -> Page[StreamState]:
        """Streams whose subjects match, in byte order, each with its groups. The cursors are subjects."""
        ...


class ServerAges(Protocol):
    """The ages that a server enforces. Where there are any, `StreamState.server_age` tells them."""

    async def keep_for(self, subject: str, age: timedelta | None) -> Outcome:
        """Has the server remove what is older than this by itself, None: nothing any more. `conflict` if the stream is
        not ours, if another program set its age, or if a group reads it, also one that came meanwhile."""
        ...


def check_drafts(drafts: Sequence[Draft]) -> None:
    """Refuses what no backend could keep, before anything is sent."""
    if not drafts:
        return
    if len(drafts) > APPENDS_MAX:
        raise UsageError(f"{len(drafts)} entries in one append", do=f"append at most {APPENDS_MAX} at once")
    for subject in {draft.subject for draft in drafts}:
        check_subject(subject)
    for draft in drafts:
        if not is_appendable(draft):
            fields = f" and {len(draft.fields)} fields" if draft.fields else ""
            raise TooLarge(
                f"an entry of {draft_bytes(draft)} bytes{fields} for {draft.subject!r}",
                do=f"entries hold at most {BODY_BYTES_MAX} bytes, and {FIELDS_BYTES_MAX} more in at most {FIELDS_MAX} "
                "fields; put the data elsewhere and send its name",
            )
        if draft.key and len(draft.key.encode()) > KEY_BYTES_MAX:
            raise UsageError(
                f"a key of {len(draft.key.encode())} bytes for {draft.subject!r}", do=f"use at most {KEY_BYTES_MAX}"
            )


def is_appendable(draft: Draft) -> bool:
    """Whether an entry of this size can be kept, delivered, and set aside as a dead letter."""
    if not draft.fields:
        return len(draft.body) <= BODY_BYTES_MAX
    return (
        len(draft.body) <= BODY_BYTES_MAX
        and len(draft.fields) <= FIELDS_MAX
        and draft_bytes(draft) <= BODY_BYTES_MAX + FIELDS_BYTES_MAX
    )


def draft_bytes(draft: Draft) -> int:
    """What an entry counts for in the size of its stream: its body and its fields."""
    beside = sum(len(name.encode()) + len(value) for name, value in draft.fields.items()) if draft.fields else 0
    return len(draft.body) + beside


def chunk_of(subject: str, entries: Sequence[Entry], at: datetime, *, more: bool) -> EntryChunk:
    """Entries in columns."""
    beside = {place: entry.fields for place, entry in enumerate(entries) if entry.fields}
    ids = [b"%d-%d" % (entry.id.ms, entry.id.seq) for entry in entries]
    return EntryChunk(subject, ids, [entry.body for entry in entries], beside, at, more)
