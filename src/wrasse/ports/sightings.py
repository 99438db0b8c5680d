"""Sightings: what was found without a reference, and since when.

Promise. A scan compares one whole root with its references. Its changes and its record are committed together or not at
all, and only after the scan they were derived from: of two concurrent scans one is committed. What is in quarantine is
changed by `mark` alone, under the state and the fingerprint that were read. Nothing here expires by itself.

Costs. page, get, mark, standing: one round trip. commit: one transaction, which streams its changes and writes nothing
for what did not change: number and time of scans follow from their records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec

from wrasse.clock import from_micros, to_micros
from wrasse.errors import UsageError
from wrasse.ports.objects import raw_key
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

MARKS_MAX = 1_000
_decode_counts = msgspec.json.Decoder(dict[str, int]).decode
COLUMNS = ("unit", "evidence", "fingerprint", "size", "files", "first_round", "first_at", "first_tick",
           "state", "state_round", "state_at", "state_tick")  # fmt: skip
Row = tuple[bytes, str, str, int, bytes, int, int, int, str, str, int | None, int]
KINDS = ("bytea", "text", "text", "bigint", "bytea", "bigint", "bigint", "bigint", "text", "text", "bigint", "bigint")


class Evidence(StrEnum):
    """Why something counts as an orphan. Each has a grace of its own."""

    SUPERSEDED = "superseded"  # its owner is there and refers to something else
    SOFT_DELETED = "soft_deleted"  # only rows that have ended refer to it or to its owner
    OWNER_UNKNOWN = "owner_unknown"  # no row knows its owner


class SightingState(StrEnum):
    """Where a sighting stands."""

    SEEN = "seen"
    MARKED = "marked"  # in quarantine where it is
    MOVED = "moved"  # in quarantine, its files in the trash


@dataclass(frozen=True, slots=True)
class Sighting:
    """One unit that was an orphan at every scan since `first_scan`. `unit` is the key of an object, or the directory
    `a/b/` of several; bytes that are no UTF-8 come in surrogateescape form. `fingerprint` changes when any of its
    files does. `files` is for its writer alone. Ticks are microseconds of the root's own time (see Round)."""

    unit: str
    evidence: Evidence
    fingerprint: str
    size: int
    files: bytes
    first_scan: int
    first_at: datetime
    first_tick: int
    state: SightingState = SightingState.SEEN
    state_scan: str = ""  # the id of the scan that put it in quarantine
    state_at: datetime | None = None
    state_tick: int = 0


@dataclass(frozen=True, slots=True)
class CompleteScan:
    """The record of one scan. `number` counts from 1 without a gap; `at` is this store's clock and
    `snapshot_at` the catalog's; `tick` is time that passed by every clock we know, so that no step of one shortens a
    grace. `counts` is what was counted, by name."""

    root: str
    id: str
    number: int
    at: datetime
    snapshot_at: datetime
    tick: int
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class NewSighting:
    """A change: this is an orphan since now. Written over a sighting in the state `seen`, never over a quarantine."""

    sighting: Sighting


@dataclass(frozen=True, slots=True)
class Unseen:
    """A change: this is no orphan any more, or is gone. Removes a sighting in the state `seen` only."""

    unit: str


Change = NewSighting | Unseen


@dataclass(frozen=True, slots=True)
class SightingChange:
    """A sighting in this state and with this fingerprint comes to the state `to`; None forgets it."""

    unit: str
    state: SightingState
    fingerprint: str
    to: SightingState | None
    round: str = ""
    tick: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one root: its last scan, and a small value of the caller (armed since when, and the
    like) with its version, 0 while there is none. `at` is this store's clock, now."""

    at: datetime
    last: CompleteScan | None = None
    value: bytes = b""
    version: int = 0


class Sightings(Protocol):
    """The sightings of all roots. Every method names the root: roots share nothing."""

    async def standing(self, root: str) -> Standing:
        """The last round, the value and the time."""
        ...

    async def write(self, root: str, value: bytes, *, at: int) -> bool:
        """Replaces the value of the standing if it still has version `at`."""
        ...

    async def page(
        self, root: str, after: str | None, limit: int, state: SightingState | None = None
    ) -> Page[Sighting]:
        """Sightings in the byte order of their units; `after` is a unit, and cursors are."""
        ...

    async def get(self, root: str, units: Sequence[str]) -> Sequence[Sighting | None]:
        """The sightings of these units."""
        ...

    async def commit(self, made: CompleteScan, changes: Iterable[Sequence[Change]]) -> bool:
        """Makes all changes and keeps the round, in one transaction, if the last round is `made.number - 1`; else
        nothing, and False. The iterable is read in another thread, batch by batch, and may be begun again; if it
        raises, nothing is changed. A unit is in it once at most."""
        ...

    async def mark(self, root: str, marks: Sequence[SightingChange]) -> Sequence[Outcome]:
        """Changes states, all in one transaction, each under its own condition; `conflict` where it does not hold."""
        ...


def check_marks(marks: Sequence[SightingChange]) -> None:
    """Refuses more marks than one call takes."""
    if len(marks) > MARKS_MAX:
        raise UsageError(f"{len(marks)} marks at once", do=f"mark at most {MARKS_MAX} units in one call")


def values(each: Sighting) -> Row:
    """The columns of a sighting."""
    return (
        raw_key(each.unit),
        each.evidence.value,
        each.fingerprint,
        each.size,
        each.files,
        each.first_scan,
        to_micros(each.first_at),
        each.first_tick,
        each.state.value,
        each.state_scan,
        None if each.state_at is None else to_micros(each.state_at),
        each.state_tick,
    )


def sighting(row: Sequence[object]) -> Sighting:
    """The sighting of a row."""
    unit, evidence, fingerprint, size, files, first_scan, first_at, first_tick, state, by, at, tick = row
    assert isinstance(unit, bytes), "as the schema says"
    assert isinstance(files, bytes), "as the schema says"
    return Sighting(
        unit.decode("utf-8", "surrogateescape"),
        Evidence(_text(evidence)),
        _text(fingerprint),
        whole(size),
        files,
        whole(first_scan),
        from_micros(whole(first_at)),
        whole(first_tick),
        SightingState(_text(state)),
        _text(by),
        None if at is None else from_micros(whole(at)),
        whole(tick),
    )


def scan_of(root: str, row: Sequence[object]) -> CompleteScan:
    """The round of a row."""
    id, number, at, snapshot_at, tick, counts = row
    times = from_micros(whole(at)), from_micros(whole(snapshot_at))
    return CompleteScan(root, str(id), whole(number), *times, whole(tick), _decode_counts(str(counts)))


def _text(value: object) -> str:
    """A text of the schema; its bytes, where the database may hold some that are none."""
    return value.decode() if isinstance(value, bytes) else str(value)


def whole(value: object) -> int:
    """A number of the schema."""
    assert isinstance(value, int), "as the schema says"
    return value
