"""wrasse orphans plan, apply, arm, disarm, undo, why, list.

What changes a root (a scan, a plan carried out, an undo) runs under the lease of the root's sweep, so that no daemon
works on it meanwhile, and is journalled like any other run. An unknown root is refused before a store is opened, and so
created; commands that only read create nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import click
import msgspec

from wrasse.cli.context import CommandContext, finish, with_context
from wrasse.cli.output import printable, show_facts, show_table
from wrasse.cli.sweep import exit_code
from wrasse.clock import Clock, SystemClock
from wrasse.config.load import Config
from wrasse.duration import format_duration
from wrasse.engine.guard import LeaseGuard
from wrasse.engine.report import Report
from wrasse.engine.run import RunBudget, RunContext, run_once
from wrasse.engine.sweep import Action
from wrasse.engine.turn import sweep_lease
from wrasse.errors import Refused, UnknownName
from wrasse.ids import Ids
from wrasse.leases.lease_scope import RenewedLease, renewing
from wrasse.observability.json_format import picked, plain, report_json
from wrasse.orphans.merge import known_of, live, name_of, text, unit_of
from wrasse.orphans.plan import check_plan, read_plan, write_plan
from wrasse.orphans.root import Root
from wrasse.orphans.scan import Approval, ScanProgress, ScanResult, read_approval, write_approval
from wrasse.orphans.scanner import KEPT, OrphanSuspect, Scanner
from wrasse.orphans.verdict import RESTORE, Suspected, histogram, warning
from wrasse.ports.journal import LineFilter
from wrasse.ports.objects import raw_key
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import pages
from wrasse.ports.sightings import Sighting, SightingState, Standing
from wrasse.runtime.backends import Stores
from wrasse.runtime.open_ports import ENGINE, ORPHANS, OpenPorts, open_homes
from wrasse.runtime.orphans import instance_of
from wrasse.runtime.worker import owner_name
from wrasse.sweeps.orphan_objects import OrphanObjects

WAIT = timedelta(seconds=10)  # for the lease of the root's sweep
PROGRESS_EVERY = 0.2  # seconds
ROWS_SHOWN = 20  # of a plan, and of the journal of a key
_PAGE = 1_000
_UNDO_MAX = 1_000_000  # units
_NO_LIMIT = 1_000_000_000  # a plan was read and approved, so no budget cuts it


@dataclass(frozen=True, slots=True)
class OrphanContext:
    """What a command about orphans needs."""

    config: Config
    opened: OpenPorts
    clock: Clock
    scanners: Sequence[Scanner]


@asynccontextmanager
async def context(config: Config, *, create: bool = True) -> AsyncIterator[OrphanContext]:
    """The context for the length of a command."""
    clock = SystemClock()
    create = create and bool(config.settings.orphans)
    async with Stores.of(config.settings.worker, clock, create=create) as stores:
        opened = await open_homes(config, stores, ORPHANS, ENGINE)
        yield OrphanContext(config, opened, clock, opened.orphans)


@asynccontextmanager
async def one_root(
    config: Config, root: str | None, *, create: bool = True
) -> AsyncIterator[tuple[OrphanContext, Scanner]]:
    """The context, and the scanner of a root; without a name, of the only one."""
    names = list(config.settings.orphans)
    if not names:
        raise Refused("no root of orphans is configured", do="see docs/how-to/reclaim-storage.md")
    if root is None and len(names) == 1:
        root = names[0]
    if root not in names:
        raise UnknownName(root or "", names, what="root")
    async with context(config, create=create) as here:
        yield here, next(scanner for scanner in here.scanners if scanner.root.name == root)


@asynccontextmanager
async def leading(context: OrphanContext, scanner: Scanner) -> AsyncIterator[RenewedLease]:
    """Acquires the lease of the root's sweep."""
    lease_manager = context.opened.sweep_homes[scanner.root.name].lease_manager
    key, ttl = sweep_lease(instance_of(scanner.root.name)), context.config.settings.engine.lease
    lease = await lease_manager.acquire(key, owner_name(), ttl, wait=WAIT)
    if lease is None:
        raise Refused(f"another process works on {scanner.root.name}", do="try again when it has finished")
    async with renewing(RenewedLease(lease_manager, lease, ttl, context.clock)) as holding:
        yield holding


async def carry_out(context: OrphanContext, scanner: Scanner, result: ScanResult) -> Report:
    """Runs the root's sweep on a given scan result."""
    own = context.config.settings.sweeps["orphan_objects"]
    scanner.take(result)
    async with leading(context, scanner) as holding:
        return await run_once(
            OrphanObjects(scanner),
            RunContext(context.opened.journal, context.clock, Ids(context.clock)),
            name=instance_of(scanner.root.name),
            budget=RunBudget(_NO_LIMIT, timedelta(days=1), own.pause),
            guards=(LeaseGuard(holding), *scanner.guards),
        )


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
            await asyncio.sleep(PROGRESS_EVERY)


@click.command()
@click.argument("root", required=False)
@click.option("--out", metavar="FILE", help="Write the plan to this file, one JSON object per line.")
@click.option("--dry-run", is_flag=True, help="Store nothing: sightings are not changed.")
@with_context
def plan(ctx: CommandContext, root: str | None, out: str | None, dry_run: bool) -> None:
    """Scan ROOT (by default the only one) completely and show what is due, and why. Nothing is removed. Objects without
    a reference are noted, so that their grace begins; with --dry-run they are not.

    \b
    Examples:
      wrasse orphans plan
      wrasse orphans plan archives --out plan.jsonl
      wrasse orphans plan archives --dry-run --json
    """
    finish(_plan(ctx, root, out, note=not dry_run))


async def _plan(ctx: CommandContext, name: str | None, out: str | None, *, note: bool) -> None:
    async with one_root(ctx.config(), name, create=note) as (here, scanner):
        async with leading(here, scanner), progress_bar(scanner.orphan_scan.progress):
            result = await scanner.scan(note=note)
        first: list[Suspected] = []
        due = _due(scanner, result, first)
        count = sum(1 for _ in due) if out is None else write_plan(Path(out), scanner.root, result, due).lines
        value = {
            "root": scanner.root.name,
            "scan": result.scan.id,
            "at": result.scan.at,
            "armed": result.armed,
            "needs_approval": result.needs_approval,
            "counts": result.scan.counts,
            "lag": dict(histogram(result.scan.counts)),
            "foreign": [printable(key) for key in result.foreign],
            "planned": count,
            "first": [_planned_row(each) for each in first],
            "file": out,
        }
        ctx.answer(value, lambda: _tell_plan(scanner.root, result, first, count, out))


def _due(scanner: Scanner, result: ScanResult, first: list[Suspected]) -> Iterator[Suspected]:
    """What would be done if the root were armed and its plan approved; the first of it are kept in `first`."""
    sweep = OrphanObjects(scanner)
    for each in result.suspects:
        if isinstance(sweep.decide(OrphanSuspect(each), result.scan.at), Action):
            if len(first) < ROWS_SHOWN:
                first.append(each)
            yield each


def _planned_row(each: Suspected) -> dict[str, object]:
    return {
        "verb": each.verb,
        "unit": printable(name_of(each.known.unit)),
        "bytes": each.known.size,
        "reason": each.reason,
    }


def _tell_plan(root: Root, result: ScanResult, first: list[Suspected], count: int, out: str | None) -> None:
    counts, id = result.scan.counts, result.scan.id
    click.echo(f"{root.name}: {counts.get('listed', 0)} objects in {counts.get('units', 0)} units, scan {id}")
    show_table(("count", "units"), [(name.replace("_", " "), counts[name]) for name in KEPT if counts.get(name)])
    if first:
        rows = [list(_planned_row(each).values()) for each in first]
        show_table(("would", "to", "bytes", "because"), rows, title=f"{count} units are due")
        if count > len(first):
            click.echo(f"and {count - len(first)} more" + ("" if out else "; --out FILE writes them all"))
    else:
        click.echo("nothing is due")
    if result.needs_approval:
        allow = f"wrasse orphans arm {root.name} --allow {id}"
        click.echo(f"needs approval: {result.needs_approval}; if it is correct: {allow}")
    if not result.armed:
        click.echo(
            f"not armed: `wrasse orphans apply` carries out one plan, `wrasse orphans arm {root.name}` every one"
        )
    if late := warning(counts, root.graces.superseded):
        click.echo(late)
    if result.foreign:
        click.echo("foreign keys, never touched: " + ", ".join(printable(key) for key in result.foreign[:3]))
    if out:
        click.echo(f"written to {out}")


@click.command("apply")
@click.argument("plan_file", metavar="PLAN")
@click.option("--allow", default="", metavar="SCAN", help="Carry out a plan that needs approval, of this scan.")
@with_context
def apply_(ctx: CommandContext, plan_file: str, allow: str) -> None:
    """Carry out a plan that `wrasse orphans plan --out` wrote. Every unit is checked again: one that is referenced,
    changed or gone by now is not touched. Refused if the plan is older than the shortest grace, or of another
    configuration.

    \b
    Examples:
      wrasse orphans apply plan.jsonl
      wrasse orphans apply plan.jsonl --allow 01KD3Z8Q6Y8M5B9W0X2V7T4N1R
    """
    report = finish(_apply(ctx, plan_file, allow))
    ctx.answer(report_json(report), lambda: _tell_reports([report]))
    raise click.exceptions.Exit(exit_code([report]))


async def _apply(ctx: CommandContext, file: str, allow: str) -> Report:
    plan = read_plan(Path(file))
    async with one_root(ctx.config(), plan.header.root) as (here, scanner):
        check_plan(plan.header, scanner.root, await scanner.sightings.standing(scanner.root.name), allow=allow)
        return await carry_out(here, scanner, plan.result())


def _tell_reports(reports: Sequence[Report]) -> None:
    for report in reports:
        ends = f"{report.planned} planned, {report.done} done, {report.conflict} in conflict, {report.failed} failed"
        click.echo(f"{ends}; run {report.run}")
        for reason, count in report.kept.items():
            click.echo(f"  kept {count}: {printable(reason)}")
        if report.stopped_by:
            click.echo(f"  stopped by {report.stopped_by}: {printable(report.why)}")
        for error in report.errors:
            click.echo(f"  {printable(error)}")


@click.command()
@click.argument("root")
@click.option("--allow", default="", metavar="SCAN", help="Approve this refused scan or its plan, once.")
@with_context
def arm(ctx: CommandContext, root: str, allow: str) -> None:
    """Let ROOT act by itself, with its current configuration. It must have been scanned once: read its plan first.

    \b
    Examples:
      wrasse orphans arm archives
      wrasse orphans arm archives --allow 01KD3Z8Q6Y8M5B9W0X2V7T4N1R
    """
    approval = finish(_arm(ctx, root, allow))
    text = f"{root} is armed" + (f"; scan {allow} is approved once" if allow else "")
    ctx.answer({"root": root, "armed": True, "allowed": approval.allowed}, lambda: click.echo(text))


async def _arm(ctx: CommandContext, root: str, allow: str) -> Approval:
    async with one_root(ctx.config(), root) as (_, scanner):
        standing = await scanner.sightings.standing(root)
        approval = read_approval(standing.value)
        if allow and allow != approval.refused:
            last = f"the last one is {approval.refused}: {approval.why}" if approval.refused else "none was"
            raise Refused(f"scan {allow} is not the last refused one; {last}", do="name that one, if it is correct")
        if standing.last is None and not allow:
            raise Refused(f"{root} was never scanned", do=f"read its plan first: wrasse orphans plan {root}")
        armed = msgspec.structs.replace(approval, armed=scanner.root.digest, allowed=allow or approval.allowed)
        return await _write(scanner, armed, standing)


@click.command()
@click.argument("root")
@with_context
def disarm(ctx: CommandContext, root: str) -> None:
    """Let ROOT only plan from now on. Objects in quarantine stay there: nothing is purged or restored.

    \b
    Examples:
      wrasse orphans disarm archives
    """
    finish(_disarm(ctx, root))
    ctx.answer({"root": root, "armed": False}, lambda: click.echo(f"{root} is not armed any more"))


async def _disarm(ctx: CommandContext, root: str) -> None:
    async with one_root(ctx.config(), root) as (_, scanner):
        standing = await scanner.sightings.standing(root)
        await _write(scanner, msgspec.structs.replace(read_approval(standing.value), armed="", allowed=""), standing)


async def _write(scanner: Scanner, approval: Approval, standing: Standing) -> Approval:
    if not await scanner.sightings.write(scanner.root.name, write_approval(approval), at=standing.version):
        raise Refused(f"a run of {scanner.root.name} wrote sightings meanwhile", do="try again")
    return approval


@click.command()
@click.argument("run")
@with_context
def undo(ctx: CommandContext, run: str) -> None:
    """Restore what RUN put into quarantine: the id of a run, from reports and the journal, or of a scan, from plans.
    Never overwrites: if another object exists at the key, the copy stays in the trash.

    \b
    Examples:
      wrasse orphans undo 01KD3Z8Q6Y8M5B9W0X2V7T4N1R
    """
    reports = finish(_undo(ctx, run))
    ctx.answer({"reports": [report_json(each) for each in reports]}, lambda: _tell_reports(reports))
    raise click.exceptions.Exit(exit_code(reports))


async def _undo(ctx: CommandContext, run: str) -> list[Report]:
    reports = []
    async with context(ctx.config()) as here:
        for scanner in here.scanners:
            found = await _taken(here, scanner, run)
            standing = await scanner.sightings.standing(scanner.root.name)
            if found and standing.last is not None:
                suspects = [Suspected(RESTORE, known_of(each), f"undo of {run}") for each in found]
                reports.append(await carry_out(here, scanner, ScanResult(standing.last, suspects, armed=True)))
    if not reports:
        do = "see `wrasse orphans why KEY`, which names the run; purged objects cannot be restored"
        raise UnknownName(run, (), what="run that has anything in quarantine", do=do)
    return reports


async def _taken(here: OrphanContext, scanner: Scanner, run: str) -> list[Sighting]:
    """What a run or a scan put into quarantine and is still there, in the order of keys."""
    root, units = scanner.root.name, set[str]()
    where = LineFilter(sweep=instance_of(root), run=run)
    async for lines in pages(lambda after: here.opened.journal.page(where, after, _PAGE)):
        # In a conflict another run took the object, and undoing that needs its id.
        taken = [line.intent for line in lines if line.outcome is not Outcome.CONFLICT]
        units |= {text(unit_of(intent.suspect)) for intent in taken if intent.verb == "quarantine"}
        if len(units) >= _UNDO_MAX:
            break
    found = list[Sighting]()
    for state in (SightingState.MARKED, SightingState.MOVED):
        async for page in pages(partial(scanner.sightings.page, root, limit=_PAGE, state=state)):
            found += [each for each in page if each.unit in units or each.state_scan == run]
    return sorted(found, key=lambda each: known_of(each).unit)


@click.command()
@click.argument("key")
@click.option("--root", help="The root.  [default: the one whose prefix the key has]")
@with_context
def why(ctx: CommandContext, key: str, root: str | None) -> None:
    """Explain why KEY, or its unit, is kept or removed: the referencing row and rule, since when it is an orphan,
    when it is due, and what sweeps did to it.

    \b
    Examples:
      wrasse orphans why archives/ws1/op7/home.tar.gz
      wrasse orphans why archives/ws1/op7/ --json
    """
    facts = finish(_why(ctx, key, root))
    ctx.answer(facts, lambda: _tell_why(facts))


async def _why(ctx: CommandContext, key: str, root: str | None) -> Mapping[str, object]:
    config = ctx.config()
    if root is not None:
        async with one_root(config, root, create=False) as (here, scanner):
            return await _facts(here, scanner, key)
    async with context(config, create=False) as here:
        for scanner in here.scanners:
            if key.startswith(scanner.root.prefix):
                return await _facts(here, scanner, key)
        raise UnknownName(key, [scanner.root.prefix for scanner in here.scanners], what="root with the key")


async def _facts(here: OrphanContext, scanner: Scanner, key: str) -> Mapping[str, object]:
    template, name = scanner.root.template, raw_key(key)
    place = template.place(name)
    unit = place.unit if place else name if template.units.fullmatch(name) else None
    facts: dict[str, object] = {"key": key, "root": scanner.root.name, "shape": template.text}
    if unit is None:
        return {**facts, "verdict": "foreign: it does not match the template, and is never touched"}
    standing = await scanner.sightings.standing(scanner.root.name)
    (reference,) = await scanner.referenced([text(unit)])
    (sighting,) = await scanner.sightings.get(scanner.root.name, [text(unit)])
    lines = await here.opened.journal.page(
        LineFilter(sweep=instance_of(scanner.root.name), suspect=name_of(unit)), None, ROWS_SHOWN, newest=True
    )
    listed = await scanner.listed(text(unit))
    protects = reference is not None and live(reference, scanner.root, standing.at)
    return {
        **facts,
        "unit": name_of(unit),
        "files": [{"key": info.key, "bytes": info.size, "modified_at": info.modified_at} for info in listed],
        "reference": None if reference is None else picked(reference, "key rule owner ended_at started_at"),
        "sighting": None if sighting is None else _sighting(sighting, scanner.root, standing),
        "journal": [
            {"at": each.intended_at, **picked(each.intent, "run verb reason"), "outcome": each.outcome}
            for each in lines
        ],
        "verdict": _verdict(protects, sighting, scanner.root, standing, bool(listed)),
    }


def _verdict(protects: bool, sighting: Sighting | None, root: Root, standing: Standing, there: bool) -> str:
    if protects:
        return "protected: a reference names it"
    if sighting is None:
        if not there:
            return "gone: it does not exist, and has no sighting"
        return "unreferenced, without a sighting: the next scan begins its grace, if it is old enough"
    evidence = sighting.evidence.value.replace("_", " ")
    if sighting.state is not SightingState.SEEN:
        return f"in quarantine, {evidence}; purged after {format_duration(root.quarantine)}, unless it is referenced"
    left = root.graces.of(sighting.evidence) - _lasted(sighting, standing)
    if left > timedelta(0):
        whole = timedelta(seconds=max(1, left // timedelta(seconds=1)))
        return f"an orphan, {evidence}; due in {format_duration(whole)}"
    return f"an orphan, {evidence}; due now"


def _sighting(sighting: Sighting, root: Root, standing: Standing) -> Mapping[str, object]:
    return {
        "evidence": sighting.evidence.value,
        "state": sighting.state.value,
        "since": sighting.first_at,
        "scans": (standing.last.number if standing.last else 0) - sighting.first_scan + 1,
        "lasted_seconds": _lasted(sighting, standing),
        "grace_seconds": root.graces.of(sighting.evidence),
        "quarantined_at": sighting.state_at,
        "scan": sighting.state_scan,
    }


def _lasted(sighting: Sighting, standing: Standing) -> timedelta:
    tick = 0 if standing.last is None else standing.last.tick
    return timedelta(microseconds=max(0, tick - sighting.first_tick))


def _tell_why(facts: Mapping[str, object]) -> None:
    click.echo(click.style(f"{printable(facts['key'])}: {facts['verdict']}", bold=True))
    for name in ("unit", "reference", "sighting"):
        value = plain(facts.get(name))
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {each}" for key, each in value.items() if each not in (None, ""))
        if value:
            click.echo(f"  {name}: {printable(value)}")
    files, lines = facts.get("files") or (), facts.get("journal") or ()
    assert isinstance(files, list | tuple)
    assert isinstance(lines, list | tuple)
    if files:
        rows = [(each["key"], each["bytes"], plain(each["modified_at"])) for each in files]
        show_table(("file", "bytes", "written"), rows)
    if lines:
        done = [(plain(e["at"]), e["verb"], e["outcome"] or "unknown", e["reason"], e["run"]) for e in lines]
        show_table(("when", "what", "outcome", "because", "run"), done)


@click.command("list")
@click.argument("root", required=False)
@click.option(
    "--state", type=click.Choice([each.value for each in SightingState]), help="Only sightings in this state."
)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Sightings at most.")
@with_context
def list_(ctx: CommandContext, root: str | None, state: str | None, limit: int) -> None:
    """List the roots: whether each is armed, and the counts of its last scan. With ROOT, its sightings.

    \b
    Examples:
      wrasse orphans list
      wrasse orphans list archives --state=moved --json
    """
    finish(_roots(ctx) if root is None else _sightings(ctx, root, state, limit))


async def _roots(ctx: CommandContext) -> None:
    async with context(ctx.config(), create=False) as here:
        found = [await _root(scanner) for scanner in here.scanners]
    columns = ("root", "armed", "scanned_at", "objects", "protected", "due", "waiting", "in_quarantine", "refused")
    empty = "no root of orphans is configured; see docs/how-to/reclaim-storage.md"
    ctx.answer({"roots": found}, lambda: show_facts(columns, found, empty=empty))


async def _root(scanner: Scanner) -> Mapping[str, object]:
    standing = await scanner.sightings.standing(scanner.root.name)
    approval, last = read_approval(standing.value), standing.last
    counts = {} if last is None else last.counts
    return {
        "root": scanner.root.name,
        "armed": approval.armed == scanner.root.digest,
        "scanned_at": None if last is None else last.at,
        "scan": None if last is None else last.id,
        "objects": counts.get("listed", 0),
        "protected": counts.get("protected", 0),
        "due": counts.get("due", 0),
        "waiting": counts.get("waiting", 0) + counts.get("found", 0) + counts.get("restarted", 0),
        "in_quarantine": counts.get("in_quarantine", 0) + counts.get("purged", 0),
        "refused": f"{approval.refused}: {approval.why}" if approval.refused else "",
        "counts": counts,
    }


async def _sightings(ctx: CommandContext, root: str, state: str | None, limit: int) -> None:
    async with one_root(ctx.config(), root, create=False) as (_, scanner):
        standing = await scanner.sightings.standing(root)
        page = await scanner.sightings.page(root, None, limit, None if state is None else SightingState(state))
        found = [
            {"unit": name_of(raw_key(each.unit)), "bytes": each.size, **_sighting(each, scanner.root, standing)}
            for each in page
        ]
    columns = ("unit", "evidence", "state", "since", "scans", "bytes")
    ctx.answer({"sightings": found, "more": page.more}, lambda: show_facts(columns, found, empty="no sightings"))
