"""What must hold at every step a collector of orphans takes, checked from outside, in true time.

loss     the bytes of a committed reference are at its key or in the trash, always
early    nothing leaves its key before it was there, and was noted as an orphan, for its whole grace
asked    nothing leaves its key unless its references were asked for in this run, and there were none
believed nothing that is referenced leaves its key while the database answers far too little
order    references are read after the listing has ended
torn     a marker is never without the data it vouches for
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wrasse.ports.catalog import Reference

ROOT = "archives/"
TRASH = ".trash/"
MARKER = ".meta"
GRACE = 2 * 3600.0  # seconds


def unit_of(key: str) -> str:
    """The directory of an archive's file."""
    return key[: key.rindex("/") + 1]


@dataclass(slots=True)
class Truth:
    """What really is the case: who wrote what when, who refers to what, and what was noted when."""

    written: dict[str, tuple[float, bytes]] = field(default_factory=dict)  # by key: when, and what, at the last upload
    uploading: set[str] = field(default_factory=set)  # units that are being written now
    noted: dict[str, float] = field(default_factory=dict)  # by unit: when it was first noted as the orphan it is
    left: int = 0  # how many objects left their key
    wrong: bool = False  # whether the database answers far too little now
    broken: list[str] = field(default_factory=list)

    def break_law(self, law: str, what: str, at: float) -> None:
        """A law was broken."""
        if len(self.broken) < 5:
            self.broken.append(f"{law}: {what} at {at / 3600:.2f} h")


@dataclass(slots=True)
class Witness:
    """Watches one run of one collector."""

    truth: Truth
    listing_over: bool = False
    free: set[str] = field(default_factory=set)  # units that were asked about in this run, and had no reference

    def snapshot(self, at: float) -> None:
        """References are about to be read."""
        if not self.listing_over:
            self.truth.break_law("order", "references were read before the listing had ended", at)

    def asked(self, units: Sequence[str], answers: Sequence[Reference | None]) -> None:
        """The last look."""
        for unit, answer in zip(units, answers, strict=True):
            if answer is None or answer.ended_at is not None:
                self.free.add(unit)
            else:
                self.free.discard(unit)

    def leaves(self, key: str, data: bytes | None, needed: bool, at: float) -> None:
        """A collector deletes the object at this key, which holds these bytes."""
        if not key.startswith(ROOT) or data is None:
            return
        truth, unit = self.truth, unit_of(key)
        truth.left += 1
        when, last = truth.written.get(key, (0.0, b""))
        if unit not in self.free:
            truth.break_law("asked", f"{key} was removed although nobody asked, or it was referenced", at)
        if data == last and at - when < GRACE - 1:
            truth.break_law("early", f"{key} was removed {at - when:.0f} s after it was written", at)
        if at - truth.noted.get(unit, at) < GRACE - 1:
            truth.break_law("early", f"{key} was removed too soon after it was first noted", at)
        if needed and truth.wrong:
            truth.break_law("believed", f"{key} was removed because of a database that knew too little", at)
