"""Draining one stream: read after the cursor, collect a batch, commit it. Every message ends in exactly one archive.

The commit has three steps. (1) The intent: the cursor record is set to {after, key}. (2) The archive is created at that
key, create-only. (3) The cursor record is set behind the archive's last entry. Then the group is marked, which permits
trimming, and the archive is announced. After a crash between two steps any archiver continues: if an archive exists at
the intent's key, it is adopted; if not, it is written there. Two concurrent archivers conflict at (1), (2) or (3); one
of them wins, and the other continues from what the winner wrote.

Entries read between two queries of a stream's state count only if both reached the same server (`StreamState.history`):
a failover in between may have set the stream back, and entries read before and after it are discarded.

`check_continuity` detects that a stream was set back: by a failover that lost entries, or by a restored backup. New
entries may then get ids at or below the cursor, and would never be read. So it is called before anything is read or
marked. A stream that ends before its archives, or ever had fewer entries than they have, was set back. After a change
of the server (`StreamState.history`) it may have grown past both already, and entries are counted: as many as were
archived must exist up to the cursor, and the cursor's own entry must exist unless it was trimmed. If all of them were
trimmed, as many must have been: a server that lost its disk has trimmed nothing.

`fill` reads, checks and compresses concurrently, with one chunk being read and one piece in a thread. All reads and
threads have ended when it returns.

`compared` checks an archive against its stream before an existing archive is adopted: it may have been written from a
stream that was since set back, together with the cursor. Then other entries have the same ids now, and continuing
behind that archive would lose them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from wrasse.archives.announce import Announcer, ArchiverTally
from wrasse.archives.batch import PIECE_BYTES, ArchiveBatch, ArchiveFacts, Sealed, facts_of, to_metadata
from wrasse.archives.cursor import Cursor, Cursors, StreamLeases
from wrasse.archives.naming import ArchiveName, check_name, day_of, parse_name
from wrasse.archives.reader import facts_at, newest, read_archive
from wrasse.archives.rule import Rule
from wrasse.errors import Refused, StoreBroken, StoreUnavailable
from wrasse.ports.groups import Groups, StartAt
from wrasse.ports.objects import Objects
from wrasse.ports.streams import START, Entry, EntryChunk, EntryId, GroupState, Streams, StreamState

_PAGE = 1_000


async def check_continuity(streams: Streams, cursor: Cursor, state: StreamState, group: str) -> None:
    """Raises Refused if the stream was set back."""
    last = state.last or START
    if last < cursor.after or (cursor.passed is not None and state.appended < cursor.passed):
        raise set_back(cursor, f"it ends at {last} and ever held {state.appended} entries")
    if cursor.history and not state.history:
        raise StoreUnavailable(
            f"it is unknown which server has {cursor.subject!r}: its connections change",
            do="check the servers of the streams",
        )
    if cursor.history in ("", state.history):
        return
    gone = state.appended - state.length
    if state.first is None or state.first > cursor.after:
        if cursor.passed is not None and gone < cursor.passed:
            raise set_back(
                cursor, f"it begins again at {state.first}, and only {gone} entries before that were trimmed"
            )
    elif cursor.after > START:
        found = await streams.read(cursor.subject, cursor.after.previous, 1)
        if not found.items or found.items[0].id != cursor.after:
            raise set_back(cursor, f"after a failover or a restart it has no entry {cursor.after} any more")
    beyond = await _beyond(streams, cursor, state, group)
    if beyond is not None and cursor.passed is not None and state.appended - beyond != cursor.passed:
        raise set_back(
            cursor,
            f"after a failover or a restart it held {state.appended - beyond} entries up to {cursor.after},"
            f" and {cursor.passed} were archived",
        )


async def check_archive(streams: Streams, subject: str, facts: ArchiveFacts, state: StreamState, group: str) -> Cursor:
    """The cursor that the newest archive of a stream would have left; Refused if it does not fit the stream as it is
    now. Called if nothing else says how far the stream is archived."""
    cursor = Cursor(subject, facts.last, facts.passed, history="of its writer")
    await check_continuity(streams, cursor, replace(state, history=state.history or "of this server"), group)
    return cursor


async def _beyond(streams: Streams, cursor: Cursor, state: StreamState, group: str) -> int | None:
    """How many entries follow the cursor; None where the backend cannot count."""
    mine = next((each for each in state.groups if each.name == group), None)
    if mine is None or mine.lag is None or mine.delivered > cursor.after:
        return None
    count, at = mine.lag, mine.delivered
    while at < cursor.after:
        chunk = await streams.chunk(cursor.subject, at, _PAGE)
        for place in range(len(chunk)):
            at = chunk.id(place)
            if at > cursor.after:
                break
            count -= 1
        if not chunk.more:
            break
    return count


def set_back(cursor: Cursor, why: str) -> Refused:
    """The alarm, with the way to continue."""
    return Refused(
        f"the stream {cursor.subject!r} was set back: {why}, and its archives end at {cursor.after}",
        do=f"see what was lost; then `wrasse archives restart {cursor.subject}` archives what is new in it",
    )


CHUNK_ENTRIES = 1_000  # entries per read
_AT_ONCE_BYTES = 64 << 10


async def fill(
    batch: ArchiveBatch, streams: Streams, subject: str, after: EntryId, stopping: asyncio.Event
) -> datetime | None:
    """Extends a batch with the entries after it (or after `after`, if it is empty) until it is complete or the stream
    ends; returns the backend's clock at the last read. Reads nothing once `stopping` is set."""
    try:
        async with asyncio.TaskGroup() as group:
            return await _Filling(batch, streams, subject, group, stopping).run(batch.last or after)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def sealed_of(batch: ArchiveBatch) -> Sealed:
    """The sealed batch; large ones are sealed in a thread."""
    return batch.seal() if batch.held < _AT_ONCE_BYTES else await asyncio.to_thread(batch.seal)


class _Filling:
    def __init__(
        self, batch: ArchiveBatch, streams: Streams, subject: str, group: asyncio.TaskGroup, stopping: asyncio.Event
    ) -> None:
        self._batch = batch
        self._streams = streams
        self._subject = subject
        self._group = group
        self._stopping = stopping
        self._compressing: asyncio.Task[None] | None = None

    async def run(self, after: EntryId) -> datetime | None:
        at: datetime | None = None
        reading = self._read(after, self._batch.room)
        while reading is not None:
            chunk = await reading
            at = chunk.at
            # Requested before this chunk is processed, so that the backend works concurrently.
            left = self._batch.room - len(chunk)
            reading = self._read(chunk.id(len(chunk) - 1), left) if chunk.more else None
            await asyncio.sleep(0)  # lets the new task start, since what follows rarely waits
            self._batch.extend(chunk)
            if self._batch.complete and reading is not None:
                await reading  # complete by bytes or day: the entries read ahead belong to the next batch
                break
            if self._batch.waiting >= PIECE_BYTES:
                await self._press()
        if self._compressing is not None:
            await self._compressing
        return at

    def _read(self, after: EntryId, room: int) -> asyncio.Task[EntryChunk] | None:
        if room <= 0 or self._stopping.is_set():
            return None
        return self._group.create_task(self._streams.chunk(self._subject, after, min(CHUNK_ENTRIES, room)))

    async def _press(self) -> None:
        compress: Callable[[list[bytes]], None] = self._batch.compress
        if self._compressing is not None:
            await self._compressing
        self._compressing = self._group.create_task(asyncio.to_thread(compress, self._batch.piece()))


async def entries_after(streams: Streams, subject: str, after: EntryId) -> AsyncIterator[Entry]:
    """The entries of a stream after an entry, in order."""
    more = True
    while more:
        chunk = await streams.chunk(subject, after, _PAGE)
        for entry in chunk.entries(len(chunk)):
            after = entry.id
            yield entry
        more = chunk.more


def same_entry(one: Entry, other: Entry) -> bool:
    """Whether two entries are identical, byte for byte."""
    return (one.id, one.body, dict(one.fields or {})) == (other.id, other.body, dict(other.fields or {}))


async def holds_all(streams: Streams, objects: Objects, name: ArchiveName, last: EntryId) -> bool:
    """Whether the archive has every entry of the stream between its ends. Trimmed entries are no difference."""
    return (await compared(streams, objects, name, last)).holds_all


@dataclass(frozen=True, slots=True)
class Compared:
    """Whether an archive has all entries of its stream in its range, and how many of its own the stream lacks."""

    holds_all: bool
    missing: int = 0


async def compared(streams: Streams, objects: Objects, name: ArchiveName, last: EntryId) -> Compared:
    """Compares an archive with its stream; missing entries are not counted to the end if they differ."""
    missing = 0
    async with aclosing(read_archive(objects, name)) as archived:
        there = await anext(archived, None)
        async for entry in entries_after(streams, name.subject, name.after):
            if entry.id > last:
                break
            while there is not None and there.entry.id < entry.id:
                there, missing = await anext(archived, None), missing + 1
            if there is None or not same_entry(there.entry, entry):
                return Compared(False)
            there = await anext(archived, None)
        while there is not None:
            there, missing = await anext(archived, None), missing + 1
    return Compared(True, missing)


GROUP = "archiver"
_One = TypeVar("_One")
_Other = TypeVar("_Other")


class Stepped(StrEnum):
    """How a step on one stream ended: nothing to do, collected but not due, another archiver's stream, or archived."""

    IDLE = "idle"
    WAITING = "waiting"
    ELSEWHERE = "elsewhere"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class Tools:
    """What draining any stream needs."""

    streams: Streams
    groups: Groups
    cursors: Cursors
    leases: StreamLeases
    announcer: Announcer
    tally: ArchiverTally
    writer: str
    stopping: asyncio.Event  # once set, nothing more is read


class Drain:
    """The archiving of one stream. Its memory may be dropped at any time."""

    def __init__(self, subject: str, rule: Rule, tools: Tools) -> None:
        self.subject = subject
        self.rule = rule
        self._tools = tools
        self._cursor: Cursor | None = None
        self._batch: ArchiveBatch | None = None
        self._ends = START  # the last entry of the stream, as last queried
        self._history = ""  # of the server that answered last
        self._overtaken = False  # whether an alarm said that the group is ahead of the archives
        self._marked = False  # whether the group was marked since this process began
        self._queue = False  # whether it is a work queue, archived with best effort

    @property
    def held(self) -> int:
        """Bytes of an open batch."""
        return 0 if self._batch is None else self._batch.held

    @property
    def open(self) -> bool:
        """Whether a batch is collected that is not written yet."""
        return self._batch is not None and self._batch.first is not None

    def forget(self) -> None:
        """Drops what is in memory: the next step reads what is stored."""
        self._cursor = self._batch = None

    async def step(self, *, flush: bool = False) -> Stepped:
        """Writes one archive at most. `flush`: also if the batch is not due yet. Raises Refused if continuing would
        lose or duplicate something; call `forget`, and retry later."""
        cursor = await self._checked(await self._current())
        if cursor is None:
            self.forget()
            return Stepped.ELSEWHERE
        if self._ends <= cursor.after:
            self._batch = None
            return Stepped.IDLE
        if not await self._tools.leases.acquire(self.subject):
            self.forget()
            return Stepped.ELSEWHERE
        if cursor.key is not None:
            if await self._take_over(cursor):
                return Stepped.MOVED
            flush = True  # an earlier intent decided that this batch is to be written
        codec = self.rule.form.codec if cursor.key is None else self._intended(cursor).form.codec
        batch = self._batch = self._batch or ArchiveBatch(self.rule.limits, codec)
        at = await fill(batch, self._tools.streams, self.subject, cursor.after, self._tools.stopping)
        if batch.first is None:
            return Stepped.IDLE
        if not flush and not (at is not None and batch.due(at)):
            return Stepped.WAITING
        self._batch = None
        await self._commit(cursor, batch, batch.first)
        return Stepped.MOVED

    async def _current(self) -> Cursor:
        if self._cursor is None:
            self._batch = None
            self._cursor = await self._tools.cursors.load(self.subject) or await self._first()
        return self._cursor

    async def _first(self) -> Cursor:
        """Creates the cursor of a stream that has none."""
        self._check_queue(await self._tools.streams.info(self.subject))
        # Joined before anything is read: from here on nothing is trimmed that is not archived.
        await self._tools.groups.join(self.subject, GROUP, StartAt(first=True), cursor=True)
        cursors = self._tools.cursors
        made = await cursors.create(await self._derived_cursor()) or await cursors.load(self.subject)
        if made is None:
            raise StoreUnavailable(
                f"the cursor of {self.subject!r} was deleted right after its creation", do="find what deletes records"
            )
        return made

    def _check_queue(self, state: StreamState | None) -> None:
        """Refuses a work queue, unless its archive may be incomplete."""
        self._queue = state is not None and state.work_queue
        if self._queue and not self.rule.best_effort:
            raise Refused(
                f"{self.subject!r} is a work queue: the server removes a message when a worker acks it, archived or"
                " not, so its archive cannot be complete",
                do="keep it in a stream with retention limits; or set archive_best_effort: true for it, and its"
                " archives are labelled incomplete and outside guarantee G6",
            )

    async def _derived_cursor(self) -> Cursor:
        """How far the stream is archived according to its group and its newest archive."""
        tools = self._tools
        floor = _group(await tools.streams.info(self.subject)).floor
        name, facts = await self._newest()
        after = floor if facts is None else max(floor, facts.last)
        state = await tools.streams.info(self.subject)
        if name is not None and facts is not None and state is not None and after > floor:
            # The group is behind this archive, which may be of a stream that was lost together with its cursor.
            found = await check_archive(tools.streams, self.subject, facts, state, GROUP)
            if not await holds_all(tools.streams, self.rule.objects, name, facts.last):
                raise set_back(found, "its newest archive has other entries than the stream")
            await tools.groups.mark(self.subject, GROUP, after)
            state = await tools.streams.info(self.subject)
        lag = _group(state).lag
        passed = None if state is None or state.work_queue or lag is None else state.appended - lag
        epoch = 1 if name is None else name.epoch
        return Cursor(self.subject, after, passed, epoch=epoch, history="" if state is None else state.history)

    async def _newest(self) -> tuple[ArchiveName | None, ArchiveFacts | None]:
        """The name and facts of the stream's newest archive."""
        newest_archive = await newest(
            self.rule.objects, self.rule.prefix, self.rule.domain_of(self.subject), self.subject
        )
        return (
            (None, None)
            if newest_archive is None
            else (newest_archive.name, await facts_at(self.rule.objects, newest_archive.name))
        )

    async def _checked(self, cursor: Cursor) -> Cursor | None:
        """The cursor, if it is current and fits this stream; None: read again."""
        tools = self._tools
        state = await tools.streams.info(self.subject)
        if state is None:
            return None
        self._ends, self._history = state.last or START, state.history
        self._check_queue(state)
        if self._queue:
            return cursor  # its workers remove what they acked: entries cannot be counted
        await check_continuity(tools.streams, cursor, state, GROUP)
        if state.history and cursor.history != state.history:
            cursor = self._cursor = replace(cursor, history=state.history)  # stored with the next intent
            self._batch = None  # collected from another server, whose entries this one may lack
        floor = next((each.floor for each in state.groups if each.name == GROUP), None)
        if floor is None:
            await tools.groups.join(self.subject, GROUP, StartAt(after=cursor.after), cursor=True)
        elif floor < cursor.after or not self._marked:
            # A crash or an outage came between the commit and the mark, or between the mark and its replication.
            await tools.groups.mark(self.subject, GROUP, cursor.after)
            self._marked = True
        gone = state.appended - state.length
        lost = 0 if cursor.passed is None else gone - cursor.passed
        if floor is None or floor <= cursor.after:
            self._overtaken = False
            if lost <= 0:
                return cursor
        return await self._check_losses(cursor, floor, gone, lost)

    async def _check_losses(self, cursor: Cursor, floor: EntryId | None, gone: int, lost: int) -> Cursor | None:
        """The group is ahead of the cursor, or more entries left the stream than were archived."""
        stored = await self._tools.cursors.load(self.subject)
        if stored is None or stored.version != cursor.version:
            return None  # another archiver moved on: nothing is wrong
        if floor is not None and floor > cursor.after:
            moved = None if self._overtaken else await self._caught_up(cursor)
            if moved is not None:
                self._cursor, self._batch = await self._tools.cursors.move(moved), None
                return self._cursor
            await self._alert_overtaken(floor)
            if lost <= 0:
                return cursor
        self._tools.tally.lost += lost
        # Kept in memory now and in the record with the next intent, so that the alarm is sent once and can be verified.
        self._cursor = replace(cursor, passed=gone)
        await self._tools.announcer.alarm(
            self.subject,
            f"{lost} entries of {self.subject!r} were trimmed before they could be archived",
            "see what trims this stream without protecting the group 'archiver'",
        )
        return self._cursor

    async def _caught_up(self, cursor: Cursor) -> Cursor | None:
        """Where the archives continue, if the cursor record is from a backup: later archives exist, and the first
        entries of the next may be trimmed, so that what is read now would get another name."""
        name, facts = await self._newest()
        if name is None or facts is None or (name.epoch, facts.last) <= (cursor.epoch, cursor.after):
            return None
        return replace(cursor, after=facts.last, passed=facts.passed, epoch=name.epoch)

    async def _alert_overtaken(self, floor: EntryId) -> None:
        """Another program acks in the archiver's group. What still exists is archived all the same."""
        if not self._overtaken:
            self._overtaken = True
            await self._tools.announcer.alarm(
                self.subject,
                f"the group {GROUP!r} of {self.subject!r} is at {floor}, ahead of every archive",
                "see what else reads in this group: what it acks may be trimmed before it is archived",
            )

    async def _take_over(self, cursor: Cursor) -> bool:
        """Adopts the archive that an intent names, if it exists."""
        name = self._intended(cursor)
        facts = await facts_at(self.rule.objects, name)
        if facts is None:
            return False
        self._batch = None
        await self._adopt(cursor, name, facts)
        return True

    async def _adopt(self, cursor: Cursor, name: ArchiveName, facts: ArchiveFacts) -> None:
        """Commits an existing archive, if it fits the stream as it is now."""
        found = await compared(self._tools.streams, self.rule.objects, name, facts.last)
        if not found.holds_all or await self._never_held(cursor, facts, found.missing):
            stored = await self._tools.cursors.load(self.subject)
            if stored is None or stored.version != cursor.version:
                self.forget()
                return
            raise set_back(cursor, f"the archive that follows {cursor.after} has other entries than the stream")
        await self._settled(cursor, name, facts)

    async def _never_held(self, cursor: Cursor, facts: ArchiveFacts, missing: int) -> bool:
        """Whether the stream never had so many entries of the archive that follows the cursor: then it was set back
        together with the cursor. Otherwise they were trimmed."""
        state = await self._tools.streams.info(self.subject) if missing else None
        if state is None or facts.passed is None:
            return False
        if state.first is not None and state.first <= cursor.after:
            return True  # a trim removes from the front
        return state.appended - state.length < facts.passed - (facts.count - missing)

    async def _steady(self) -> bool:
        """Whether all entries of this step came from one server."""
        if not self._history:
            return True
        state = await self._tools.streams.info(self.subject)
        return state is not None and state.history == self._history

    def _intended(self, cursor: Cursor) -> ArchiveName:
        assert cursor.key is not None, "there is an intent"
        # The prefix may have changed since: everything before the known parts is the prefix.
        name = parse_name(cursor.key)
        if name is None or name.subject != self.subject or name.place != (cursor.epoch, cursor.after):
            raise StoreBroken(
                f"the cursor of {self.subject!r} names an archive of another stream or position",
                do="delete that record: it is derived again from the group and the newest archive",
            )
        return name

    def _named(self, cursor: Cursor, first: EntryId) -> ArchiveName:
        """The name of the archive that begins with this entry."""
        rule = self.rule
        domain = rule.domain_of(self.subject)
        return check_name(
            ArchiveName(rule.prefix, domain, day_of(first), self.subject, cursor.after, cursor.epoch, rule.form)
        )

    async def _commit(self, cursor: Cursor, batch: ArchiveBatch, first: EntryId) -> None:
        name = self._named(cursor, first) if cursor.key is None else self._intended(cursor)
        intending = self._unchanged(cursor) if cursor.key else self._tools.cursors.intend(cursor, str(name))
        # The intent is written, and the stream queried again, while the last lines are compressed.
        (intended, steady), sealed = await _gather_two(_gather_two(intending, self._steady()), sealed_of(batch))
        if intended is None or not steady:
            self.forget()
            return
        cursor = intended
        facts = facts_of(sealed, cursor.after, cursor.passed, self._tools.writer, incomplete=self._queue)
        stored = await self.rule.objects.create(str(name), sealed.data, metadata=to_metadata(facts))
        if stored:
            self._tools.tally.count(sealed.count, len(sealed.data))
            await self._settled(cursor, name, facts, len(sealed.data))
            return
        # The archive exists, from another process or from our own write whose reply was lost: adopt it.
        there = await facts_at(self.rule.objects, name)
        if there is None:
            raise StoreUnavailable("an archive was neither stored nor found", do="check the store of archives")
        await self._adopt(cursor, name, there)

    async def _unchanged(self, cursor: Cursor) -> Cursor:
        return cursor

    async def _settled(self, cursor: Cursor, name: ArchiveName, facts: ArchiveFacts, size: int | None = None) -> None:
        """The third step, and what follows it."""
        if facts.start != cursor.after or facts.last <= cursor.after:
            raise StoreBroken(
                f"the archive after {cursor.after} of {self.subject!r} has the start {facts.start} in its metadata",
                do="see `wrasse archives verify`",
            )
        if facts.passed is None and cursor.passed is not None:
            facts = replace(facts, passed=cursor.passed + facts.count)
        self._cursor, steady = await _gather_two(self._tools.cursors.commit(cursor, facts), self._steady())
        if self._cursor is None:
            return  # the other process announces it
        if steady and not self._queue:
            await self._tools.groups.mark(self.subject, GROUP, facts.last)
        elif not steady:
            self.forget()  # a mark would permit trimming entries of another server: the next step checks first
        if size is None:
            head = await self.rule.objects.head(str(name))
            size = 0 if head is None else head.info.size
        await self._tools.announcer.archived(name, facts, size, self.rule.destination)


async def _gather_two(one: Coroutine[None, None, _One], other: Coroutine[None, None, _Other]) -> tuple[_One, _Other]:
    """Both results, awaited concurrently."""
    try:
        async with asyncio.TaskGroup() as group:
            first, second = group.create_task(one), group.create_task(other)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return first.result(), second.result()


def _group(state: StreamState | None) -> GroupState:
    groups: Sequence[GroupState] = () if state is None else state.groups
    found = next((each for each in groups if each.name == GROUP), None)
    if found is None:
        raise StoreUnavailable("the group of the archiver was deleted", do="find what deletes groups")
    return found
