"""The due index of leases: keys whose lease should have expired, read in pages, alternating between namespaces.

Each page comes from the index of one namespace, so that a namespace with very many entries does not delay the others.
The cursor records the position in each unfinished namespace. One page reads the index of at most EMPTY_NAMESPACES_MAX
namespaces, so that guards are checked regularly even where thousands of namespaces have no due entry.

`EveryKey` reads all keys of all namespaces in bounded pages: for retention, which has no index. No request, cleanup or
shutdown uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from wrasse.leases.core import leases_in
from wrasse.leases.lease import KeyRecord, decode_listed
from wrasse.leases.leases import Leases
from wrasse.ports.page import Page, no_cursor
from wrasse.ports.records import Namespaces, Record, in_order

EMPTY_NAMESPACES_MAX = 50  # namespaces that one page may read without finding an entry
_APART = "\n"  # neither namespaces nor stored names have one
UNFINISHED_MAX = 100  # namespaces read alternately; at this number no other is begun before one is finished


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A key and its record; None for a namespace without keys, and for a record that cannot be decoded."""

    namespace: str
    key: str
    kept: KeyRecord | None


@dataclass(frozen=True, slots=True)
class EveryKey:
    """Reads all keys, in order."""

    leases: Leases
    namespaces: Namespaces

    async def page(self, after: str | None, limit: int) -> Page[FoundKey]:
        """One page of the namespace that the cursor is in, or of the next that has keys."""
        name, place = _parse_key(after)
        at: datetime = self.leases.clock.now()
        for _ in range(EMPTY_NAMESPACES_MAX):
            if place is None:
                following = await self.namespaces.page(name or None, 1)
                if not following.items:
                    return Page((), (), at, more=False)
                name, place = following.items[0], ""
            page = await self.leases.records(leases_in(name)).page("", place or None, limit)
            at = page.at
            if len(page):
                return _key_page(name, page, [decode_listed(record) for record in page])
            place = None
        return Page((FoundKey(name, "", None),), (name,), at, more=True)


def _key_page(name: str, page: Page[Record], kept: Sequence[KeyRecord | None]) -> Page[FoundKey]:
    ends = len(page) - 1
    cursors = [
        name if number == ends and not page.more else f"{name}{_APART}{place}"
        for number, place in enumerate(page.cursors)
    ]
    found = tuple(FoundKey(name, record.key, each) for record, each in zip(page, kept, strict=True))
    return Page(found, tuple(cursors), page.at, more=True)


def _parse_key(text: str | None) -> tuple[str, str | None]:
    """The namespace and the position in it; no position: the namespace is finished."""
    if text is None:
        return "", None
    name, apart, place = text.partition(_APART)
    if not name:
        raise no_cursor(text)
    return name, place if apart else None


@dataclass(frozen=True, slots=True)
class EndedKey:
    """A key whose lease should have expired, its record, and the time of its index entry."""

    namespace: str
    key: str
    kept: KeyRecord
    entry_at: datetime


@dataclass(frozen=True, slots=True)
class QuietNamespaces:
    """Namespaces up to this one have no due entry."""

    namespace: str


@dataclass(frozen=True, slots=True)
class IndexCursor:
    """The position of a run: the namespace begun last, whether all are begun, the position in each unfinished one, and
    the unfinished one that was read last."""

    begun: str = ""
    all_begun: bool = False
    unfinished: Mapping[str, str] = field(default_factory=dict)
    turn: str = ""


@dataclass(frozen=True, slots=True)
class EndedKeys:
    """Reads due keys, alternating between namespaces."""

    leases: Leases
    namespaces: Namespaces

    async def page(self, after: str | None, limit: int) -> Page[EndedKey | QuietNamespaces]:
        """One page of the next namespace that has due entries."""
        state = IndexCursor() if after is None else _parse(after)
        at, name = self.leases.clock.now(), ""
        for _ in range(EMPTY_NAMESPACES_MAX):
            state, found = await self._next(state)
            if found is None:
                return Page((), (), at, more=False)
            name = found
            page = await self.leases.records(leases_in(name)).due(None, state.unfinished.get(name), limit)
            at = page.at
            rest = {each: place for each, place in state.unfinished.items() if each != name}
            state = replace(state, unfinished=rest)
            if len(page):
                return _ended_page(name, page, state)
        return Page((QuietNamespaces(name),), (_text(state),), at, more=True)

    async def _next(self, state: IndexCursor) -> tuple[IndexCursor, str | None]:
        """The next namespace to read: a new one below UNFINISHED_MAX, else an unfinished one."""
        if not state.all_begun and len(state.unfinished) < UNFINISHED_MAX:
            page = await self.namespaces.page(state.begun or None, 1)
            if page.items:
                return replace(state, begun=page.items[0]), page.items[0]
            state = replace(state, all_begun=True)
        left = sorted(state.unfinished, key=in_order)
        if not left:
            return state, None
        later = [name for name in left if in_order(name) > in_order(state.turn)]
        name = (later or left)[0]
        return replace(state, turn=name), name


def _ended_page(namespace: str, page: Page[Record], state: IndexCursor) -> Page[EndedKey | QuietNamespaces]:
    cursors = []
    for number, place in enumerate(page.cursors, 1):
        ended = number == len(page) and not page.more
        unfinished = state.unfinished if ended else {**state.unfinished, namespace: place}
        cursors.append(_text(replace(state, unfinished=unfinished)))
    found = tuple(_found(namespace, record, page.at) for record in page)
    return Page(found, tuple(cursors), page.at, more=True)


def _found(namespace: str, record: Record, at: datetime) -> EndedKey | QuietNamespaces:
    kept = decode_listed(record)  # a record that cannot be decoded is left to `wrasse leases fsck`
    return QuietNamespaces(namespace) if kept is None else EndedKey(namespace, record.key, kept, record.due_at or at)


def _text(state: IndexCursor) -> str:
    return msgspec.json.encode(state).decode()


def _parse(text: str) -> IndexCursor:
    try:
        return msgspec.json.decode(text, type=IndexCursor)
    except msgspec.DecodeError:
        raise no_cursor(text) from None
