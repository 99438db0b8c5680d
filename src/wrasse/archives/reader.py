"""Reading archives: in order, each message once, in constant memory.

Everything is checked while it is read: an unreadable line is an error, or reported to the caller, never silently
skipped. The other lines of its archive are read, up to where its bytes are damaged. Messages of one stream are in
order; several streams are read day by day.

Archives are listed in the order of their messages. Keys of one stream and one day sort by time, except that the last
number of a key has no fixed width: archives that start within one millisecond are sorted here. Days sort within either
layout, but not across both: after a change of the layout, two listings are merged. Memory: a page of each listing.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from datetime import date, datetime

from wrasse.archives.batch import ArchiveFacts, from_metadata
from wrasse.archives.codec import LINE_BYTES_MAX, Damaged, Decompressor, compression_of_key, entry_of, is_marked
from wrasse.archives.naming import HIVE, ArchiveName, listing_prefix, parse_name
from wrasse.errors import Gone, StoreBroken
from wrasse.ports.objects import ObjectInfo, Objects
from wrasse.ports.page import pages
from wrasse.ports.records import stored_name
from wrasse.ports.rules.subjects import is_wild, matches
from wrasse.ports.streams import Entry, EntryId

PAGE = 1_000


@dataclass(frozen=True, slots=True)
class ListedArchive:
    """One listed archive."""

    name: ArchiveName
    info: ObjectInfo

    @property
    def order(self) -> tuple[date, bytes, int, int, int]:
        """Its sort key among those of its domain, in either layout."""
        epoch, after = self.name.place
        return self.name.day, f"{stored_name(self.name.subject)}-after-".encode(), after.ms, epoch, after.seq


async def list_archives(
    objects: Objects, prefix: str, pattern: str, domain: str | None = None
) -> AsyncIterator[ListedArchive]:
    """The archives of all matching streams: domain by domain and day by day, each stream's in order. Other objects are
    skipped. A known `domain` makes the listing shorter."""
    if domain is not None:
        async for each in _of_domain(objects, prefix, listing_prefix(prefix, domain), pattern):
            yield each
        return
    root, after = listing_prefix(prefix, None), ""
    while found := (await objects.page(root, after or None, 1)).items:
        stored = found[0].key.removeprefix(root).partition("/")[0]
        async for each in _of_domain(objects, prefix, f"{root}{stored}/", pattern):
            yield each
        after = f"{root}{stored}0"  # sorts after all keys that begin with the domain and a slash


async def _of_domain(objects: Objects, prefix: str, place: str, pattern: str) -> AsyncIterator[ListedArchive]:
    """The archives below one prefix, in both layouts."""
    slashes = _ordered(objects, prefix, place, pattern, f"{place}{HIVE}")
    hive = _ordered(objects, prefix, f"{place}{HIVE}", pattern)
    one, other = await anext(slashes, None), await anext(hive, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.order <= other.order):
            assert one is not None, "one of both is there"
            yield one
            one = await anext(slashes, None)
        else:
            yield other
            other = await anext(hive, None)


async def _ordered(
    objects: Objects, prefix: str, place: str, pattern: str, until: str | None = None
) -> AsyncIterator[ListedArchive]:
    """The archives of one layout, up to a key."""
    waiting: dict[str, list[ListedArchive]] = {}
    async for info in _listed(objects, place, until):
        name = parse_name(info.key, prefix)
        if name is None or not matches(pattern, name.subject):
            continue
        for stem in [stem for stem in waiting if not info.key.startswith(stem)]:
            for ready in sorted(waiting.pop(stem), key=_start):
                yield ready
        waiting.setdefault(name.stem, []).append(ListedArchive(name, info))
    for same in waiting.values():
        for ready in sorted(same, key=_start):
            yield ready


async def _listed(objects: Objects, place: str, until: str | None) -> AsyncIterator[ObjectInfo]:
    async for page in pages(lambda after: objects.page(place, after, PAGE)):
        for info in page:
            if until is not None and info.key >= until:
                return
            yield info


def _start(archive: ListedArchive) -> tuple[int, EntryId]:
    return archive.name.place


async def newest(objects: Objects, prefix: str, domain: str, subject: str) -> ListedArchive | None:
    """The newest archive of one stream."""
    assert not is_wild(subject), "one stream"
    found: ListedArchive | None = None
    async for each in list_archives(objects, prefix, subject, domain):
        if found is None or each.name.place >= found.name.place:
            found = each
    return found


@dataclass(frozen=True, slots=True)
class Archived:
    """One message of an archive. `marked`: it was archived whole, because it is not a plain envelope."""

    entry: Entry
    marked: bool
    key: str


@dataclass(frozen=True, slots=True)
class BadLine:
    """An unreadable line of an archive, counted from 1; where bytes are missing or damaged, the first affected one."""

    key: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


async def read(
    objects: Objects,
    prefix: str,
    pattern: str,
    *,
    domain: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    report: Callable[[BadLine], None] | None = None,
) -> AsyncIterator[Archived]:
    """The messages of all matching streams, appended at or after `since` and before `until`. Unreadable lines go to
    `report`; without it, the first one raises StoreBroken."""
    seen: dict[tuple[str, int], EntryId] = {}  # a message is returned once, even if two archives have it
    async for each in list_archives(objects, prefix, pattern, domain):
        subject = each.name.subject, each.name.epoch
        if until is not None and each.name.after.at >= until:
            continue
        if since is not None and await _ends_before(objects, each.name, since):
            continue
        async for archived in read_archive(objects, each.name, report):
            id, at = archived.entry.id, archived.entry.id.at
            if (subject in seen and id <= seen[subject]) or (until is not None and at >= until):
                continue
            seen[subject] = id
            if since is None or at >= since:
                yield archived


async def read_archive(
    objects: Objects, name: ArchiveName, report: Callable[[BadLine], None] | None = None
) -> AsyncGenerator[Archived, None]:
    """The messages of one archive; `report` as in `read`."""
    async for line, entry in _entries(objects, name):
        if not isinstance(entry, BadLine):
            yield Archived(entry, is_marked(line), str(name))
        elif report is not None:
            report(entry)
        else:
            raise _broken(str(name), str(entry))


async def _entries(objects: Objects, name: ArchiveName) -> AsyncIterator[tuple[bytes, Entry | BadLine]]:
    """The lines of one archive, each with its entry or its error."""
    key, number, last = str(name), 0, name.after
    try:
        async for line in lines_at(objects, key):
            number += 1
            try:
                entry = entry_of(line, name.subject)
            except StoreBroken:
                yield line, BadLine(key, number, "it is not a line of an archive")
                continue
            if entry.subject != name.subject or entry.id <= last:
                yield line, BadLine(key, number, "it is not in order, or of another stream")
                continue
            last = entry.id
            yield line, entry
    except StoreBroken as why:
        yield b"", BadLine(key, number + 1, error_text(why, key))
        return
    if not number:
        yield b"", BadLine(key, 1, "the archive holds no message")


async def _ends_before(objects: Objects, name: ArchiveName, since: datetime) -> bool:
    """Whether all of an archive is older; an unreadable one is read, which reports its error."""
    try:
        facts = await facts_at(objects, name)
    except StoreBroken:
        return False
    return facts is not None and facts.last.at < since


async def lines_at(objects: Objects, key: str) -> AsyncIterator[bytes]:
    """The lines of one archive, without their ends; StoreBroken if it is damaged."""
    rest, size = list[bytes](), 0  # the line that has not ended yet, in pieces
    decompressor = Decompressor(compression_of_key(key))
    try:
        async for chunk in objects.read(key):
            for data in decompressor.decompress(chunk):
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
    if not decompressor.ended:
        raise _broken(key, "it does not end where it should")
    if rest:
        raise _broken(key, "its last line has no end")


async def facts_at(objects: Objects, name: ArchiveName) -> ArchiveFacts | None:
    """The metadata of an archive, or if a copy lost it, facts computed from its bytes; None if it does not exist."""
    head = await objects.head(str(name))
    if head is None:
        return None
    return from_metadata(head.metadata) or await scan(objects, name)


async def scan(objects: Objects, name: ArchiveName) -> ArchiveFacts | None:
    """The facts of an archive, from its bytes alone; None if it does not exist, StoreBroken if it is damaged."""
    first = last = None
    count = marked = size = 0
    digest = hashlib.sha256()
    try:
        async for line, entry in _entries(objects, name):
            if isinstance(entry, BadLine):
                raise _broken(str(name), str(entry))
            digest.update(line + b"\n")
            first, last = first or entry.id, entry.id
            count, marked, size = count + 1, marked + is_marked(line), size + len(line) + 1
    except Gone:
        return None
    assert first is not None, "an archive without a message is a bad line"
    assert last is not None, "it has a first one"
    return ArchiveFacts(name.after, first, last, count, marked, size, digest.hexdigest(), None)


def error_text(why: StoreBroken, key: str) -> str:
    """The error of an archive, without its name."""
    return why.message.removeprefix(_error_prefix(key))


def _error_prefix(key: str) -> str:
    return f"the archive {key!r} is broken: "


def _broken(key: str, what: str) -> StoreBroken:
    return StoreBroken(f"{_error_prefix(key)}{what}", do="restore it from a copy of the store")
