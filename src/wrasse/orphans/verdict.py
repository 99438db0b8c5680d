"""The verdict on one unit in one scan. Pure: the merge collects the facts, this file decides.

referenced              keep; forget a sighting, restore what is in quarantine
young, newest, large    keep; forget a sighting
new orphan              note it: its grace begins
changed orphan          note it again: its grace starts again
orphan for its grace    due: quarantine, or delete where there is none
in quarantine for its time, and still an orphan: purge
in quarantine, written again and referenced: the present object counts; its old copy is purged after its time
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
DISCARD = "discard"  # the copy in the trash of a unit that was written again: the object at its key is kept
RESTORE = "restore"
ABORT = "abort"
MICROSECONDS = 1_000_000
# Only the bytes tell which of the two; once a run has compared them, later runs need not try.
THERE_AGAIN = "it exists again: written again, or restored by an interrupted run"


class KnownSighting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sighting in spool form. Times are microseconds. Without evidence: a sighting that ended."""

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
    """A unit with an action to be carried out, and its reason."""

    verb: str
    known: KnownSighting
    reason: str


@dataclass(frozen=True, slots=True)
class Scene:
    """What all units of a scan have in common. `listed_at` is the store's clock when the listing began."""

    root: Root
    number: int
    at: int
    tick: int
    listed_at: int

    def ripe(self, known: KnownSighting) -> bool:
        """Whether a sighting has lasted for its grace, over at least two complete scans."""
        grace = round(self.root.graces.of(Evidence(known.evidence)).total_seconds() * MICROSECONDS)
        return known.first_scan < self.number and self.tick - known.first_tick >= grace

    def served(self, known: KnownSighting) -> bool:
        """Whether a unit was in quarantine for its time."""
        return self.tick - known.state_tick >= round(self.root.quarantine.total_seconds() * MICROSECONDS)

    def young(self, unit: Unit) -> bool:
        """Whether a unit was written too recently to be judged."""
        return self.listed_at - unit.modified < round(self.root.age_min.total_seconds() * MICROSECONDS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The name of the count for a unit, its note, and its action."""

    count: str
    note: KnownSighting | None = None
    suspect: Suspected | None = None


_WAITING = Verdict("waiting")
_IN_QUARANTINE = Verdict("in_quarantine")


def judge_protected(known: KnownSighting, by: Referred, unit: Unit | None, scene: Scene) -> Verdict:
    """A sighting of a unit that a reference protects now; `unit` is None if it is not listed."""
    if known.state == SightingState.SEEN:
        return Verdict("rescued", note=KnownSighting(known.unit))
    if unit is None or not _replaced(unit, known):
        return Verdict("healed", suspect=Suspected(RESTORE, known, f"referenced again, by {by.rule or 'a reference'}"))
    if scene.served(known):
        return Verdict("written_again", suspect=Suspected(DISCARD, known, "written again and referenced now"))
    return Verdict("written_again", suspect=Suspected(RESTORE, known, THERE_AGAIN))


def judge_foreign(known: KnownSighting) -> Verdict:
    """A sighting of another shape than units have now. A unit in quarantine stays there until it is undone: its
    references cannot be determined any more."""
    return Verdict("vanished", note=KnownSighting(known.unit)) if known.state == SightingState.SEEN else _IN_QUARANTINE


def judge_gone(known: KnownSighting, scene: Scene) -> Verdict:
    """A sighting whose unit is neither listed nor referenced."""
    if known.state == SightingState.SEEN:
        return Verdict("vanished", note=KnownSighting(known.unit))
    return _purged(known, scene)


def judge_orphan(unit: Unit, evidence: Evidence, newest: bool, known: KnownSighting | None, scene: Scene) -> Verdict:
    """A listed unit that no reference protects."""
    if known is not None and known.state != SightingState.SEEN:
        return _judge_in_quarantine(unit, known, scene)
    why = _exemption(unit, newest, scene)
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


def _exemption(unit: Unit, newest: bool, scene: Scene) -> str:
    if scene.young(unit):
        return "young"
    if newest:
        return "newest"
    return "too_large" if len(unit.files) > FILES_MAX else ""


def _judge_in_quarantine(unit: Unit, known: KnownSighting, scene: Scene) -> Verdict:
    """A unit that is listed although it is in quarantine."""
    same = _same(unit, known)
    if known.state == SightingState.MARKED:
        return _purged(known, scene) if same else Verdict("healed", suspect=Suspected(RESTORE, known, "written again"))
    # Moved, but listed: either the move was interrupted, or it was written again.
    if same:
        return Verdict("due", suspect=Suspected(QUARANTINE, known, "its move was interrupted"))
    # The present object is judged once its predecessor has left the quarantine: a unit has one sighting.
    return _purged(known, scene) if scene.served(known) else Verdict("written_again")


def _purged(known: KnownSighting, scene: Scene) -> Verdict:
    if not scene.served(known):
        return _IN_QUARANTINE
    return Verdict("purged", suspect=Suspected(PURGE, known, _because(known, scene)))


def _same(unit: Unit, known: KnownSighting) -> bool:
    """Whether it is the unit that was judged, or what remains of it after a file was deleted, as by an interrupted
    removal."""
    return known.fingerprint == fingerprint(unit.files) or part_of(unit.files, unpack(known.files))


def _replaced(unit: Unit, known: KnownSighting) -> bool:
    """Whether every file of the moved unit exists at its key again, changed."""
    if known.state != SightingState.MOVED or _same(unit, known):
        return False
    return {file.key for file in unpack(known.files)} <= {file.key for file in unit.files}


def _because(known: KnownSighting, scene: Scene) -> str:
    scans = scene.number - known.first_scan + 1
    return f"{known.evidence.replace('_', ' ')} at each of {scans} looks"
