"""The merge of listing, references and sightings, all in key order, in constant memory. Pure.

Every unit that is listed or sighted is processed once, with the reference that protects it. The evidence of a unit's
group is complete only at the end of the group, so a bounded number of orphans waits for it.

`Window` reads the references in key order: which of them protects a unit, and what they say about its group. Only the
prefixes that cover the current unit are kept, so memory depends on their nesting depth, not on their number. References
out of order are an error: a database with another collation than the listing would make referenced objects orphans.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote_from_bytes, unquote_to_bytes

from wrasse.clock import from_micros, to_micros
from wrasse.errors import StoreBroken
from wrasse.orphans.root import Root
from wrasse.orphans.spool import Referred
from wrasse.orphans.verdict import (
    ABORT,
    KnownSighting,
    Scene,
    Suspected,
    Unit,
    Verdict,
    judge_foreign,
    judge_gone,
    judge_orphan,
    judge_protected,
    note_lag,
)
from wrasse.ports.catalog import Reference
from wrasse.ports.objects import OpenUpload, raw_key
from wrasse.ports.sightings import Change, Evidence, NewSighting, Sighting, SightingState, Unseen

_ESCAPED = "%bytes/"  # no root begins like this
WAITING_MAX = 5_000  # orphans of one group that wait for its end


class Covering:
    """A prefix that covers the current unit, the strongest reference up to it, and whether it has covered a unit."""

    __slots__ = ("matched", "row", "strongest")

    def __init__(self, row: Referred, below: Referred | None) -> None:
        self.row = row
        self.strongest = stronger(below, row)
        self.matched = False


class Window:
    """References in key order. Units must be queried in order, too."""

    def __init__(self, rows: Iterator[Referred]) -> None:
        self._rows = rows
        self._covering: list[Covering] = []
        self._next: Referred | None = None
        self._last = b""
        self.rows = 0
        self.rows_live = 0
        self.matched = 0  # live ones that match an object: archives of ended rows are deleted, and their rows stay
        self.group = b""
        self.live = False  # whether the group has a live reference
        self.ended = False
        self._advance()

    def enter(self, group: bytes) -> None:
        """The units that follow belong to another group."""
        self.group, self.live, self.ended = group, False, False
        for covering in self._covering:
            if group.startswith(covering.row.key):
                self._note(covering.row)

    def protecting(self, unit: bytes, directory: bool, listed: bool) -> Referred | None:
        """The strongest reference to a unit: to it, to a prefix of it, or, for a directory, to anything in it."""
        covering = self._covering
        while covering and not unit.startswith(covering[-1].row.key):
            covering.pop()
        found = None
        row = self._next
        while row is not None and (row.key <= unit or (directory and row.key.startswith(unit))):
            key = row.key
            if self.group and (key.startswith(self.group) or (row.prefix and self.group.startswith(key))):
                self._note(row)
            if row.prefix and unit.startswith(key):
                covering.append(Covering(row, covering[-1].strongest if covering else None))
            elif key == unit or (directory and key.startswith(unit)):
                found = stronger(found, row)
                self.matched += listed and row.live
            self._advance()
            row = self._next
        if not covering:
            return found
        if listed:
            self._match(covering)
        return stronger(covering[-1].strongest, found) if found is not None else covering[-1].strongest

    def leave(self) -> None:
        """Reads to the end of the group, which completes its evidence."""
        row = self._next
        while row is not None and (row.key < self.group or row.key.startswith(self.group)):
            if row.key.startswith(self.group):
                self._note(row)
            self._advance()
            row = self._next

    def finish(self) -> None:
        """Reads to the end, so that every reference is counted and its order is checked."""
        while self._next is not None:
            self._advance()

    def _match(self, covering: list[Covering]) -> None:
        for each in reversed(covering):
            if each.matched:
                return
            each.matched = True
            self.matched += each.row.live

    def _note(self, row: Referred) -> None:
        if row.live:
            self.live = True
        else:
            self.ended = True

    def _advance(self) -> None:
        row = self._next = next(self._rows, None)
        if row is not None:
            if row.key < self._last:
                raise StoreBroken(
                    "references are not in the byte order of their keys",
                    do='let the query sort by bytes: ORDER BY key COLLATE "C"',
                )
            self._last = row.key
            self.rows += 1
            self.rows_live += row.live


def stronger(one: Referred | None, other: Referred) -> Referred:
    """The reference that protects longer: a live one, else the one that ended last."""
    if one is None or (other.live, other.ended) > (one.live, one.ended):
        return other
    return one


class ScanTally:
    """What a scan counted. `group_most` is the largest number of due units in one group."""

    __slots__ = ("counts", "group_most")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.group_most = 0


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where verdicts go: notes, suspects, and protected units."""

    note: Callable[[KnownSighting], None]
    suspect: Callable[[Suspected], None]
    protect: Callable[[bytes], None]


class Before:
    """The units that were protected in the last scan, in order."""

    __slots__ = ("_next", "_units")

    def __init__(self, units: Iterator[bytes]) -> None:
        self._units = units
        self._next = next(units, None)

    def had(self, unit: bytes) -> bool:
        """Whether this unit was protected. Units must be queried in order."""
        while self._next is not None and self._next < unit:
            self._next = next(self._units, None)
        return self._next == unit


class PendingUnit:
    """A unit that waits for the end of its group: an orphan, or one with a sighting. `unit` is None if it is not
    listed, `by` is the strongest reference to it, and `had` is whether it was protected in the last scan."""

    __slots__ = ("by", "had", "known", "unit")

    def __init__(self, unit: Unit | None, known: KnownSighting | None, by: Referred | None, had: bool) -> None:
        self.unit = unit
        self.known = known
        self.by = by
        self.had = had


class Merge:
    """One merge. `before` and `last_at` describe the last scan, if this machine has its list."""

    def __init__(
        self, scene: Scene, window: Window, sinks: Sinks, before: Before | None = None, last_at: int = 0
    ) -> None:
        self._scene = scene
        self._window = window
        self._sinks = sinks
        self._before = before
        self._last_at = last_at
        self._directory = scene.root.template.directories
        self._keep = scene.root.keep_newest
        self._group = b""
        self._pending: list[PendingUnit] = []
        self._newest: list[tuple[int, bytes]] = []
        self._due = 0
        self.tally = ScanTally()

    def run(self, units: Iterable[Unit], sightings: Iterator[KnownSighting]) -> ScanTally:
        """Judges everything that is listed or sighted, in order."""
        protecting, directory, before = self._window.protecting, self._directory, self._before
        known = next(sightings, None)
        for unit in units:
            name = unit.name
            while known is not None and known.unit < name:
                self._unlisted(known)
                known = next(sightings, None)
            if unit.group != self._group:
                self._begin_group(unit.group)
            mine = None
            if known is not None and known.unit == name:
                mine, known = known, next(sightings, None)
            by = protecting(name, directory, True)
            had = before is not None and before.had(name)
            if self._keep:
                self._note_age(unit)
            if by is not None and by.live:
                self._protected(unit, had)
                if mine is None:
                    continue
            self._wait(PendingUnit(unit, mine, by, had))
        while known is not None:
            self._unlisted(known)
            known = next(sightings, None)
        return self._ended()

    def _ended(self) -> ScanTally:
        self._begin_group(b"")
        self._window.finish()
        window = self._window
        self.tally.counts.update(rows=window.rows, rows_live=window.rows_live, matched=window.matched)
        return self.tally

    def _protected(self, unit: Unit, had: bool) -> None:
        self.tally.counts["protected"] += 1
        self._sinks.protect(unit.name)
        if self._before is not None and not had:
            note_lag(self.tally.counts, unit.modified, self._last_at, self._scene.at)

    def _unlisted(self, known: KnownSighting) -> None:
        """A sighting whose unit is not listed; its references are read in order all the same."""
        template = self._scene.root.template
        if template.units.fullmatch(known.unit) is None:
            # Noted under another template. It must not advance the window, which could skip references to other units.
            self._record(judge_foreign(known), known.size, 0)
            return
        if (group := template.group_of(known.unit)) != self._group:
            self._begin_group(group)
        # A unit in quarantine counts as existing when references are matched.
        apart = known.state != SightingState.SEEN
        by = self._window.protecting(known.unit, self._directory, apart)
        self._wait(PendingUnit(None, known, by, False))

    def _wait(self, pending: PendingUnit) -> None:
        self._pending.append(pending)
        if not self._group:
            self._settle(whole=True)
        elif len(self._pending) >= WAITING_MAX:
            self._settle(whole=False)

    def _begin_group(self, group: bytes) -> None:
        """Another group begins: the units that waited are judged by the complete evidence of the group before."""
        if self._group:
            self._window.leave()
        self._settle(whole=True)
        if self._group:
            self.tally.group_most = max(self.tally.group_most, self._due)
        self._group, self._due = group, 0
        self._newest.clear()
        self._window.enter(group)

    def _note_age(self, unit: Unit) -> None:
        age = (unit.modified, unit.name)
        if len(self._newest) < self._keep:
            heapq.heappush(self._newest, age)
        elif age > self._newest[0]:
            heapq.heapreplace(self._newest, age)

    def _settle(self, *, whole: bool) -> None:
        """Judges the waiting units. Before the end of a group the newest units keep waiting; the others cannot be among
        the newest any more."""
        if not self._pending:
            return
        newest = {name for _, name in self._newest} if self._group else set()
        waiting = []
        for each in self._pending:
            if not whole and each.unit is not None and each.unit.name in newest:
                waiting.append(each)
            else:
                self._judge(each, newest)
        self._pending = waiting

    def _judge(self, each: PendingUnit, newest: set[bytes]) -> None:
        unit, known, by = each.unit, each.known, each.by
        if by is not None and by.live:
            assert known is not None, "a protected unit without a sighting does not wait"
            self._record(judge_protected(known, by, unit, self._scene), known.size, 0)
        elif unit is None:
            assert known is not None, "an unlisted unit has a sighting"
            self._record(judge_gone(known, self._scene), known.size, 0)
        else:
            evidence = self._evidence(by)
            self._count_turned(each.had, evidence)
            fresh = evidence is Evidence.SUPERSEDED and unit.name in newest
            verdict = judge_orphan(unit, evidence, fresh, known, self._scene)
            self._due += verdict.count == "due"
            self._record(verdict, unit.size, len(unit.files))

    def _evidence(self, own: Referred | None) -> Evidence:
        """`own` is a reference that has ended."""
        if own is not None:
            return Evidence.SOFT_DELETED
        if self._window.live or not self._group:
            return Evidence.SUPERSEDED
        return Evidence.SOFT_DELETED if self._window.ended else Evidence.OWNER_UNKNOWN

    def _count_turned(self, had: bool, evidence: Evidence) -> None:
        """Counts units that were protected in the last scan and are not in this one. Superseded units of an owner with
        other references are normal; many units that lost their owner suggest a broken database."""
        if had:
            self.tally.counts["turned"] += 1
            if evidence is not Evidence.SUPERSEDED or not self._group:
                self.tally.counts["turned_oddly"] += 1

    def _record(self, verdict: Verdict, size: int, files: int) -> None:
        counts, count = self.tally.counts, verdict.count
        counts[count] += 1
        counts[f"{count}_bytes"] += size
        if verdict.note is not None:
            self._sinks.note(verdict.note)
        if verdict.suspect is not None:
            counts[f"{count}_objects"] += files
            self._sinks.suspect(verdict.suspect)


def referred_of(reference: Reference, root: Root, at: datetime) -> Referred:
    """A reference in spool form, judged by the catalog's clock."""
    return Referred(
        raw_key(reference.key),
        reference.prefix,
        live(reference, root, at),
        0 if reference.ended_at is None else to_micros(reference.ended_at),
        reference.rule,
        reference.owner,
    )


def live(reference: Reference, root: Root, at: datetime) -> bool:
    """Whether a reference protects: its row has not ended, or an operation on it may still be running."""
    if reference.ended_at is None:
        return True
    return reference.started_at is not None and at - reference.started_at < root.writer.longest


def suspected_of(upload: OpenUpload) -> Suspected:
    """An unfinished upload as a suspect: its upload id takes the place of a fingerprint."""
    known = KnownSighting(raw_key(upload.key), fingerprint=upload.id, first_at=to_micros(upload.begun_at))
    return Suspected(ABORT, known, "a multipart upload that was never finished")


def upload_of(suspected: Suspected) -> OpenUpload:
    """The upload of a suspect."""
    known = suspected.known
    return OpenUpload(text(known.unit), known.fingerprint, from_micros(known.first_at))


def change_of(known: KnownSighting) -> Change:
    """The change that a spooled note makes."""
    return NewSighting(sighting_of(known)) if known.evidence else Unseen(text(known.unit))


def known_of(sighting: Sighting) -> KnownSighting:
    """A sighting in spool form."""
    return KnownSighting(
        raw_key(sighting.unit),
        sighting.evidence.value,
        sighting.fingerprint,
        sighting.size,
        sighting.files,
        sighting.first_scan,
        to_micros(sighting.first_at),
        sighting.first_tick,
        sighting.state.value,
        sighting.state_scan,
        0 if sighting.state_at is None else to_micros(sighting.state_at),
        sighting.state_tick,
    )


def sighting_of(known: KnownSighting) -> Sighting:
    """The sighting of a spool form."""
    return Sighting(
        text(known.unit),
        Evidence(known.evidence),
        known.fingerprint,
        known.size,
        known.files,
        known.first_scan,
        from_micros(known.first_at),
        known.first_tick,
        SightingState(known.state),
        known.state_scan,
        from_micros(known.state_at) if known.state_at else None,
        known.state_tick,
    )


def text(key: bytes) -> str:
    """A key as ports represent it."""
    return key.decode("utf-8", "surrogateescape")


def name_of(unit: bytes) -> str:
    """The name of a unit in plans, journal and cursors: its key, escaped if that is not UTF-8."""
    try:
        return unit.decode()
    except UnicodeDecodeError:
        return _ESCAPED + quote_from_bytes(unit)


def unit_of(name: str) -> bytes:
    """The unit of such a name."""
    return unquote_to_bytes(name.removeprefix(_ESCAPED)) if name.startswith(_ESCAPED) else raw_key(name)
