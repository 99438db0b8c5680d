"""Orphan objects: objects that no reference has named for their whole grace.

evidence      listed completely, then absent from one snapshot of all references, in every scan and in at least two
grace         by reason: `superseded`, `soft_deleted`, `owner_unknown`, in time that passed by every clock we know
precondition  its sighting is as it was judged, nothing refers to it now, and each file has the version that was judged
if wrong      it is in quarantine: a reference to it restores it at the next scan, `wrasse orphans undo` at once
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from wrasse.clock import from_micros
from wrasse.duration import format_duration
from wrasse.engine.sweep import Action, Keep
from wrasse.orphans.merge import name_of, text, unit_of
from wrasse.orphans.scanner import OrphanSuspect, Scanner
from wrasse.orphans.verdict import ABORT, DISCARD, PURGE, QUARANTINE, RESTORE, Suspected
from wrasse.ports.journal import Line
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.sightings import Evidence, SightingState


@dataclass(frozen=True, slots=True)
class OrphanObjects:
    """Removes objects without a reference. One instance per root; a root that is not armed only plans."""

    name: ClassVar[str] = "orphan_objects"
    each: ClassVar[bool] = True

    scanner: Scanner
    batch_max: int = 100

    async def prepare(self) -> None:
        """A complete scan, recorded."""
        await self.scanner.scan(note=True)

    async def prepare_dry(self) -> None:
        """A complete scan that records nothing."""
        await self.scanner.scan(note=False)

    async def find(self, after: str | None, limit: int) -> Page[OrphanSuspect]:
        """The due orphans of this scan, in the order of keys."""
        return self.scanner.page(after, limit)

    def decide(self, suspect: OrphanSuspect, at: datetime) -> Action[Suspected] | Keep:
        known, root = suspect.what.known, self.scanner.root
        unit, verb = name_of(known.unit), suspect.what.verb
        if verb == RESTORE and self.scanner.settled(suspect.what):
            return Keep("written again")
        if verb == RESTORE:
            return Action(verb, unit, suspect.what.reason, suspect.what)
        if suspect.kept:
            return Keep(suspect.kept)
        if verb == ABORT:
            old = at - from_micros(known.first_at) >= root.uploads_after
            return Action(verb, unit, suspect.what.reason, suspect.what) if old else Keep("within its grace")
        grace = root.graces.of(Evidence(known.evidence))
        if at - from_micros(known.first_at) < grace:
            return Keep("within its grace")
        if verb in (PURGE, DISCARD) and at - from_micros(known.state_at) < root.quarantine:
            return Keep("in quarantine")
        return Action(verb, unit, f"{suspect.what.reason}, for {_days(at - from_micros(known.first_at))}", suspect.what)

    async def apply(self, actions: Sequence[Action[Suspected]]) -> Sequence[Outcome]:
        return await self.scanner.remove([action.change for action in actions])

    async def resolve(self, lines: Sequence[Line]) -> Sequence[Outcome]:
        """The outcome of intents that a crash interrupted, by the state of their sightings."""
        units = [text(unit_of(line.intent.suspect)) for line in lines]
        found = await self.scanner.sightings.get(self.scanner.root.name, units)
        return [
            _resolved(line.intent.verb, None if each is None else each.state)
            for line, each in zip(lines, found, strict=True)
        ]


def _resolved(verb: str, state: SightingState | None) -> Outcome:
    """A recorded quarantine is finished by the next scan; any other action has ended its sighting, or has not. An
    upload has none: if it still exists, the next scan finds it again."""
    if verb == ABORT:
        return Outcome.UNKNOWN
    if verb == QUARANTINE:
        return Outcome.CONFLICT if state is SightingState.SEEN else Outcome.DONE
    return Outcome.DONE if state is None else Outcome.CONFLICT


def _days(passed: timedelta) -> str:
    return format_duration(timedelta(minutes=passed // timedelta(minutes=1)))
