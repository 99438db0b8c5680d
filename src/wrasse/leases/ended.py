"""Keys that the due index says should be looked at, namespace by namespace, each getting its turn.

Every look goes to the next namespace and reads one page of its index, so that a namespace with very many entries does
not keep the others waiting. The cursor remembers where each unfinished one stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from wrasse.errors import UsageError
from wrasse.leases.leases import Leases
from wrasse.leases.lessor import leases_in
from wrasse.leases.meta import Kept, decode
from wrasse.ports.namespaces import Namespaces, in_order
from wrasse.ports.page import Page
from wrasse.ports.records import Record


@dataclass(frozen=True, slots=True)
class EndedKey:
    """A key whose lease should have ended, as its record says it, and when the index said so."""

    namespace: str
    key: str
    kept: Kept
    entry_at: datetime


@dataclass(frozen=True, slots=True)
class Round:
    """Where a run is: the namespace visited last, where each unfinished one stopped, and whether all of them have
    been visited once."""

    last: str = ""
    unfinished: Mapping[str, str] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True, slots=True)
class EndedKeys:
    """Reads keys to look at, in turns."""

    leases: Leases
    namespaces: Namespaces

    async def page(self, after: str | None, limit: int) -> Page[EndedKey]:
        """One page of the next namespace that has something."""
        state = Round() if after is None else _parse(after)
        while True:
            namespace = await self._next(state)
            if namespace is None and not state.unfinished:
                return Page((), (), self.leases.clock.now(), more=False)
            if namespace is None:
                state = replace(state, last="", again=True)
                continue
            page = await self.leases.records(leases_in(namespace)).due(None, state.unfinished.get(namespace), limit)
            unfinished = {name: place for name, place in state.unfinished.items() if name != namespace}
            state = Round(namespace, unfinished, state.again)
            if len(page):
                return await self._shown(namespace, page, state)

    async def _shown(self, namespace: str, page: Page[Record], state: Round) -> Page[EndedKey]:
        cursors = []
        for number, place in enumerate(page.cursors, 1):
            ended = number == len(page) and not page.more
            unfinished = state.unfinished if ended else {**state.unfinished, namespace: place}
            cursors.append(_text(replace(state, unfinished=unfinished)))
        found = tuple(
            EndedKey(namespace, record.key, decode(record), record.due_at or page.at) for record in page
        )
        return Page(found, tuple(cursors), page.at, more=True)

    async def _next(self, state: Round) -> str | None:
        """The next namespace to visit: any, or, once all have been visited, one that is not finished."""
        if not state.again:
            page = await self.namespaces.page(state.last or None, 1)
            return page.items[0] if page.items else None
        left = sorted((name for name in state.unfinished if in_order(name) > in_order(state.last)), key=in_order)
        return left[0] if left else None


def _text(state: Round) -> str:
    return msgspec.json.encode(state).decode()


def _parse(text: str) -> Round:
    try:
        return msgspec.json.decode(text, type=Round)
    except msgspec.DecodeError:
        raise UsageError(f"{text[:40]!r} is not a cursor", do="use one that an earlier page gave") from None
