"""Going on after a stream was set back: a new epoch, which archives what is in the stream now and in no archive yet.

A stream that a failover or a restore set back is the beginning of what it was, and then whatever came after. Its
entries are compared with the archives from the first that is still there, until the first that no archive holds: the
new epoch begins before that one. Nothing in the stream is skipped, and nothing that both have is archived again.

Publishing archives into a stream again: each message once where the backend knows keys, in order, as it was.

Bodies and fields are appended as they were archived, byte for byte, so a message keeps its id. The key of an entry is
made of where it came from: whoever runs a replay again within the backend's window after an interruption adds nothing
twice; later, or where a backend has no keys, consumers know messages by their id.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from wrasse.archives.archive_list import list_archives, newest
from wrasse.archives.cursor import Cursor, Cursors
from wrasse.archives.drain import entries_after, same_entry
from wrasse.archives.reader import Archived, facts_at, read_archive
from wrasse.archives.rule import Rule
from wrasse.errors import Refused, UsageError
from wrasse.ports.streams import START, Draft, Entry, EntryId, Streams

_BATCH = 500
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ArchiveReplayResult:
    """What a replay came to."""

    messages: int
    bytes: int


async def replay(
    messages: AsyncIterator[Archived],
    streams: Streams | None,
    into: str | None,
    told: Callable[[int], None] = lambda count: None,
) -> ArchiveReplayResult:
    """Appends messages to the stream `into`, or each to the one it came from; without `streams` it only counts."""
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
    """What a restart comes to: the epoch that begins, after which entry, how many entries of the stream it will hold,
    and how many archived messages the stream has lost."""

    subject: str
    epoch: int
    after: EntryId
    new: int
    gone: int
    cursor: Cursor


async def plan_restart(streams: Streams, cursors: Cursors, rule: Rule, subject: str, group: str) -> Restart:
    """Finds out where a new epoch begins. Changes nothing."""
    cursor, state = await cursors.load(subject), await streams.info(subject)
    if cursor is None:
        last = await newest(rule.objects, rule.prefix, rule.domain_of(subject), subject)
        # Lost with its stream: its archives are all that is left of it.
        cursor = None if last is None else Cursor(subject, START, None, epoch=last.name.epoch)
    if cursor is None or state is None:
        raise UsageError(f"the stream {subject!r} is not there, or was never archived", do="see `wrasse streams info`")
    floor = next((each.floor for each in state.groups if each.name == group), START)
    common, gone = await _compared(streams, rule, subject, cursor.epoch, floor)
    after = common or (state.last or START if state.first is None else state.first.previous)
    if floor > after:
        raise Refused(
            f"the group {group!r} of {subject!r} is at {floor}, and its archives share nothing beyond {after}",
            do="bring the missing archives back first: `wrasse archives verify` names them",
        )
    new = await _count(streams, subject, after)
    moved = replace(
        cursor, after=after, passed=state.appended - new, key=None, epoch=cursor.epoch + 1, history=state.history
    )
    return Restart(subject, moved.epoch, after, new, gone, moved)


async def restart(cursors: Cursors, planned: Restart) -> None:
    """Begins the epoch; Refused if the cursor changed since it was planned."""
    cursor = planned.cursor
    if await (cursors.move(cursor) if cursor.version else cursors.create(cursor)) is None:
        raise Refused(f"the cursor of {planned.subject!r} has moved meanwhile", do="look again: an archiver is at work")


async def _compared(
    streams: Streams, rule: Rule, subject: str, epoch: int, floor: EntryId
) -> tuple[EntryId | None, int]:
    """The last entry up to which stream and archives are the same, from the first of the stream on, and how many of the
    archives' come after it."""
    common: EntryId | None = None
    parted, gone = False, 0
    entries = entries_after(streams, subject, START)
    ours = await anext(entries, None)
    first = None if ours is None else ours.id
    before = START if first is None else first.previous
    # Up to here it was trimmed, as it may be. Where no group tells, all that is older than the stream was.
    trimmed = before if floor == START else floor if first is None else min(floor, before)
    async for entry in _archived(rule, subject, epoch, trimmed):
        if not parted and ours is not None and same_entry(entry, ours):
            common = entry.id
            ours = await anext(entries, None)
        elif entry.id > trimmed:
            # What somebody else trimmed from the front tells nothing about the rest.
            parted, gone = parted or first is None or entry.id >= first, gone + 1
    return common, gone


async def _archived(rule: Rule, subject: str, epoch: int, since: EntryId) -> AsyncIterator[Entry]:
    """What archives of one epoch hold, from the one on that goes beyond this entry."""
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
