"""Listing the archives in a store, in the order of their messages.

Keys of one stream and one day sort by time, except that the last number of a key has no fixed width: archives that
start within one millisecond are sorted here. Days sort within either layout, but not across both: after a change of the
layout, two listings are merged. Memory: a page of each listing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date

from wrasse.archives.naming import HIVE, ArchiveName, listing_prefix, parse_name
from wrasse.ports.objects import ObjectInfo, Objects
from wrasse.ports.page import pages
from wrasse.ports.records import stored_name
from wrasse.ports.rules.subjects import is_wild, matches

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
            for ready in _in_order(waiting.pop(stem)):
                yield ready
        waiting.setdefault(name.stem, []).append(ListedArchive(name, info))
    for same in waiting.values():
        for ready in _in_order(same):
            yield ready


async def _listed(objects: Objects, place: str, until: str | None) -> AsyncIterator[ObjectInfo]:
    async for page in pages(lambda after: objects.page(place, after, PAGE)):
        for info in page:
            if until is not None and info.key >= until:
                return
            yield info


def _in_order(same: list[ListedArchive]) -> list[ListedArchive]:
    return sorted(same, key=lambda each: each.name.place)


async def newest(objects: Objects, prefix: str, domain: str, subject: str) -> ListedArchive | None:
    """The newest archive of one stream."""
    assert not is_wild(subject), "one stream"
    found: ListedArchive | None = None
    async for each in list_archives(objects, prefix, subject, domain):
        if found is None or each.name.place >= found.name.place:
            found = each
    return found
