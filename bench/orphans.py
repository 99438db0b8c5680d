"""Orphans at scale: a million objects against a million references, one process, no latency of a store.

    python -m bench.orphans [--objects 1000000] [--orphans 0.01]

Objects and references are made as they are asked for, so that what is measured is ours: spooling, merging, judging,
noting in SQLite. Memory is the peak above the idle process.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from wrasse.backends.memory.objects import MemoryObjects
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.orphans.desk import Desk
from wrasse.orphans.look import Ports
from wrasse.orphans.root import Graces, Root
from wrasse.orphans.template import parse_template
from wrasse.ports.catalog import Reference
from wrasse.ports.objects import ObjectInfo
from wrasse.ports.page import Page

CLOCK = SystemClock()
ROOT = Root(
    "bench",
    parse_template("archives/{id}/{op_id}/{file}"),
    "archives/",
    graces=Graces(timedelta(hours=2), timedelta(hours=2), timedelta(days=30)),
    age_min=timedelta(0),
    keep_newest=0,
)


@dataclass(frozen=True, slots=True)
class Field:
    """So many archives of one file each, in the order of their keys; every `gap`-th has no reference."""

    objects: int
    gap: int
    at: datetime

    def key(self, number: int) -> str:
        """The key of one object, as long as keys of archives are."""
        return f"archives/workspace-{number // 4:012}/operation-{number:024}/home.tar.zst"


class Listing(MemoryObjects):
    """A store that lists what the field says."""

    def __init__(self, field: Field) -> None:
        super().__init__(CLOCK)
        self._field = field

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        field, start = self._field, 0 if after is None else int(after)
        end = min(start + limit, field.objects)
        old = field.at - timedelta(days=1)
        items = tuple([ObjectInfo(field.key(n), 1_000 + n, f"version-{n}", old) for n in range(start, end)])
        return Page(items, tuple([str(n + 1) for n in range(start, end)]), field.at, end < field.objects)


class Rows:
    """A catalog that refers to all but every gap-th."""

    def __init__(self, field: Field) -> None:
        self._field = field

    @property
    def at(self) -> datetime:
        """Its clock."""
        return self._field.at

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Rows]:
        """Itself: nothing changes."""
        yield self

    async def page(self, after: str | None, limit: int) -> Page[Reference]:
        """References in order."""
        field, start = self._field, 0 if after is None else int(after)
        end = min(start + limit, field.objects)
        shown = [n for n in range(start, end) if n % field.gap]
        items = tuple([Reference(field.key(n), owner=str(n), rule="archive_key") for n in shown])
        cursors = tuple([str(n + 1) for n in shown[:-1]] + [str(end)] * bool(shown))
        return Page(items, cursors, field.at, end < field.objects)

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        """None is, of those it is asked about."""
        return [None] * len(keys)


async def measure(objects: int, orphans: float) -> None:
    """Two looks, and what they cost."""
    place = Path(tempfile.mkdtemp(prefix="wrasse-bench-"))
    store = await Sqlite.open(place / "wrasse.db", CLOCK)
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    field = Field(objects, max(2, round(1 / orphans)), CLOCK.now())
    desk = Desk(ROOT, Ports(Listing(field), Rows(field), store.sightings, place / "spool", CLOCK))
    try:
        for name in ("first look", "second look"):
            began, cpu = CLOCK.monotonic(), _cpu()
            looked = await desk.look(note=True)
            took, used = CLOCK.monotonic() - began, _cpu() - cpu
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            counts = looked.round.counts
            print(
                f"{name}: {objects:,} objects x {counts['rows']:,} references in {took:.1f} s ({used:.1f} s CPU, "
                f"{objects / took:,.0f}/s); {counts['protected']:,} protected, "
                f"{counts.get('found', 0) + counts.get('waiting', 0):,} orphans; "
                f"{peak - idle:.0f} MiB above {idle:.0f} MiB idle"
            )
    finally:
        desk.close()
        await store.close()
        shutil.rmtree(place)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--orphans", type=float, default=0.01)
    given = parser.parse_args()
    asyncio.run(measure(given.objects, given.orphans))


if __name__ == "__main__":
    main()
