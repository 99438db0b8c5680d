"""Guards of the collector, each taken away on purpose; the simulation must notice every one.

Each is a change of one name of the product for the length of one story. Nothing here is in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from simulation.orphans_world import ROOT_OF_ALL, OrphanBug
from wrasse.backends.memory.objects import MemoryObjects
from wrasse.backends.memory.sightings import MemorySightings
from wrasse.clock import to_micros
from wrasse.orphans import merge, removal, scan, verdict
from wrasse.orphans.removal import Removal, Trash
from wrasse.orphans.root import Graces, Root
from wrasse.orphans.scan import OrphanScan
from wrasse.orphans.spool import Referred, SpooledObject
from wrasse.orphans.verdict import KnownSighting, Scene, Unit, Verdict, judge_protected
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.sightings import CompleteScan, Evidence, Sighting, SightingState, Standing


def put(*changes: tuple[object, str, object]) -> Callable[[], Callable[[], None]]:
    """Puts other things in the place of these names, and gives what puts them back."""

    def plant() -> Callable[[], None]:
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
        for owner, name, other in changes:
            setattr(owner, name, other)

        def undo() -> None:
            for owner, name, was in before:
                setattr(owner, name, was)

        return undo

    return plant


_list, _refer, _move = OrphanScan._list, OrphanScan._read_references, Trash._put


async def _references_first(self: Any, place: Path, expected: CompleteScan | None) -> datetime:
    self.early = await _refer(self, place, expected)
    return await _list(self, place, expected)


async def _read_already(self: Any, place: Path, expected: CompleteScan | None) -> datetime:
    return self.early  # type: ignore[no-any-return]


async def _nobody_asks(self: Removal, units: Sequence[KnownSighting], snapshot_at: datetime) -> list[bool]:
    return [True] * len(units)


def _no_time(self: Graces, evidence: Evidence) -> timedelta:
    return timedelta(0)


def _by_one_clock(self: OrphanScan, standing: Standing, snapshot_at: datetime, listed_at: datetime) -> Scene:
    """Time as the sightings' clock alone has it."""
    self._scanned_at = self._ports.clock.monotonic()
    number = 1 if standing.last is None else standing.last.number + 1
    return Scene(self.root, number, to_micros(standing.at), to_micros(standing.at), to_micros(listed_at))


def _soft_deleted_at_once(self: Graces, evidence: Evidence) -> timedelta:
    return timedelta(0) if evidence is Evidence.SOFT_DELETED else self.superseded


def _plausible(now: object, last: object, caps: object) -> str:
    return ""


def _no_healing(known: KnownSighting, by: Referred, unit: Unit | None, scene: Scene) -> Verdict:
    judged = judge_protected(known, by, unit, scene)
    return judged if known.state == SightingState.SEEN else Verdict("in_quarantine")


def _whatever(unit: Unit, known: KnownSighting) -> bool:
    return True


async def _careless(self: MemoryObjects, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
    """A store that ignores conditions."""
    heads = [await self.head(each.key) for each in deletes]
    now = [each.version if head is None else head.info.version for each, head in zip(deletes, heads, strict=True)]
    return await _delete(self, [ObjectDelete(each.key, version) for each, version in zip(deletes, now, strict=True)])


_delete = MemoryObjects.delete


async def _put_whatever(self: Any, key: str, version: str, to: str) -> Outcome:
    head = await self._objects.head(key)
    return await _move(self, key, version if head is None else head.info.version, to)


async def _take_over(self: Any, copy: str, file: SpooledObject) -> Outcome:
    """Bringing back overwrites."""
    key = file.key.decode()
    head, there = await self._objects.head(copy), await self._objects.head(key)
    if head is None:
        return Outcome.DONE
    data = b"".join([chunk async for chunk in self._objects.read(copy)])
    if there is None:
        await self._objects.create(key, data)
    else:
        await self._objects.replace(key, data, at=there.info.version)
    await self._objects.delete([ObjectDelete(copy, head.info.version)])
    return Outcome.DONE


def _marker_last(files: Sequence[SpooledObject], marker: str) -> list[SpooledObject]:
    return sorted(files, key=lambda file: file.key.endswith(marker.encode()))


async def _forgetful(self: MemorySightings, name: str, *args: Any, **named: Any) -> Page[Sighting]:
    """Timers that end by themselves, an hour after the delay, as those of the design document do."""
    here, old = self._root(name), self._clock.now() - timedelta(hours=3)
    for unit in [
        each.unit for each in here.sightings.values() if each.state is SightingState.SEEN and each.first_at <= old
    ]:
        del here.sightings[unit]
    return await _page(self, name, *args, **named)


_page = MemorySightings.page


def root(**changes: Any) -> Root:
    """The root of all stories, with something else about it."""
    return replace(ROOT_OF_ALL, **changes)


BUGS = (
    OrphanBug(
        "references are read before the listing",
        "order",
        put((OrphanScan, "_list", _references_first), (OrphanScan, "_read_references", _read_already)),
    ),
    OrphanBug("nobody asks again before a removal", "asked", put((Removal, "_unreferenced", _nobody_asks))),
    OrphanBug("no grace", "early", put((Graces, "of", _no_time))),
    OrphanBug("time by one clock", "early", put((OrphanScan, "_scene", _by_one_clock)), scenario="clocks are set"),
    OrphanBug("no grace after a soft delete", "early", put((Graces, "of", _soft_deleted_at_once)), scenario="undelete"),
    OrphanBug("any answer is believed", "believed", put((scan, "implausible", _plausible)), scenario="database half"),
    OrphanBug(
        "an empty answer is believed", "believed", put((scan, "implausible", _plausible)), scenario="database empty"
    ),
    OrphanBug("no quarantine", "loss", root=root(quarantine=timedelta(0)), scenario="database minus a tenth"),
    OrphanBug("no quarantine for late commits", "loss", root=root(quarantine=timedelta(0)), scenario="late commit"),
    OrphanBug("no quarantine for rollbacks", "loss", root=root(quarantine=timedelta(0)), scenario="rollback"),
    OrphanBug("hardly a quarantine", "loss", root=root(quarantine=timedelta(seconds=1)), scenario="undelete"),
    OrphanBug(
        "nothing comes back by itself", "not back", put((merge, "judge_protected", _no_healing)), scenario="undelete"
    ),
    OrphanBug(
        "other bytes count as the same",
        "early",
        put((verdict, "_same", _whatever), (Trash, "_put", _put_whatever), (MemoryObjects, "delete", _careless)),
        scenario="written again",
    ),
    OrphanBug("bringing back overwrites", "loss", put((Trash, "_take", _take_over)), scenario="written again"),
    OrphanBug(
        "the marker goes last",
        "torn",
        put((removal, "ordered", _marker_last)),
        scenario="pauses and deaths",
    ),
    OrphanBug("timers that expire", "liveness", put((MemorySightings, "page", _forgetful))),
)
