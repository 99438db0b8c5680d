"""Restarting the archiving of a stream that was set back: a new epoch for the entries that are in no archive yet.

After a failover or a restore, a stream is the beginning of what it was, followed by new entries. Its entries are
compared with the archives, from the first that still exists to the first that no archive has: the new epoch begins
before that one. No entry of the stream is skipped, and none is archived twice.

`replay` publishes archives into a stream again: each message once if the backend has idempotency keys, in order,
unchanged. Bodies and fields are appended as archived, byte for byte, so a message keeps its id. The idempotency key of
an entry is derived from its origin: repeating an interrupted replay within the backend's window adds nothing twice;
later, or without keys, consumers can recognise messages by their id.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from wrasse.archives.cursor import Cursor, Cursors
from wrasse.archives.drain import entries_after, same_entry
from wrasse.archives.reader import Archived, facts_at, list_archives, newest, read_archive
from wrasse.archives.rule import Rule
from wrasse.errors import Refused, UsageError
from wrasse.ports.streams import START, Draft, Entry, EntryId, Streams

_BATCH = 500
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ArchiveReplayResult:
    """The totals of a replay."""

    messages: int
    bytes: int


async def replay(
    messages: AsyncIterator[Archived],
    streams: Streams | None,
    into: str | None,
    told: Callable[[int], None] = lambda count: None,
) -> ArchiveReplayResult:
    """Appends messages to the stream `into`, or each to its original one; without `streams` it only counts."""
    keyed = streams is not None and streams.dedup_window > timedelta(0)
    count = size = held = 0
    drafts: list[Draft] = []
    async for archived in messages:
        entry = archived.entry
        subject = into or entry.subject
        key = _key(archived, subject) if keyed else ""
        drafts.append(Draft(subject, entry.body, key, entry.fields))
        count, size, held = count + 1, size + len(entry.body), held + len(entry.body)
        if len(drafts) >= _BATCH or held >= _BATCH_BYTES:
            await _append(streams, drafts, told)
            drafts, held = [], 0
    await _append(streams, drafts, told)
    return ArchiveReplayResult(count, size)


async def _append(streams: Streams | None, drafts: list[Draft], told: Callable[[int], None]) -> None:
    if streams is not None and drafts:
        await streams.append(drafts)
    told(len(drafts))


def _key(archived: Archived, subject: str) -> str:
    entry = archived.entry
    origin = f"{entry.subject} {entry.id} {archived.key} {subject}"
    return f"replay:{hashlib.sha256(origin.encode('utf-8', 'surrogateescape')).hexdigest()}"


_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Restart:
    """A planned restart: the new epoch, the entry it begins after, how many entries of the stream it will contain, and
    how many archived messages the stream has lost."""

    subject: str
    epoch: int
    after: EntryId
    new: int
    gone: int
    cursor: Cursor


async def plan_restart(streams: Streams, cursors: Cursors, rule: Rule, subject: str, group: str) -> Restart:
    """Determines where a new epoch begins. Changes nothing."""
    cursor, state = await cursors.load(subject), await streams.info(subject)
    if cursor is None:
        last = await newest(rule.objects, rule.prefix, rule.domain_of(subject), subject)
        # The cursor was lost with its stream: only the archives remain.
        cursor = None if last is None else Cursor(subject, START, None, epoch=last.name.epoch)
    if cursor is None or state is None:
        raise UsageError(f"the stream {subject!r} is not there, or was never archived", do="see `wrasse streams info`")
    floor = next((each.floor for each in state.groups if each.name == group), START)
    common, gone = await _compared(streams, rule, subject, cursor.epoch, floor)
    after = common or (state.last or START if state.first is None else state.first.previous)
    if floor > after:
        raise Refused(
            f"the group {group!r} of {subject!r} is at {floor}, but stream and archives agree only up to {after}",
            do="restore the missing archives first: `wrasse archives verify` names them",
        )
    new = await _count(streams, subject, after)
    moved = replace(
        cursor, after=after, passed=state.appended - new, key=None, epoch=cursor.epoch + 1, history=state.history
    )
    return Restart(subject, moved.epoch, after, new, gone, moved)


async def restart(cursors: Cursors, planned: Restart) -> None:
    """Begins the epoch; Refused if the cursor has changed since the plan."""
    cursor = planned.cursor
    if await (cursors.move(cursor) if cursor.version else cursors.create(cursor)) is None:
        raise Refused(f"the cursor of {planned.subject!r} has moved meanwhile", do="try again: an archiver is running")


async def _compared(
    streams: Streams, rule: Rule, subject: str, epoch: int, floor: EntryId
) -> tuple[EntryId | None, int]:
    """The last entry up to which stream and archives agree, from the first of the stream on, and how many archived
    entries follow it."""
    common: EntryId | None = None
    parted, gone = False, 0
    entries = entries_after(streams, subject, START)
    ours = await anext(entries, None)
    first = None if ours is None else ours.id
    before = START if first is None else first.previous
    # Entries up to here were trimmed as allowed. Without a group: all that are older than the stream.
    trimmed = before if floor == START else floor if first is None else min(floor, before)
    async for entry in _archived(rule, subject, epoch, trimmed):
        if not parted and ours is not None and same_entry(entry, ours):
            common = entry.id
            ours = await anext(entries, None)
        elif entry.id > trimmed:
            # Entries trimmed from the front by other programs are no difference.
            parted, gone = parted or first is None or entry.id >= first, gone + 1
    return common, gone


async def _archived(rule: Rule, subject: str, epoch: int, since: EntryId) -> AsyncIterator[Entry]:
    """The archived entries of one epoch, beginning with the archive that goes beyond this entry."""
    async for each in list_archives(rule.objects, rule.prefix, subject, rule.domain_of(subject)):
        if each.name.epoch != epoch:
            continue
        facts = await facts_at(rule.objects, each.name)
        if facts is not None and facts.last > since:
            async for archived in read_archive(rule.objects, each.name):
                yield archived.entry


async def _count(streams: Streams, subject: str, after: EntryId) -> int:
    count, more = 0, True
    while more:
        chunk = await streams.chunk(subject, after, _PAGE)
        count, more = count + len(chunk), chunk.more
        after = chunk.id(len(chunk) - 1) if more else after
    return count
