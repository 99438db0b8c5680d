"""A field for orphans: a store of archives, a catalog of workspaces, sightings and a clock, in memory or on disk."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec

from wrasse.backends.memory.catalog import MemoryCatalog
from wrasse.backends.memory.journal import MemoryJournal
from wrasse.backends.memory.objects import MemoryObjects
from wrasse.backends.memory.sightings import MemorySightings
from wrasse.clock import ManualClock
from wrasse.engine.report import Report
from wrasse.engine.run import RunBudget, RunContext, run_once
from wrasse.ids import Ids
from wrasse.orphans.root import Graces, Root, parse_template
from wrasse.orphans.scan import Ports, read_approval, write_approval
from wrasse.orphans.scanner import Scanner
from wrasse.ports.catalog import Catalog, Reference
from wrasse.ports.objects import Objects
from wrasse.ports.sightings import Sightings
from wrasse.sweeps.orphan_objects import OrphanObjects

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
TEMPLATE = "archives/{id}/{op_id}/{file}"
SEED = Root(
    "archives",
    parse_template(TEMPLATE),
    "archives/",
    graces=Graces(2 * HOUR, 2 * HOUR, 30 * DAY),
    age_min=timedelta(0),
    keep_newest=0,
)


def at_key(workspace: str, op: str, file: str = "home.tar.gz") -> str:
    """The key of one file of an archive."""
    return f"archives/{workspace}/{op}/{file}"


class Field:
    """A root and everything around it. The daemon's run is `run`; `arm` lets it act."""

    def __init__(
        self,
        spool: Path,
        root: Root = SEED,
        *,
        objects: Objects | None = None,
        catalog: Catalog | None = None,
        sightings: Sightings | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.root = root
        self.store = MemoryObjects(self.clock)
        self.rows = MemoryCatalog(self.clock)
        self.objects: Objects = objects or self.store
        self.catalog: Catalog = catalog or self.rows
        self.sightings: Sightings = sightings or MemorySightings(self.clock)
        self.journal = MemoryJournal(self.clock)
        self._spool = spool
        self.scanner = self.another()

    def another(self, **changes: object) -> Scanner:
        """A scanner of another process at the same root."""
        root = replace(self.root, **changes) if changes else self.root  # type: ignore[arg-type]
        return Scanner(root, Ports(self.objects, self.catalog, self.sightings, self._spool, self.clock))

    async def put(self, workspace: str, op: str, *files: str, data: bytes = b"home") -> None:
        """A worker uploads an archive: its data, then its marker."""
        for file in files or ("home.tar.gz", "home.tar.gz.meta"):
            assert await self.objects.create(at_key(workspace, op, file), data + file.encode())

    def refer(self, workspace: str, op: str, **row: object) -> Reference:
        """A row names an archive."""
        reference = Reference(at_key(workspace, op), owner=workspace, rule="archive_key", **row)  # type: ignore[arg-type]
        self.rows.add(reference)
        return reference

    async def keys(self) -> list[str]:
        """Every key below the root."""
        return [info.key for info in await self.objects.page("archives/", None, 100_000)]

    async def trash(self) -> list[str]:
        """Every key in the trash."""
        return [info.key for info in await self.objects.page(".trash/", None, 100_000)]

    async def arm(self, *, allow: str = "") -> None:
        """Somebody lets the root act by itself, and overrules a refusal."""
        standing = await self.sightings.standing(self.root.name)
        approval = read_approval(standing.value)
        said = msgspec.structs.replace(approval, armed=self.root.digest, allowed=allow)
        assert await self.sightings.write(self.root.name, write_approval(said), at=standing.version)

    async def run(
        self,
        scanner: Scanner | None = None,
        *,
        dry: bool = False,
        after: timedelta = timedelta(0),
        actions_max: int = 10_000,
    ) -> Report:
        """One run of the sweep, after some time."""
        self.clock.advance(after)
        scanner = scanner or self.scanner
        return await run_once(
            OrphanObjects(scanner),
            RunContext(self.journal, self.clock, Ids(self.clock)),
            name=f"orphan_objects@{self.root.name}",
            budget=RunBudget(actions_max, timedelta(minutes=10)),
            guards=[scanner.watch],
            dry_run=dry,
        )
