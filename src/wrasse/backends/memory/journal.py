"""Journal in memory. The reference for what the port's header promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice, takewhile

from wrasse.backends.memory.ordered import Ordered
from wrasse.clock import Clock, to_micros
from wrasse.ports.journal import Intent, Line, LineFilter, SettledIntent, matches
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit

_ALL = ("all", "")
_OPEN = ("open", "")


class MemoryJournal:
    """All lines of one process, in memory, with an index for each kind of query."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: dict[str, Line] = {}
        self._ids: dict[tuple[str, str], Ordered[str]] = {}
        self._settled: Ordered[tuple[int, str]] = Ordered()  # by when they were written: settled lines may be dropped

    async def intend(self, intents: Sequence[Intent]) -> datetime:
        now = self._clock.now()
        for intent in intents:
            # A retry after a lost reply finds its lines there, and leaves them as they are.
            if intent.id not in self._lines:
                self._lines[intent.id] = Line(intent, now)
                for index in (*_indexes(intent), _OPEN):
                    self._ids.setdefault(index, Ordered()).add(intent.id)
        return now

    async def settle(self, outcomes: Sequence[SettledIntent]) -> None:
        now = self._clock.now()
        for settled in outcomes:
            line = self._lines.get(settled.id)
            if line is None or line.outcome not in (None, Outcome.UNKNOWN):
                continue
            if line.outcome is None:
                self._unlist(_OPEN, settled.id)
                self._settled.add((to_micros(line.intended_at), settled.id))
            self._lines[settled.id] = replace(line, outcome=settled.outcome, detail=settled.detail, settled_at=now)

    async def page(self, where: LineFilter, after: str | None, limit: int, *, newest: bool = False) -> Page[Line]:
        check_limit(limit, "lines")
        found = list(islice(self._matching(where, after, newest), limit + 1))
        return Page.of(found, limit, self._clock.now(), lambda line: line.intent.id)

    async def delete(self, before: datetime, limit: int) -> int:
        horizon = to_micros(before)
        old = list(islice(takewhile(lambda at: at[0] < horizon, self._settled.walk()), limit))
        for written, id in old:
            self._settled.remove((written, id))
            for index in _indexes(self._lines.pop(id).intent):
                self._unlist(index, id)
        return len(old)

    def _matching(self, where: LineFilter, after: str | None, newest: bool) -> Iterator[Line]:
        order = self._ids.get(_narrowest(where))
        ids = iter(()) if order is None else order.walk(after, newest=newest)
        return (line for id in ids if matches(line := self._lines[id], where))

    def _unlist(self, index: tuple[str, str], id: str) -> None:
        order = self._ids[index]
        order.remove(id)
        if not order:
            del self._ids[index]


def _indexes(intent: Intent) -> tuple[tuple[str, str], ...]:
    return _ALL, ("sweep", intent.sweep), ("run", intent.run), ("suspect", intent.suspect)


def _narrowest(where: LineFilter) -> tuple[str, str]:
    """The index that holds the fewest lines besides those that match."""
    if where.suspect is not None:
        return "suspect", where.suspect
    if where.open:
        return _OPEN
    if where.run is not None:
        return "run", where.run
    if where.sweep is not None:
        return "sweep", where.sweep
    return _ALL
