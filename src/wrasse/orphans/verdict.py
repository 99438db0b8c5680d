"""Units, files that are removed together, and the verdict on one unit in one scan. Pure: the merge collects the facts.

referenced              keep; forget a sighting, restore what is in quarantine
young, newest, large    keep; forget a sighting
new orphan              note it: its grace begins
changed orphan          note it again: its grace starts again
orphan for its grace    due: quarantine, or delete where there is none
in quarantine for its time, and still an orphan: purge
in quarantine, written again and referenced: the present object counts; its old copy is purged after its time

Reference lag, the time from the last write of an object to the reference to it, must be shorter than the grace of
superseded objects. So it is measured: for each unit that has a reference now and was listed without one by the last
scan, the time since it was written.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from wrasse.duration import format_duration
from wrasse.errors import StoreBroken
from wrasse.orphans.root import Root, Template
from wrasse.orphans.spool import Referred, SpooledObject
from wrasse.ports.sightings import Evidence, SightingState

FILES_MAX = 10_000  # of one unit; a larger one is reported and left alone

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[SpooledObject]).decode
DELETE = "delete"
QUARANTINE = "quarantine"
PURGE = "purge"
DISCARD = "discard"  # the copy in the trash of a unit that was written again: the object at its key is kept
RESTORE = "restore"
ABORT = "abort"
MICROSECONDS = 1_000_000
# Only the bytes tell which of the two; once a run has compared them, later runs need not try.
THERE_AGAIN = "it exists again: written again, or restored by an interrupted run"
BOUNDS = tuple(
    timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 4 * 60, 12 * 60, 24 * 60, 7 * 24 * 60, 30 * 24 * 60)
)
_MICROS = tuple(round(bound.total_seconds() * 1_000_000) for bound in BOUNDS)
_NAMES = tuple(f"lag_{format_duration(bound)}" for bound in BOUNDS)
LONGER = "lag_longer"


class Unit:
    """One unit: its name, its group, and its files in the order of their keys, up to one more than FILES_MAX."""

    __slots__ = ("files", "group", "modified", "name", "size")

    def __init__(self, name: bytes, group: bytes, first: SpooledObject) -> None:
        self.name = name
        self.group = group
        self.files = [first]
        self.size = first.size
        self.modified = first.modified

    def add(self, file: SpooledObject) -> None:
        """Adds a file."""
        if len(self.files) <= FILES_MAX:
            self.files.append(file)
        self.size += file.size
        if file.modified > self.modified:
            self.modified = file.modified


class Units:
    """The units of a listing, in order. Foreign keys are counted, with a few examples."""

    def __init__(self, listing: Iterable[list[SpooledObject]], template: Template) -> None:
        self._listing = listing
        self._template = template
        self.listed = 0
        self.count = 0
        self.size = 0
        self.foreign = 0
        self.examples: list[bytes] = []

    def __iter__(self) -> Iterator[Unit]:
        match, directory = self._template.pattern.fullmatch, self._template.directories
        present: Unit | None = None
        for frame in self._listing:
            self.listed += len(frame)
            for file in frame:
                key = file.key
                found = match(key)
                if found is None:
                    self._note_foreign(file)
                    continue
                name = key[: found.end(1)] if directory else key
                if present is not None:
                    if present.name == name:
                        present.add(file)
                        continue
                    self.size += present.size
                    self.count += 1
                    yield present
                present = Unit(name, key[: found.end(2)], file)
        if present is not None:
            self.size += present.size
            self.count += 1
            yield present

    def _note_foreign(self, file: SpooledObject) -> None:
        self.foreign += 1
        if len(self.examples) < 10:
            self.examples.append(file.key)


def in_order(listing: Iterable[list[SpooledObject]]) -> Iterator[list[SpooledObject]]:
    """The same listing; an error where a key does not sort after the one before it."""
    last = b""
    for frame in listing:
        for file in frame:
            if file.key <= last:
                raise StoreBroken(
                    "the store does not list keys once each in byte order",
                    do="use a store that does; nothing was judged",
                )
            last = file.key
        yield frame


def fingerprint(files: list[SpooledObject]) -> str:
    """Changes when any file of a unit changes, or is added or removed."""
    # The time is included: the version of some stores depends on the bytes only, and a retry may write them again.
    if len(files) == 1:
        return f"{files[0].size}-{files[0].modified}-{files[0].version}"
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        for part in (file.key, file.version.encode("utf-8", "surrogateescape"), b"%d %d" % (file.size, file.modified)):
            digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()


def pack(files: list[SpooledObject]) -> bytes:
    """Files as stored in a sighting."""
    return _encode(files)


def unpack(files: bytes) -> list[SpooledObject]:
    """The files stored in a sighting; none for a sighting without files, such as an upload."""
    try:
        return _decode(files) if files else []
    except msgspec.DecodeError:
        raise StoreBroken("a sighting has no valid list of files", do="delete that row") from None


def part_of(files: list[SpooledObject], known: list[SpooledObject]) -> bool:
    """Whether these are unchanged files of that unit: what an interrupted removal left of it."""
    there = {(file.key, file.version, file.size, file.modified) for file in known}
    return all((file.key, file.version, file.size, file.modified) in there for file in files)


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
    return f"{known.evidence.replace('_', ' ')} at each of {scans} looks"  # stored in plans and in the journal


def note_lag(counts: Counter[str], modified: int, last_at: int, at: int) -> None:
    """Counts one unit that has a reference now and had none in the last scan, unless it is newer than that scan."""
    if modified >= last_at:
        return
    lag = at - modified
    counts[next((name for name, bound in zip(_NAMES, _MICROS, strict=True) if lag <= bound), LONGER)] += 1


def longest(counts: Mapping[str, int]) -> timedelta | None:
    """The bucket bound of the longest lag; None without a lag, `timedelta.max` beyond the last bound."""
    if counts.get(LONGER):
        return timedelta.max
    return next((bound for name, bound in reversed([*zip(_NAMES, BOUNDS, strict=True)]) if counts.get(name)), None)


def warning(counts: Mapping[str, int], grace: timedelta) -> str:
    """A warning if references are created too late for the grace; else empty."""
    lag = longest(counts)
    if lag is None or lag <= grace / 3:
        return ""
    text = "more than 30d" if lag == timedelta.max else f"up to {format_duration(lag)}"
    return f"references came {text} after their objects; a grace of {format_duration(grace)} is too short for that"


def histogram(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The counts by bound."""
    return [(name.removeprefix("lag_"), counts.get(name, 0)) for name in (*_NAMES, LONGER)]
