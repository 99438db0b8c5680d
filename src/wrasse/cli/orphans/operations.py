"""Orphans by hand: a scan, a plan carried out, an undo, each under the lease of the root's sweep and journalled like
any other run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock, SystemClock
from wrasse.config.load import Config
from wrasse.engine.budget import RunBudget
from wrasse.engine.guard import LeaseGuard
from wrasse.engine.report import Report
from wrasse.engine.run import RunContext, run_once
from wrasse.engine.sweep import Action
from wrasse.engine.turn import sweep_lease
from wrasse.errors import Refused, UnknownName
from wrasse.ids import Ids
from wrasse.leases.lease_scope import RenewedLease, kept
from wrasse.orphans.scan import ScanProgress, ScanResult
from wrasse.orphans.scanner import OrphanSuspect, Scanner
from wrasse.orphans.verdict import Suspected
from wrasse.ports.sightings import CompleteScan
from wrasse.runtime.backends import Stores
from wrasse.runtime.open_ports import ENGINE, ORPHANS, OpenPorts, open_homes
from wrasse.runtime.orphans import instance_of
from wrasse.runtime.worker import owner_name
from wrasse.sweeps.orphan_objects import OrphanObjects

WAIT = timedelta(seconds=10)
SHOW_EVERY = 0.2
_ALL = 1_000_000_000


@dataclass(frozen=True, slots=True)
class OrphanContext:
    """What a command about orphans needs."""

    config: Config
    opened: OpenPorts
    clock: Clock
    scanners: Sequence[Scanner]

    def scanner(self, root: str | None) -> Scanner:
        """The scanner of a root; without a name, of the only one."""
        name = the_root(self.config, root)
        return next(scanner for scanner in self.scanners if scanner.root.name == name)


def the_root(config: Config, root: str | None) -> str:
    """The name of a configured root; without one, the only one. Commands that write call this before they open, and so
    create, anything."""
    names = list(config.settings.orphans)
    if not names:
        raise Refused("no root of orphans is configured", do="see docs/how-to/reclaim-storage.md")
    if root is None and len(names) == 1:
        return names[0]
    if root not in names:
        raise UnknownName(root or "", names, what="root")
    return root


@asynccontextmanager
async def context(config: Config, *, create: bool = True) -> AsyncIterator[OrphanContext]:
    """The context for the length of a command; a command that only reads creates nothing."""
    clock = SystemClock()
    create = create and bool(config.settings.orphans)
    async with Stores.of(config.settings.worker, clock, create=create) as stores:
        opened = await open_homes(config, stores, ORPHANS, ENGINE)
        yield OrphanContext(config, opened, clock, opened.orphans)


@asynccontextmanager
async def leading(context: OrphanContext, scanner: Scanner) -> AsyncIterator[RenewedLease]:
    """Acquires the lease of the root's sweep, so that no daemon works on it meanwhile."""
    lease_manager = context.opened.sweep_homes[scanner.root.name].lease_manager
    key, ttl = sweep_lease(instance_of(scanner.root.name)), context.config.settings.engine.lease
    lease = await lease_manager.acquire(key, owner_name(), ttl, wait=WAIT)
    if lease is None:
        raise Refused(f"another process works on {scanner.root.name}", do="try again when it has finished")
    async with kept(RenewedLease(lease_manager, lease, ttl, context.clock)) as holding:
        yield holding


async def look(context: OrphanContext, scanner: Scanner, *, note: bool) -> ScanResult:
    """A complete scan, with a progress bar on a terminal."""
    async with leading(context, scanner), progress_bar(scanner.orphan_scan.progress):
        return await scanner.scan(note=note)


def planned(scanner: Scanner, result: ScanResult) -> Iterable[Suspected]:
    """What would be done if the root were armed and its plan approved."""
    sweep = OrphanObjects(scanner)
    for each in result.suspects:
        if isinstance(sweep.decide(OrphanSuspect(each), result.round.at), Action):
            yield each


async def carry_out(context: OrphanContext, scanner: Scanner, result: ScanResult) -> Report:
    """Runs the root's sweep on a given result, under its lease and with its journal."""
    own = context.config.settings.sweeps["orphan_objects"]
    scanner.take(result)
    async with leading(context, scanner) as holding:
        return await run_once(
            OrphanObjects(scanner),
            RunContext(context.opened.journal, context.clock, Ids(context.clock)),
            name=instance_of(scanner.root.name),
            budget=RunBudget(_ALL, timedelta(days=1), own.pause),
            guards=(LeaseGuard(holding), *scanner.guards),
        )


def given(last: CompleteScan, suspects: Sequence[Suspected]) -> ScanResult:
    """A scan result from a given list of suspects."""
    return ScanResult(last, suspects, "", armed=True)


@asynccontextmanager
async def progress_bar(progress: ScanProgress) -> AsyncIterator[None]:
    """Shows the progress of a scan: objects per second, and the remaining time. On a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_show(progress))
        try:
            yield
        finally:
            task.cancel()


async def _show(progress: ScanProgress) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        stage, line = "", None
        while True:
            if progress.stage != stage:
                stage = progress.stage
                line = bar.add_task(stage, total=progress.total, rate="")
            if line is not None:
                speed = bar.tasks[-1].speed or 0
                bar.update(line, completed=progress.done, total=progress.total, rate=f"{speed:,.0f}/s")
            await asyncio.sleep(SHOW_EVERY)
