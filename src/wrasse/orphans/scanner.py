"""Where one root is worked on: the last look, what it found to be due, and what became of it.

What is mutable about a sweep of orphans is here: the sweep itself is a frozen description. A watch stands beside it
that stops the run when a batch goes wrong in a way that a look cannot see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wrasse.orphans.codec import name_of, unit_of
from wrasse.orphans.lag import warning
from wrasse.orphans.removal import Removal
from wrasse.orphans.root import Root
from wrasse.orphans.scan import OrphanScan, Ports, ScanResult
from wrasse.orphans.verdict import ABORT, THERE_AGAIN, Suspected
from wrasse.ports.catalog import Reference
from wrasse.ports.guard import Guard
from wrasse.ports.objects import ObjectInfo
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.sightings import Sightings

NOT_ARMED = "not armed"
TOO_LARGE = "plan too large"
_UPLOAD = "%upload/"  # no root begins so
ODD_MIN = 5  # in one batch, and more than the share, before a run is stopped for it
ODD_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class OrphanSuspect:
    """What is due, and why it is kept all the same, if it is."""

    what: Suspected
    kept: str = ""


class Scanner:
    """One root, and the ports it is worked on with."""

    def __init__(self, root: Root, ports: Ports, leader: Guard | None = None) -> None:
        self.root = root
        self._ports = ports
        self.sightings: Sightings = ports.sightings
        self.looking = OrphanScan(root, ports)
        self.looked: ScanResult | None = None
        self.given: ScanResult | None = None
        self.watch = RemovalWatch(self)
        self.guards: tuple[Guard, ...] = (self.watch,) if leader is None else (leader, self.watch)
        self._removal = Removal(root, ports.objects, ports.catalog, ports.sightings)
        self._stands: str | None = None
        self._rows: Iterator[Suspected] = iter(())
        self._next: Suspected | None = None

    async def look(self, *, note: bool) -> ScanResult:
        """A complete look at the root; what it found is there until the next."""
        self.watch.stopped = ""
        if self.given is not None:
            return self.given
        self.looked = None
        self.looked = await self.looking.look(note=note)
        self._stands = None
        return self.looked

    def take(self, looked: ScanResult) -> None:
        """Works on what is given instead of looking: a plan, or an undoing."""
        self.given, self.looked, self._stands = looked, looked, None

    def page(self, after: str | None, limit: int) -> Page[OrphanSuspect]:
        """What the last look found to be due, after this one, in the order of keys."""
        looked = self._last()
        if after is None or after != self._stands:
            self._start(after, looked)
        shown: list[OrphanSuspect] = []
        while self._next is not None and len(shown) < limit:
            shown.append(OrphanSuspect(self._next, self._kept(looked)))
            self._next = next(self._rows, None)
        cursors = tuple(_cursor(each.what) for each in shown)
        self._stands = cursors[-1] if cursors else None
        return Page(tuple(shown), cursors, looked.round.at, self._next is not None)

    async def remove(self, suspects: Sequence[Suspected]) -> Sequence[Outcome]:
        """Does to each what its verb says, under what is true now."""
        made = self._last().round
        protected = self._removal.protected
        ends = await self._removal.apply(suspects, round=made.id, tick=made.tick, snapshot_at=made.snapshot_at)
        self.watch.judge(len(suspects), self._removal.protected - protected, ends)
        return ends

    def settled(self, suspected: Suspected) -> bool:
        """Whether there is nothing to bring back: it was written again, and an earlier run has said so."""
        return suspected.reason == THERE_AGAIN and self._removal.settled(suspected.known)

    async def referenced(self, units: Sequence[str]) -> Sequence[Reference | None]:
        """The strongest reference to each unit, now."""
        return await self._ports.catalog.referenced(units, below=self.root.template.directories)

    async def listed(self, unit: str, limit: int = 100) -> Sequence[ObjectInfo]:
        """The files of a unit that are there now, the first of them."""
        page = await self._ports.objects.page(unit, None, limit)
        return [each for each in page if self.root.template.directories or each.key == unit]

    def close(self) -> None:
        """Lets go of what the last look wrote to disk."""
        self._rows, self._next, self._stands = iter(()), None, None
        self.looking.close()

    def _start(self, after: str | None, looked: ScanResult) -> None:
        """Goes to the first suspect after a cursor."""
        self._rows = iter(looked.suspects)
        self._next = next(self._rows, None)
        while self._next is not None and after is not None and _passed(self._next, after):
            self._next = next(self._rows, None)

    def _kept(self, looked: ScanResult) -> str:
        if not looked.armed:
            return NOT_ARMED
        return TOO_LARGE if looked.held else ""

    def _last(self) -> ScanResult:
        assert self.looked is not None, "a look comes before what it found"
        return self.looked


def _cursor(suspected: Suspected) -> str:
    """Where a suspect stands: units by name, then uploads."""
    name = name_of(suspected.known.unit)
    return f"{_UPLOAD}{name}\n{suspected.known.fingerprint}" if suspected.verb == ABORT else name


def _passed(suspected: Suspected, after: str) -> bool:
    if suspected.verb == ABORT:
        return after.startswith(_UPLOAD) and _cursor(suspected) <= after
    return after.startswith(_UPLOAD) or suspected.known.unit <= unit_of(after)


class RemovalWatch(Guard):
    """Stops a run in which many units of one batch were referenced again, or could not be removed: what was true for
    all of them at the look is not any more. Says what the look counted."""

    name = "orphans"

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self.stopped = ""

    async def pause_reason(self) -> str | None:
        """Why the run must not go on."""
        return self.stopped or None

    def judge(self, count: int, protected: int, ends: Sequence[Outcome]) -> None:
        """Looks at how a batch ended."""
        bad = sum(1 for end in ends if end in (Outcome.FAILED, Outcome.UNKNOWN))
        if protected >= ODD_MIN and protected > ODD_SHARE * count:
            self.stopped = f"{protected} of {count} units were referenced again since the look"
        elif bad >= ODD_MIN and bad > ODD_SHARE * count:
            self.stopped = f"{bad} of {count} units could not be removed"

    def note(self) -> str:
        """What the look counted, and what somebody should know about it."""
        looked, root = self._scanner.looked, self._scanner.root
        if looked is None:
            return ""
        counts = looked.round.counts
        said = [
            f"{counts.get('listed', 0)} objects in {counts.get('units', 0)} units: "
            + ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in KEPT if counts.get(name))
        ]
        if looked.held:
            leave = f"wrasse orphans arm {root.name} --allow {looked.round.id}"
            said.append(f"held: {looked.held}; if that is right: {leave}")
        if not looked.armed:
            said.append(f"not armed: read the plan, then: wrasse orphans arm {root.name}")
        if late := warning(counts, root.graces.superseded):
            said.append(late)
        return "; ".join(said)


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
