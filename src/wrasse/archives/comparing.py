"""Whether an archive holds what its stream holds: asked before an archive that was found is taken for the truth.

It may have been written from a stream that a failover or a restore has since set back, together with the cursor. Then
what the stream holds now under the same ids was never archived, and going on behind that archive would lose it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from wrasse.archives.naming import ArchiveName
from wrasse.archives.reader import read_archive
from wrasse.ports.objects import Objects
from wrasse.ports.streams import Entry, EntryId, Streams

_PAGE = 1_000


async def entries_after(streams: Streams, subject: str, after: EntryId) -> AsyncIterator[Entry]:
    """What a stream holds after an entry, in order."""
    more = True
    while more:
        stretch = await streams.stretch(subject, after, _PAGE)
        for entry in stretch.entries(len(stretch)):
            after = entry.id
            yield entry
        more = stretch.more


def same_entry(one: Entry, other: Entry) -> bool:
    """Whether they are one entry, byte for byte."""
    return (one.id, one.body, dict(one.fields or {})) == (other.id, other.body, dict(other.fields or {}))


async def holds_all(streams: Streams, objects: Objects, name: ArchiveName, last: EntryId) -> bool:
    """Whether everything that the stream holds between both ends of an archive is in it. What was trimmed meanwhile is
    no difference."""
    return (await compared(streams, objects, name, last)).holds_all


@dataclass(frozen=True, slots=True)
class Compared:
    """Whether an archive holds all that its stream holds in its place, and how many of its own the stream has not."""

    holds_all: bool
    missing: int = 0


async def compared(streams: Streams, objects: Objects, name: ArchiveName, last: EntryId) -> Compared:
    """Compares an archive with its stream; what is missing is not counted to the end if they differ."""
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
