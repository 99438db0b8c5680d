"""The archives in a store, listed in the order in which their messages were written.

Keys of one stream and one day sort by time, except that the last number of a key has no fixed width: archives that
start within one millisecond are put in order here. A listing holds no more in memory than those.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from wrasse.archives.naming import ArchiveName, listing_prefix, parse_name
from wrasse.ports.objects import ObjectInfo, Objects
from wrasse.ports.subjects import is_wild, matches

PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Shelved:
    """One archive as a listing shows it."""

    name: ArchiveName
    info: ObjectInfo


async def shelved(objects: Objects, prefix: str, pattern: str, domain: str | None = None) -> AsyncIterator[Shelved]:
    """The archives of all streams that match: day by day, each stream's in order. What is not an archive is passed
    over. `domain` where it is known makes the listing shorter."""
    waiting: dict[str, list[Shelved]] = {}
    after: str | None = None
    while True:
        page = await objects.page(listing_prefix(prefix, domain), after, PAGE)
        for info in page:
            name = parse_name(info.key, prefix)
            if name is None or not matches(pattern, name.subject):
                continue
            for stem in [stem for stem in waiting if not info.key.startswith(stem)]:
                for ready in _in_order(waiting.pop(stem)):
                    yield ready
            waiting.setdefault(name.stem, []).append(Shelved(name, info))
        after = page.cursor
        if after is None:
            break
    for same in waiting.values():
        for ready in _in_order(same):
            yield ready


def _in_order(same: list[Shelved]) -> list[Shelved]:
    return sorted(same, key=lambda each: each.name.place)


async def newest(objects: Objects, prefix: str, domain: str, subject: str) -> Shelved | None:
    """The last archive of one stream."""
    assert not is_wild(subject), "one stream"
    found: Shelved | None = None
    async for each in shelved(objects, prefix, subject, domain):
        if found is None or each.name.place >= found.name.place:
            found = each
    return found
