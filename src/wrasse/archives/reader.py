"""Reading archives back: in order, each message once, with constant memory.

What is read is checked on the way: a broken or cut archive is an error, never a shorter answer. Messages of one stream
come in its order; several streams come day by day.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from wrasse.archives.codec import Damaged, Unpress, codec_in
from wrasse.archives.facts import Facts, from_metadata
from wrasse.archives.lines import LINE_BYTES_MAX, entry_of, is_marked
from wrasse.archives.naming import ArchiveName, instant_of
from wrasse.archives.shelf import shelved
from wrasse.errors import Gone, StoreBroken
from wrasse.ports.objects import Objects
from wrasse.ports.streams import Entry, EntryId


@dataclass(frozen=True, slots=True)
class Archived:
    """One message out of an archive. `marked`: it was archived whole, since it is no plain envelope."""

    entry: Entry
    marked: bool
    key: str


async def read(
    objects: Objects,
    prefix: str,
    pattern: str,
    *,
    domain: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> AsyncIterator[Archived]:
    """The messages of all streams that match, appended at or after `since` and before `until`."""
    seen: dict[tuple[str, int], EntryId] = {}  # a message is given once, even where two archives hold it
    async for each in shelved(objects, prefix, pattern, domain):
        subject = each.name.subject, each.name.epoch
        if until is not None and instant_of(each.name.after) >= until:
            continue
        facts = await facts_at(objects, each.name) if since is not None else None
        if since is not None and facts is not None and instant_of(facts.last) < since:
            continue
        async for archived in read_archive(objects, each.name):
            id, at = archived.entry.id, instant_of(archived.entry.id)
            if (subject in seen and id <= seen[subject]) or (until is not None and at >= until):
                continue
            seen[subject] = id
            if since is None or at >= since:
                yield archived


async def read_archive(objects: Objects, name: ArchiveName) -> AsyncGenerator[Archived, None]:
    """The messages of one archive."""
    async for line in lines_at(objects, str(name)):
        yield Archived(_entry(line, name), is_marked(line), str(name))


async def lines_at(objects: Objects, key: str) -> AsyncIterator[bytes]:
    """The lines of one archive, without their ends; StoreBroken if it is damaged."""
    rest, size, unpress = list[bytes](), 0, Unpress(codec_in(key))  # the line that has not ended yet, in pieces
    try:
        async for chunk in objects.read(key):
            for data in unpress.unpack(chunk):
                *ends, begun = data.split(b"\n")
                for end in ends:
                    yield b"".join((*rest, end)) if rest else end
                    rest, size = [], 0
                if begun:
                    rest.append(begun)
                    size += len(begun)
                if size > LINE_BYTES_MAX:
                    raise _broken(key, f"it has a line of more than {LINE_BYTES_MAX} bytes, which no entry has")
    except Damaged as why:
        raise _broken(key, str(why)) from why
    if not unpress.ended:
        raise _broken(key, "it does not end where it should")
    if rest:
        raise _broken(key, "its last line has no end")


async def facts_at(objects: Objects, name: ArchiveName) -> Facts | None:
    """What an archive says about itself, or where a copy lost that, what its bytes say; None if it is not there."""
    head = await objects.head(str(name))
    if head is None:
        return None
    return from_metadata(head.metadata) or await scan(objects, name)


async def scan(objects: Objects, name: ArchiveName) -> Facts | None:
    """The facts of an archive from its bytes alone; None if it is not there, StoreBroken if it is damaged."""
    first = last = None
    count = marked = size = 0
    digest = hashlib.sha256()
    try:
        async for line in lines_at(objects, str(name)):
            digest.update(line + b"\n")
            entry = _entry(line, name)
            if entry.subject != name.subject or entry.id <= (last or name.after):
                raise _broken(str(name), "its messages are not in order, or of another stream")
            first, last = first or entry.id, entry.id
            count, marked, size = count + 1, marked + is_marked(line), size + len(line) + 1
    except Gone:
        return None
    if first is None or last is None:
        raise _broken(str(name), "it holds no message")
    return Facts(name.after, first, last, count, marked, size, digest.hexdigest(), None)


def spoilt(why: StoreBroken, key: str) -> str:
    """What is wrong with an archive, for whoever names it already."""
    return why.message.removeprefix(_called(key))


def _entry(line: bytes, name: ArchiveName) -> Entry:
    try:
        return entry_of(line, name.subject)
    except StoreBroken as why:
        raise _broken(str(name), "it has a line that is not of an archive") from why


def _called(key: str) -> str:
    return f"the archive {key!r} is broken: "


def _broken(key: str, what: str) -> StoreBroken:
    return StoreBroken(f"{_called(key)}{what}", do="bring it back from a copy of the store")
