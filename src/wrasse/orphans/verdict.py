"""What is to be done about one unit at one look. Pure: this file decides, the merge only brings the facts together.

referenced              keep; forget a sighting, bring back what is in quarantine
young, newest, large    keep; forget a sighting
orphan, not seen so     note it: its grace begins
orphan, and different   note it again: its grace begins again
orphan for its grace    due: into quarantine, or away where there is none
in quarantine for its time, and still an orphan: purge
in quarantine, written again and referenced: what is there now is the truth; its old copy goes after its time
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from wrasse.orphans.root import Root
from wrasse.orphans.spool import Referred
from wrasse.orphans.units import FILES_MAX, Unit, fingerprint, pack, part_of, unpack
from wrasse.ports.sightings import Evidence, SightingState

DELETE = "delete"
QUARANTINE = "quarantine"
PURGE = "purge"
DISCARD = "discard"  # the copy in the trash of what was written again since: whatever stands at its key is kept
RESTORE = "restore"
ABORT = "abort"
MICROSECONDS = 1_000_000
# Only its bytes tell which of the two; once a run has found out, the others need not try.
THERE_AGAIN = "it is there again: written anew, or brought back by a run that was cut short"


class KnownSighting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sighting on its way through spools. Instants are microseconds. Without evidence: one that ended."""

    unit: bytes
    evidence: str = ""
    fingerprint: str = ""
    size: int = 0
    files: bytes = b""
    first_scan: int = 0
    first_at: int = 0
    first_tick: int = 0
    state: str = SightingState.SEEN.value
    state_scan: str = ""
    state_at: int = 0
    state_tick: int = 0


class Suspected(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A unit about which something is to be done, and why."""

    verb: str
    known: KnownSighting
    reason: str


@dataclass(frozen=True, slots=True)
class Scene:
    """What is the same for all units of a round. `listed_at` is the store's clock when the listing began."""

    root: Root
    number: int
    at: int
    tick: int
    listed_at: int

    def ripe(self, known: KnownSighting) -> bool:
        """Whether a sighting has lasted for its grace, over two complete rounds at least."""
        grace = round(self.root.graces.of(Evidence(known.evidence)).total_seconds() * MICROSECONDS)
        return known.first_scan < self.number and self.tick - known.first_tick >= grace

    def served(self, known: KnownSighting) -> bool:
        """Whether what is in quarantine was there for its time."""
        return self.tick - known.state_tick >= round(self.root.quarantine.total_seconds() * MICROSECONDS)

    def young(self, unit: Unit) -> bool:
        """Whether a unit was written too recently to be judged."""
        return self.listed_at - unit.modified < round(self.root.age_min.total_seconds() * MICROSECONDS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a unit was kept or not (the name of a count), what is to be noted, and what is to be done."""

    count: str
    note: KnownSighting | None = None
    suspect: Suspected | None = None


_WAITING = Verdict("waiting")
_APART = Verdict("in_quarantine")


def judge_protected(known: KnownSighting, by: Referred, unit: Unit | None, scene: Scene) -> Verdict:
    """A sighting of what a reference protects now; `unit` is None if it is not listed."""
    if known.state == SightingState.SEEN:
        return Verdict("rescued", note=KnownSighting(known.unit))
    if unit is None or not _replaced(unit, known):
        return Verdict("healed", suspect=Suspected(RESTORE, known, f"referenced again, by {by.rule or 'a reference'}"))
    if scene.served(known):
        return Verdict("written_again", suspect=Suspected(DISCARD, known, "written again and referenced as it is now"))
    return Verdict("written_again", suspect=Suspected(RESTORE, known, THERE_AGAIN))


def judge_foreign(known: KnownSighting) -> Verdict:
    """A sighting of another shape than units have now. What is in quarantine stays there until somebody undoes it: its
    references can no longer be told."""
    return Verdict("vanished", note=KnownSighting(known.unit)) if known.state == SightingState.SEEN else _APART


def judge_gone(known: KnownSighting, scene: Scene) -> Verdict:
    """A sighting whose unit is not listed and not referenced."""
    if known.state == SightingState.SEEN:
        return Verdict("vanished", note=KnownSighting(known.unit))
    return _purged(known, scene)


def judge_orphan(unit: Unit, evidence: Evidence, newest: bool, known: KnownSighting | None, scene: Scene) -> Verdict:
    """A listed unit that no reference protects."""
    if known is not None and known.state != SightingState.SEEN:
        return _judge_apart(unit, known, scene)
    why = _innocent(unit, newest, scene)
    if why:
        return Verdict(why, note=None if known is None else KnownSighting(unit.name))
    same = known is not None and _same(unit, known)
    if known is None or not same or known.evidence != evidence:
        noted = KnownSighting(
            unit.name,
            evidence.value,
            fingerprint(unit.files),
            unit.size,
            pack(unit.files),
            scene.number,
            scene.at,
            scene.tick,
        )
        return Verdict("found" if known is None else "restarted", note=noted)
    if not scene.ripe(known):
        return _WAITING
    verb = QUARANTINE if scene.root.quarantine else DELETE
    return Verdict("due", suspect=Suspected(verb, known, _because(known, scene)))


def _innocent(unit: Unit, newest: bool, scene: Scene) -> str:
    if scene.young(unit):
        return "young"
    if newest:
        return "newest"
    return "too_large" if len(unit.files) > FILES_MAX else ""


def _judge_apart(unit: Unit, known: KnownSighting, scene: Scene) -> Verdict:
    """A unit that is listed although it is in quarantine."""
    same = _same(unit, known)
    if known.state == SightingState.MARKED:
        return _purged(known, scene) if same else Verdict("healed", suspect=Suspected(RESTORE, known, "written again"))
    # Moved, and yet there: either the move was cut short, or somebody has written it again.
    if same:
        return Verdict("due", suspect=Suspected(QUARANTINE, known, "its move was cut short"))
    # What is there now is judged once its predecessor has left the quarantine: a unit has one sighting.
    return _purged(known, scene) if scene.served(known) else Verdict("written_again")


def _purged(known: KnownSighting, scene: Scene) -> Verdict:
    if not scene.served(known):
        return _APART
    return Verdict("purged", suspect=Suspected(PURGE, known, _because(known, scene)))


def _same(unit: Unit, known: KnownSighting) -> bool:
    """Whether it is what was judged, or what is left of it. Somebody taking a file of an orphan away, as a removal
    that was cut short does, makes it no less one."""
    return known.fingerprint == fingerprint(unit.files) or part_of(unit.files, unpack(known.files))


def _replaced(unit: Unit, known: KnownSighting) -> bool:
    """Whether every file of what was moved away stands at its key, other than it was."""
    if known.state != SightingState.MOVED or _same(unit, known):
        return False
    return {file.key for file in unpack(known.files)} <= {file.key for file in unit.files}


def _because(known: KnownSighting, scene: Scene) -> str:
    rounds = scene.number - known.first_scan + 1
    return f"{known.evidence.replace('_', ' ')} at each of {rounds} looks"
