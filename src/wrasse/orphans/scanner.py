"""The state of a sweep of one root: the last scan, what it found to be due, and the outcomes.

The sweep itself is a frozen description; its mutable state is here. `RemovalWatch` is a guard that stops the run when
many removals of a batch fail in a way that a scan cannot detect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wrasse.orphans.merge import name_of, unit_of
from wrasse.orphans.removal import Removal
from wrasse.orphans.root import Root
from wrasse.orphans.scan import OrphanScan, Ports, ScanResult
from wrasse.orphans.verdict import ABORT, THERE_AGAIN, Suspected, warning
from wrasse.ports.catalog import Reference
from wrasse.ports.guard import Guard
from wrasse.ports.objects import ObjectInfo
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.sightings import Sightings

NOT_ARMED = "not armed"
TOO_LARGE = "plan too large"
_UPLOAD = "%upload/"  # no root begins like this
ODD_MIN = 5  # in one batch, and more than the share, before a run is stopped for it
ODD_SHARE = 0.05
KEPT = (
    "protected",
    "young",
    "newest",
    "too_large",
    "found",
    "restarted",
    "waiting",
    "rescued",
    "vanished",
    "due",
    "in_quarantine",
    "healed",
    "purged",
    "written_again",
    "foreign",
)


@dataclass(frozen=True, slots=True)
class OrphanSuspect:
    """What is due, and why it is kept, if it is."""

    what: Suspected
    kept: str = ""


class Scanner:
    """One root, and the ports for it."""

    def __init__(self, root: Root, ports: Ports, leader: Guard | None = None) -> None:
        self.root = root
        self._ports = ports
        self.sightings: Sightings = ports.sightings
        self.orphan_scan = OrphanScan(root, ports)
        self.result: ScanResult | None = None
        self.given: ScanResult | None = None
        self.watch = RemovalWatch(self)
        self.guards: tuple[Guard, ...] = (self.watch,) if leader is None else (leader, self.watch)
        self._removal = Removal(root, ports.objects, ports.catalog, ports.sightings)
        self._stands: str | None = None
        self._rows: Iterator[Suspected] = iter(())
        self._next: Suspected | None = None

    async def scan(self, *, note: bool) -> ScanResult:
        """A complete scan of the root; its result stays until the next."""
        self.watch.stopped = ""
        if self.given is not None:
            return self.given
        self.result = None
        self.result = await self.orphan_scan.scan(note=note)
        self._stands = None
        return self.result

    def take(self, result: ScanResult) -> None:
        """Uses a given result instead of a scan: a plan, or an undo."""
        self.given, self.result, self._stands = result, result, None

    def page(self, after: str | None, limit: int) -> Page[OrphanSuspect]:
        """What the last scan found to be due, after this cursor, in the order of keys."""
        result = self._last()
        if after is None or after != self._stands:
            self._start(after, result)
        suspects: list[OrphanSuspect] = []
        while self._next is not None and len(suspects) < limit:
            suspects.append(OrphanSuspect(self._next, self._kept(result)))
            self._next = next(self._rows, None)
        cursors = tuple(_cursor(each.what) for each in suspects)
        self._stands = cursors[-1] if cursors else None
        return Page(tuple(suspects), cursors, result.scan.at, self._next is not None)

    async def remove(self, suspects: Sequence[Suspected]) -> Sequence[Outcome]:
        """Carries out each suspect's verb, under what is true now."""
        made = self._last().scan
        protected = self._removal.protected
        ends = await self._removal.apply(suspects, scan=made.id, tick=made.tick, snapshot_at=made.snapshot_at)
        self.watch.judge(len(suspects), self._removal.protected - protected, ends)
        return ends

    def settled(self, suspected: Suspected) -> bool:
        """Whether there is nothing to restore: it was written again, as an earlier run has found."""
        return suspected.reason == THERE_AGAIN and self._removal.settled(suspected.known)

    async def referenced(self, units: Sequence[str]) -> Sequence[Reference | None]:
        """The strongest reference to each unit, now."""
        return await self._ports.catalog.referenced(units, below=self.root.template.directories)

    async def listed(self, unit: str, limit: int = 100) -> Sequence[ObjectInfo]:
        """The first existing files of a unit."""
        page = await self._ports.objects.page(unit, None, limit)
        return [each for each in page if self.root.template.directories or each.key == unit]

    def close(self) -> None:
        """Removes what the last scan wrote to disk."""
        self._rows, self._next, self._stands = iter(()), None, None
        self.orphan_scan.close()

    def _start(self, after: str | None, result: ScanResult) -> None:
        """Seeks to the first suspect after a cursor."""
        self._rows = iter(result.suspects)
        self._next = next(self._rows, None)
        while self._next is not None and after is not None and _passed(self._next, after):
            self._next = next(self._rows, None)

    def _kept(self, result: ScanResult) -> str:
        if not result.armed:
            return NOT_ARMED
        return TOO_LARGE if result.needs_approval else ""

    def _last(self) -> ScanResult:
        assert self.result is not None, "a scan comes before its result"
        return self.result


def _cursor(suspected: Suspected) -> str:
    """The position of a suspect: units by name, then uploads."""
    name = name_of(suspected.known.unit)
    return f"{_UPLOAD}{name}\n{suspected.known.fingerprint}" if suspected.verb == ABORT else name


def _passed(suspected: Suspected, after: str) -> bool:
    if suspected.verb == ABORT:
        return after.startswith(_UPLOAD) and _cursor(suspected) <= after
    return after.startswith(_UPLOAD) or suspected.known.unit <= unit_of(after)


class RemovalWatch(Guard):
    """Stops a run in which many units of one batch were referenced again, or could not be removed: the scan is out of
    date. Reports the counts of the scan."""

    name = "orphans"

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self.stopped = ""

    async def pause_reason(self) -> str | None:
        """Why the run must not go on."""
        return self.stopped or None

    def judge(self, count: int, protected: int, ends: Sequence[Outcome]) -> None:
        """Checks the outcomes of a batch."""
        bad = sum(1 for end in ends if end in (Outcome.FAILED, Outcome.UNKNOWN))
        if protected >= ODD_MIN and protected > ODD_SHARE * count:
            self.stopped = f"{protected} of {count} units were referenced again since the scan"
        elif bad >= ODD_MIN and bad > ODD_SHARE * count:
            self.stopped = f"{bad} of {count} units could not be removed"

    def note(self) -> str:
        """The counts of the scan, and warnings."""
        result, root = self._scanner.result, self._scanner.root
        if result is None:
            return ""
        counts = result.scan.counts
        said = [
            f"{counts.get('listed', 0)} objects in {counts.get('units', 0)} units: "
            + ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in KEPT if counts.get(name))
        ]
        if result.needs_approval:
            leave = f"wrasse orphans arm {root.name} --allow {result.scan.id}"
            said.append(f"needs approval: {result.needs_approval}; if that is correct: {leave}")
        if not result.armed:
            said.append(f"not armed: read the plan, then: wrasse orphans arm {root.name}")
        if late := warning(counts, root.graces.superseded):
            said.append(late)
        return "; ".join(said)
