"""Sightings in memory: the reference for what the port's header promises."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from wrasse.clock import Clock
from wrasse.ports.objects import raw_key
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit
from wrasse.ports.sightings import (
    Change,
    CompleteScan,
    NewSighting,
    Sighting,
    SightingChange,
    SightingState,
    Standing,
    check_marks,
)


@dataclass(slots=True)
class _Root:
    sightings: dict[str, Sighting] = field(default_factory=dict)
    last: CompleteScan | None = None
    value: bytes = b""
    version: int = 0


class MemorySightings:
    """The sightings of all roots."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._roots: dict[str, _Root] = {}

    async def standing(self, root: str) -> Standing:
        here = self._root(root)
        return Standing(self._clock.now(), here.last, here.value, here.version)

    async def write(self, root: str, value: bytes, *, at: int) -> bool:
        here = self._root(root)
        if here.version != at:
            return False
        here.value, here.version = value, at + 1
        return True

    async def page(
        self, root: str, after: str | None, limit: int, state: SightingState | None = None
    ) -> Page[Sighting]:
        check_limit(limit, "sightings")
        found = sorted(
            (each for each in self._root(root).sightings.values() if state in (None, each.state)),
            key=lambda each: raw_key(each.unit),
        )
        later = [each for each in found if after is None or raw_key(each.unit) > raw_key(after)]
        return Page.of(later, limit, self._clock.now(), lambda each: each.unit)

    async def get(self, root: str, units: Sequence[str]) -> Sequence[Sighting | None]:
        return [self._root(root).sightings.get(unit) for unit in units]

    async def commit(self, made: CompleteScan, changes: Iterable[Sequence[Change]]) -> bool:
        here = self._root(made.root)
        if made.number != (0 if here.last is None else here.last.number) + 1:
            return False
        after = dict(here.sightings)
        for batch in changes:
            for change in batch:
                unit = change.sighting.unit if isinstance(change, NewSighting) else change.unit
                if unit in after and after[unit].state is not SightingState.SEEN:
                    continue
                if isinstance(change, NewSighting):
                    after[unit] = change.sighting
                else:
                    after.pop(unit, None)
        here.sightings = after
        here.last = made
        return True

    async def mark(self, root: str, marks: Sequence[SightingChange]) -> Sequence[Outcome]:
        check_marks(marks)
        return [self._mark(self._root(root).sightings, each) for each in marks]

    def _mark(self, sightings: dict[str, Sighting], mark: SightingChange) -> Outcome:
        found = sightings.get(mark.unit)
        if found is None or (found.state, found.fingerprint) != (mark.state, mark.fingerprint):
            return Outcome.CONFLICT
        if mark.to is None:
            del sightings[mark.unit]
        else:
            sightings[mark.unit] = replace(
                found, state=mark.to, state_scan=mark.round, state_at=self._clock.now(), state_tick=mark.tick
            )
        return Outcome.DONE

    def _root(self, root: str) -> _Root:
        return self._roots.setdefault(root, _Root())
