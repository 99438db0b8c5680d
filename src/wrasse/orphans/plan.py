"""Plan files: what a scan found to be due, with a reason per line, to be read by a person and carried out later.

The header names the root, configuration and scan of the plan, and has a checksum of the other lines; a file that was
changed is refused. A plan is verified when it is carried out: every unit must still have the sighting it was planned
by, and no reference.
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
from wrasse.orphans.merge import name_of, unit_of
from wrasse.orphans.root import Root
from wrasse.orphans.scan import ScanResult
from wrasse.orphans.spool import SpooledObject
from wrasse.orphans.verdict import KnownSighting, Suspected, pack, unpack
from wrasse.ports.sightings import CompleteScan, Standing
from wrasse.private_files import open_private

FORMAT = "wrasse orphans plan 1"
LINE_BYTES_MAX = 16 << 20
FRESH_MIN = timedelta(hours=1)  # a person needs time to read it
_ANEW = "make a new plan: wrasse orphans plan"


class PlanFile(msgspec.Struct, frozen=True):
    """One file of a unit, at the version that was judged."""

    key: str
    version: str
    size: int
    modified: int


class PlanLine(msgspec.Struct, frozen=True):
    """One unit: what is to be done to it and why, and the sighting that it was judged by."""

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
    """The origin of a plan, and its totals."""

    format: str
    root: str
    store: str
    digest: str
    scan: str = msgspec.field(name="round")
    number: int
    at: datetime
    snapshot_at: datetime
    tick: int
    needs_approval: str = msgspec.field(name="held")
    counts: dict[str, int]
    lines: int
    sha256: str


_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(PlanLine).decode
_decode_header = msgspec.json.Decoder(Header).decode


class SavedPlan:
    """A plan on disk. Iterating yields its suspects."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header

    def __iter__(self) -> Iterator[Suspected]:
        for line in self.lines():
            yield _suspected(line)

    def lines(self) -> Iterator[PlanLine]:
        """Its lines after the header."""
        with open(self.path, "rb") as file:
            file.readline(LINE_BYTES_MAX)
            for number, line in enumerate(file, 2):
                try:
                    yield _decode_line(line)
                except msgspec.DecodeError as why:
                    raise StoreBroken(f"line {number} of {self.path} is no plan line: {why}", do=_ANEW) from None

    def result(self) -> ScanResult:
        """The plan as a scan result, armed by the person who carries it out."""
        head = self.header
        made = CompleteScan(head.root, head.scan, head.number, head.at, head.snapshot_at, head.tick, head.counts)
        return ScanResult(made, self, armed=True)


def write_plan(path: Path, root: Root, result: ScanResult, planned: Iterable[Suspected]) -> Header:
    """Writes a plan; the file gets its final name when it is complete."""
    body, digest, lines = Path(f"{path}.body"), hashlib.sha256(), 0
    try:
        with open(body, "wb", opener=open_private) as file:
            for each in planned:
                text = _encode(_line(each)) + b"\n"
                digest.update(text)
                file.write(text)
                lines += 1
        made = result.scan
        header = Header(
            format=FORMAT,
            root=root.name,
            store=root.store,
            digest=root.digest,
            scan=made.id,
            number=made.number,
            at=made.at,
            snapshot_at=made.snapshot_at,
            tick=made.tick,
            needs_approval=result.needs_approval,
            counts=made.counts,
            lines=lines,
            sha256=digest.hexdigest(),
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
        raise UsageError(f"{path} cannot be written: {why.strerror}", do="name a file that you may write") from None
    finally:
        body.unlink(missing_ok=True)


def read_plan(path: Path) -> SavedPlan:
    """Reads and verifies a plan."""
    digest, lines = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            try:
                header = _decode_header(file.readline(LINE_BYTES_MAX))
            except msgspec.DecodeError:
                raise UsageError(f"{path} is not a plan", do=_ANEW) from None
            for line in file:
                digest.update(line)
                lines += 1
    except OSError as why:
        raise UsageError(f"{path} cannot be read: {why.strerror}", do="name a plan file") from None
    if header.format != FORMAT or (header.sha256, header.lines) != (digest.hexdigest(), lines):
        raise Refused(f"{path} was changed or truncated after it was written", do=_ANEW)
    return SavedPlan(path, header)


def check_plan(header: Header, root: Root, standing: Standing, *, allow: str) -> None:
    """Refuses a plan of another configuration, one that is too old, and one that is too large without permission."""
    if (header.root, header.digest) != (root.name, root.digest):
        raise Refused(f"the plan is of another configuration of {header.root}", do=_ANEW)
    last = standing.last
    if last is None or last.number < header.number or last.at < header.at:
        raise Refused("the plan was made with another database of sightings", do=_ANEW)
    fresh = max(root.graces.shortest, FRESH_MIN)
    if standing.at - header.at >= fresh:
        raise Refused(f"the plan is older than the shortest grace, {format_duration(fresh)}", do=_ANEW)
    if header.needs_approval and allow != header.scan:
        do = f"if that is correct: --allow {header.scan}"
        raise Refused(f"the plan needs approval: {header.needs_approval}", do=do)


def _line(suspected: Suspected) -> PlanLine:
    known = suspected.known
    return PlanLine(
        verb=suspected.verb,
        unit=name_of(known.unit),
        reason=suspected.reason,
        evidence=known.evidence,
        since=from_micros(known.first_at).isoformat(timespec="seconds"),
        size=known.size,
        files=[PlanFile(name_of(each.key), each.version, each.size, each.modified) for each in unpack(known.files)],
        fingerprint=known.fingerprint,
        first_scan=known.first_scan,
        first_at=known.first_at,
        first_tick=known.first_tick,
        state=known.state,
        state_scan=known.state_scan,
        state_at=known.state_at,
        state_tick=known.state_tick,
    )


def _suspected(line: PlanLine) -> Suspected:
    files = [SpooledObject(unit_of(each.key), each.size, each.version, each.modified) for each in line.files]
    known = KnownSighting(
        unit=unit_of(line.unit),
        evidence=line.evidence,
        fingerprint=line.fingerprint,
        size=line.size,
        files=pack(files),
        first_scan=line.first_scan,
        first_at=line.first_at,
        first_tick=line.first_tick,
        state=line.state,
        state_scan=line.state_scan,
        state_at=line.state_at,
        state_tick=line.state_tick,
    )
    return Suspected(line.verb, known, line.reason)
