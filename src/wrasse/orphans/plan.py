"""Plan files: what a round found to be due, a reason per line, to be read by a person and carried out later.

The first line says of which root, configuration and round the plan is, and what the other lines add up to; a file that
was changed is refused. What a plan says is not believed when it is carried out: every unit must still have the sighting
it was planned by, and no reference.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from wrasse.clock import from_micros
from wrasse.duration import format_duration
from wrasse.errors import Refused, StoreBroken, UsageError
from wrasse.orphans.codec import name_of, unit_of
from wrasse.orphans.root import Root
from wrasse.orphans.scan import ScanResult
from wrasse.orphans.spool import SpooledObject
from wrasse.orphans.units import pack, unpack
from wrasse.orphans.verdict import KnownSighting, Suspected
from wrasse.ports.sightings import CompleteScan, Standing
from wrasse.private_files import open_private

FORMAT = "wrasse orphans plan 1"
LINE_BYTES_MAX = 16 << 20
FRESH_MIN = timedelta(hours=1)  # somebody has to read it


class PlanFile(msgspec.Struct, frozen=True):
    """One file of a unit, at the version that was judged."""

    key: str
    version: str
    size: int
    modified: int


class PlanLine(msgspec.Struct, frozen=True):
    """One unit: what is to be done to it and why; the rest is the sighting that it was judged by."""

    verb: str
    unit: str
    reason: str
    evidence: str
    since: str
    size: int
    files: list[PlanFile]
    fingerprint: str
    first_scan: int = msgspec.field(name="first_round")
    first_at: int
    first_tick: int
    state: str
    state_scan: str = msgspec.field(default="", name="state_round")
    state_at: int = 0
    state_tick: int = 0


class Header(msgspec.Struct, frozen=True):
    """Of what the plan is, and what is in it."""

    format: str
    root: str
    store: str
    digest: str
    round: str
    number: int
    at: datetime
    snapshot_at: datetime
    tick: int
    held: str
    counts: dict[str, int]
    lines: int
    sha256: str


_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(PlanLine).decode
_decode_header = msgspec.json.Decoder(Header).decode


class SavedPlan:
    """A plan on disk. Iterating gives its suspects."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header

    def __iter__(self) -> Iterator[Suspected]:
        for line in self.lines():
            yield _suspected(line)

    def lines(self) -> Iterator[PlanLine]:
        """Its lines, after the first."""
        with open(self.path, "rb") as file:
            file.readline(LINE_BYTES_MAX)
            for number, line in enumerate(file, 2):
                try:
                    yield _decode_line(line)
                except msgspec.DecodeError as why:
                    raise StoreBroken(f"line {number} of {self.path} is no line of a plan: {why}", do=_ANEW) from None

    def looked(self) -> ScanResult:
        """The plan as what a look found, armed by whoever carries it out."""
        head = self.header
        made = CompleteScan(head.root, head.round, head.number, head.at, head.snapshot_at, head.tick, head.counts)
        return ScanResult(made, self, "", armed=True)


_ANEW = "make a new plan: wrasse orphans plan"


def write_plan(path: Path, root: Root, looked: ScanResult, planned: Iterable[Suspected]) -> Header:
    """Writes a plan; it gets its name when it is whole."""
    body, told, lines = Path(f"{path}.body"), hashlib.sha256(), 0
    try:
        with open(body, "wb", opener=open_private) as file:
            for each in planned:
                text = _encode(_line(each)) + b"\n"
                told.update(text)
                file.write(text)
                lines += 1
        made = looked.round
        header = Header(
            FORMAT,
            root.name,
            root.store,
            root.digest,
            made.id,
            made.number,
            made.at,
            made.snapshot_at,
            made.tick,
            looked.held,
            made.counts,
            lines,
            told.hexdigest(),
        )
        with open(f"{path}.part", "wb", opener=open_private) as whole, open(body, "rb") as file:
            whole.write(_encode(header) + b"\n")
            while chunk := file.read(1 << 20):
                whole.write(chunk)
            whole.flush()
            os.fsync(whole.fileno())
        os.rename(f"{path}.part", path)
        return header
    except OSError as why:
        raise UsageError(f"{path} cannot be written: {why.strerror}", do="name a file you may write") from None
    finally:
        body.unlink(missing_ok=True)


def read_plan(path: Path) -> SavedPlan:
    """A plan as it was written, or an error."""
    told, lines = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            try:
                header = _decode_header(file.readline(LINE_BYTES_MAX))
            except msgspec.DecodeError:
                raise UsageError(f"{path} is no plan", do=_ANEW) from None
            for line in file:
                told.update(line)
                lines += 1
    except OSError as why:
        raise UsageError(f"{path} cannot be read: {why.strerror}", do="name a plan file") from None
    if header.format != FORMAT or (header.sha256, header.lines) != (told.hexdigest(), lines):
        raise Refused(f"{path} was changed after it was written, or cut", do=_ANEW)
    return SavedPlan(path, header)


def check_plan(header: Header, root: Root, standing: Standing, *, allow: str) -> None:
    """Refuses a plan that is not of this root as it is now, or too old, or too large without leave."""
    if (header.root, header.digest) != (root.name, root.digest):
        raise Refused(f"the plan is of another configuration of {header.root}", do=_ANEW)
    last = standing.last
    if last is None or last.number < header.number or last.at < header.at:
        raise Refused("the plan is of another database of sightings", do=_ANEW)
    fresh = max(root.graces.shortest, FRESH_MIN)
    if standing.at - header.at >= fresh:
        raise Refused(f"the plan is older than the shortest grace, {format_duration(fresh)}", do=_ANEW)
    if header.held and allow != header.round:
        raise Refused(f"the plan is held: {header.held}", do=f"if that is right: --allow {header.round}")


def _line(suspected: Suspected) -> PlanLine:
    known = suspected.known
    return PlanLine(
        suspected.verb,
        name_of(known.unit),
        suspected.reason,
        known.evidence,
        from_micros(known.first_at).isoformat(timespec="seconds"),
        known.size,
        [PlanFile(name_of(each.key), each.version, each.size, each.modified) for each in unpack(known.files)],
        known.fingerprint,
        known.first_scan,
        known.first_at,
        known.first_tick,
        known.state,
        known.state_scan,
        known.state_at,
        known.state_tick,
    )


def _suspected(line: PlanLine) -> Suspected:
    files = [SpooledObject(unit_of(each.key), each.size, each.version, each.modified) for each in line.files]
    known = KnownSighting(
        unit_of(line.unit),
        line.evidence,
        line.fingerprint,
        line.size,
        pack(files),
        line.first_scan,
        line.first_at,
        line.first_tick,
        line.state,
        line.state_scan,
        line.state_at,
        line.state_tick,
    )
    return Suspected(line.verb, known, line.reason)
