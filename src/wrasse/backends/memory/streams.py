"""Streams in memory, and the logs that they share with Groups. The reference for what the port's header promises.

Every change is made without an await in between, so each method is atomic.

Invariants of a log: the entries are in the order of their ids, and the numbers in their ids have no gap; so an entry is
found by its number, and the unread entries of a group are counted without reading them. Of a group: a pending entry was
delivered and is still stored.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from wrasse.backends.memory.ordered import Ordered
from wrasse.clock import Clock, from_micros, to_micros
from wrasse.ports.page import Page, check_limit
from wrasse.ports.rules.subjects import check_pattern, check_subject, fixed_part, matches
from wrasse.ports.streams import (
    START,
    Draft,
    Entry,
    EntryChunk,
    EntryId,
    GroupState,
    StreamState,
    Trimmed,
    check_drafts,
    chunk_of,
    draft_bytes,
)

DEDUP_WINDOW = timedelta(minutes=2)
_MICROSECOND = timedelta(microseconds=1)


class MemoryStreams:
    """All streams of one process, in memory."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    @property
    def dedup_window(self) -> timedelta:
        return DEDUP_WINDOW

    async def append(self, drafts: Sequence[Draft]) -> Sequence[EntryId]:
        check_drafts(drafts)
        return self._logs.append(drafts, self._logs.now())

    async def read(self, subject: str, after: EntryId, limit: int) -> Page[Entry]:
        check_subject(subject)
        check_limit(limit, "entries")
        log = self._logs.find(subject)
        found = [] if log is None else list(islice(log.after(after), limit + 1))
        return Page.of(found, limit, self._logs.now(), lambda entry: str(entry.id))

    async def chunk(self, subject: str, after: EntryId, limit: int) -> EntryChunk:
        page = await self.read(subject, after, limit)
        return chunk_of(subject, page.items, page.at, more=page.more)

    async def info(self, subject: str) -> StreamState | None:
        check_subject(subject)
        log = self._logs.find(subject)
        return None if log is None else log.state(self._logs.now())

    async def subjects(self, pattern: str, after: str | None, limit: int) -> Page[str]:
        check_pattern(pattern)
        check_limit(limit, "streams")
        start = fixed_part(pattern)
        names = self._logs.names.walk_from(start) if after is None or after < start else self._logs.names.walk(after)
        found: list[str] = []
        for name in names:
            if not name.startswith(start) or len(found) > limit:
                break
            if matches(pattern, name):
                found.append(name)
        return Page.of(found, limit, self._logs.now(), str)

    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        check_subject(subject)
        check_limit(limit, "entries")
        now = self._logs.now()
        log = self._logs.find(subject)
        if log is None:
            return Trimmed(0, START, "", False, now)
        upto = log.last
        if age is not None:
            upto = min(upto, EntryId(max((to_micros(now) - age // _MICROSECOND) // 1_000, 0), 0).previous)
        if below is not None:
            upto = min(upto, below.previous)
        upto, held_by = _protected(log, protect, upto)
        count = log.trim(upto, limit)
        return Trimmed(count, upto, held_by, bool(log.entries) and log.entries[0].id <= upto, now)


def _protected(log: Log, protect: Sequence[str], upto: EntryId) -> tuple[EntryId, str]:
    """How far a trim may go, and the group that stops it there."""
    held_by = ""
    for name in protect:
        group = log.groups.get(name)
        if group is None:
            return START, name
        if group.floor < upto:
            upto, held_by = group.floor, name
    return upto, held_by


class Logs:
    """All logs of one backend, and the wakeups of those who wait for a change."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logs: dict[str, Log] = {}
        self.names: Ordered[str] = Ordered()
        self.wakeups: dict[asyncio.Event, frozenset[str]] = {}

    def now(self) -> datetime:
        """The backend's clock."""
        return self._clock.now()

    def find(self, subject: str) -> Log | None:
        """The log of this subject."""
        return self._logs.get(subject)

    def make(self, subject: str) -> Log:
        """The log of this subject, made if there is none."""
        log = self._logs.get(subject)
        if log is None:
            log = self._logs[subject] = Log(subject)
            self.names.add(subject)
        return log

    def append(self, drafts: Sequence[Draft], at: datetime) -> tuple[EntryId, ...]:
        """Stores a batch, and wakes waiting consumers."""
        ids = tuple(self.make(draft.subject).append(draft, at) for draft in drafts)
        self.fire({draft.subject for draft in drafts})
        return ids

    def fire(self, subjects: set[str]) -> None:
        """Wakes those who wait for one of these subjects."""
        for wakeup, wanted in self.wakeups.items():
            if not wanted.isdisjoint(subjects):
                wakeup.set()


class Log:
    """One stream."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.groups: dict[str, Group] = {}
        self.entries: list[Entry] = []
        self.bytes = 0
        self.last = START
        self._keys: dict[str, tuple[EntryId, datetime]] = {}
        self._keyed: deque[tuple[str, datetime]] = deque()

    def after(self, id: EntryId) -> Iterator[Entry]:
        """The entries beyond this id, in order."""
        return islice(self.entries, bisect_right(self.entries, id, key=_id), None)

    def count_after(self, id: EntryId) -> int:
        """How many entries are beyond this id."""
        return len(self.entries) - bisect_right(self.entries, id, key=_id)

    def get(self, id: EntryId) -> Entry | None:
        """The entry with this id."""
        found = next(self.after(id.previous), None)
        return found if found is not None and found.id == id else None

    def append(self, draft: Draft, at: datetime) -> EntryId:
        """Stores a draft, or finds the entry of its idempotency key."""
        if draft.key and (known := self.known(draft.key, at)) is not None:
            return known
        # The clock may stand still or step back; ids only grow.
        self.last = EntryId(max(to_micros(at) // 1_000, self.last.ms), self.last.seq + 1)
        self.entries.append(Entry(self.last, self.subject, draft.body, draft.fields))
        self.bytes += draft_bytes(draft)
        if draft.key:
            self._keys[draft.key] = (self.last, at)
            self._keyed.append((draft.key, at))
        return self.last

    def trim(self, upto: EntryId, limit: int) -> int:
        """Removes up to `limit` entries from the start, none above `upto`."""
        count = min(limit, len(self.entries) - self.count_after(upto))
        gone = self.entries[:count]
        if gone:
            del self.entries[:count]
            self.bytes -= sum(draft_bytes(Draft(e.subject, e.body, fields=e.fields)) for e in gone)
            for group in self.groups.values():
                group.drop_below(EntryId(gone[-1].id.ms, gone[-1].id.seq + 1))
        return count

    def state(self, at: datetime) -> StreamState:
        """The stream in numbers."""
        return StreamState(
            self.subject,
            length=len(self.entries),
            bytes=self.bytes,
            appended=self.last.seq,
            first=self.entries[0].id if self.entries else None,
            last=self.last if self.last != START else None,
            groups=tuple(self._group_state(self.groups[name]) for name in sorted(self.groups)),
            at=at,
        )

    def known(self, key: str, at: datetime) -> EntryId | None:
        """The id of the entry with this idempotency key, inside the window."""
        while self._keyed and at - self._keyed[0][1] >= DEDUP_WINDOW:
            old, noted_at = self._keyed.popleft()
            if self._keys[old][1] == noted_at:
                del self._keys[old]
        found = self._keys.get(key)
        return None if found is None else found[0]

    def _group_state(self, group: Group) -> GroupState:
        first = group.first()
        return GroupState(
            group.name,
            floor=group.floor,
            delivered=group.delivered,
            pending=len(group),
            oldest_pending_at=None if first is None else first.id.at,
            consumers=len(group.consumers),
            lag=self.count_after(group.delivered),
        )


def _id(entry: Entry) -> EntryId:
    return entry.id


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """An entry that was delivered and not acked. While `consumer` is empty it belongs to none and waits to be due."""

    id: EntryId
    consumer: str
    number: int
    until: datetime


@dataclass(frozen=True, slots=True)
class ConsumerSeen:
    """When a consumer was last active, and until when it counts as alive."""

    at: datetime
    until: datetime


class Group:
    """One group of one log."""

    def __init__(self, name: str, delivered: EntryId) -> None:
        self.name = name
        self.delivered = delivered
        self.consumers: dict[str, ConsumerSeen] = {}
        self._pending: dict[int, PendingEntry] = {}  # by the number in the id
        self._numbers: Ordered[int] = Ordered()
        self._due: Ordered[tuple[int, int]] = Ordered()  # deadline and number

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def floor(self) -> EntryId:
        """Everything at or below this is acked."""
        first = self.first()
        return self.delivered if first is None else first.id.previous

    def first(self) -> PendingEntry | None:
        """The lowest pending entry."""
        number = self._numbers.first()
        return None if number is None else self._pending[number]

    def find(self, id: EntryId) -> PendingEntry | None:
        """The pending entry with this id."""
        found = self._pending.get(id.seq)
        return found if found is not None and found.id == id else None

    def held(self, consumer: str) -> list[PendingEntry]:
        """The pending entries of this consumer."""
        return [pending for pending in self._pending.values() if pending.consumer == consumer]

    def due(self, at: datetime) -> Iterator[PendingEntry]:
        """The entries to be delivered again, longest overdue first."""
        now = to_micros(at)
        for until, number in self._due.walk():
            if until > now:
                return
            yield self._pending[number]

    def next_due_at(self) -> datetime | None:
        """When the next pending entry is to be delivered again."""
        first = self._due.first()
        return None if first is None else from_micros(first[0])

    def set(self, pending: PendingEntry) -> None:
        """Adds a pending entry, or replaces it."""
        self.drop(pending.id.seq)
        self._pending[pending.id.seq] = pending
        self._numbers.add(pending.id.seq)
        self._due.add((to_micros(pending.until), pending.id.seq))

    def drop(self, number: int) -> None:
        """Removes a pending entry."""
        old = self._pending.pop(number, None)
        if old is not None:
            self._numbers.remove(number)
            self._due.remove((to_micros(old.until), number))

    def drop_below(self, bound: EntryId) -> None:
        """Removes all pending entries below this id."""
        while (first := self.first()) is not None and first.id < bound:
            self.drop(first.id.seq)
