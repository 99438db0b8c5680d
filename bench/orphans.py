"""Orphans at scale: a million objects against a million references, in one process, without the latency of a store.

    python -m bench.orphans 1000000        two scans of so many objects, as JSON

Objects and references are made as they are asked for, so what is measured is ours: spooling, merging, judging, and
noting in SQLite. Each size is measured in a process of its own, since the peak of memory is the process's. One object
in a hundred has no reference.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from bench.measure import Benchmark, Rate, Ratio, Result
from wrasse.backends.memory.objects import MemoryObjects
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.orphans.root import Graces, Root, parse_template
from wrasse.orphans.scan import Ports
from wrasse.orphans.scanner import Scanner
from wrasse.ports.catalog import Reference
from wrasse.ports.objects import ObjectInfo
from wrasse.ports.page import Page

ABOUT = "a complete scan of objects and as many references, seconds and memory"
CLOCK = SystemClock()
GAP = 100
SECONDS_MAX = 15.0
MEBIBYTES_MAX = 40.0
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
    """So many archives of one file each, in the order of their keys; every GAP-th has no reference."""

    objects: int
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
    """A catalog that refers to all but every GAP-th."""

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
        shown = [n for n in range(start, end) if n % GAP]
        items = tuple([Reference(field.key(n), owner=str(n), rule="archive_key") for n in shown])
        cursors = tuple([str(n + 1) for n in shown[:-1]] + [str(end)] * bool(shown))
        return Page(items, cursors, field.at, end < field.objects)

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        """None is, of those it is asked about."""
        return [None] * len(keys)

    def leader(self, name: str) -> None:
        """It has no locks of sessions."""


@dataclass(frozen=True, slots=True)
class ScanCost:
    """What two scans cost: the seconds of the first, and the peak of memory before them and after both."""

    objects: int
    seconds: float
    again: float
    idle: float
    peak: float


async def measure(objects: int, place: Path) -> ScanCost:
    """Two scans in this process."""
    store = await Sqlite.open(place / "wrasse.db", CLOCK)
    idle, field = _peak(), Field(objects, CLOCK.now())
    assert store.sightings is not None, "SQLite keeps them"
    scanner = Scanner(ROOT, Ports(Listing(field), Rows(field), store.sightings, place / "spool", CLOCK))
    taken = []
    try:
        for _ in range(2):
            began = CLOCK.monotonic()
            counts = (await scanner.scan(note=True)).scan.counts
            taken.append(CLOCK.monotonic() - began)
            assert counts["protected"] == objects - objects // GAP, "all that are referenced"
    finally:
        scanner.close()
        await store.close()
    return ScanCost(objects, taken[0], taken[1], idle, _peak())


def _peak() -> float:
    """In MiB. Not from getrusage: that goes on counting from what the parent had."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measured(objects: int) -> ScanCost:
    """The same in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.orphans", str(objects)], capture_output=True, text=True, check=True
    )
    return ScanCost(**json.loads(done.stdout))


def run(quick: bool) -> Result:
    """A size, and three times that. The seconds of a quick run are scaled to a million."""
    size = 100_000 if quick else 1_000_000
    one, three = measured(size), measured(3 * size)
    rates = tuple(Rate(f"{each.objects:,} objects", each.objects / each.seconds, "objects/s") for each in (one, three))
    million = one.seconds * 1_000_000 / size
    grown = (three.peak - three.idle) / (one.peak - one.idle)
    return Result(
        BENCHMARK.name,
        ABOUT,
        rates,
        (
            Ratio("seconds for a million", million, SECONDS_MAX, least=False),
            Ratio("MiB above the idle process", one.peak - one.idle, MEBIBYTES_MAX, least=False),
            Ratio("memory with three times as many", grown, 1.1, least=False),
        ),
    )


BENCHMARK = Benchmark("orphans", ABOUT, run)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="wrasse-bench-") as here:
        print(json.dumps(asdict(asyncio.run(measure(int(sys.argv[1]), Path(here))))))
