"""wrasse orphans plan and apply: what is due, in a file to be read, and carried out once it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_sweep import exit_code
from wrasse.app.cli_table import printable, show_table
from wrasse.app.orphan_running import carry_out, look, planned, the_root, yard
from wrasse.app.status_json import report_json
from wrasse.engine.report import Report
from wrasse.orphans.desk import KEPT
from wrasse.orphans.lag import histogram, warning
from wrasse.orphans.look import Looked
from wrasse.orphans.passing import name_of
from wrasse.orphans.plan import check_plan, read_plan, write_plan
from wrasse.orphans.root import Root
from wrasse.orphans.verdict import Suspected

SHOWN = 20


@click.command()
@click.argument("root", required=False)
@click.option("--out", metavar="FILE", help="Write the plan there, a JSON object per line.")
@click.option("--dry-run", is_flag=True, help="Note nothing: sightings stay as they are.")
@asks
def plan(asked: Asked, root: str | None, out: str | None, dry_run: bool) -> None:
    """Look at ROOT (the only one, if there is one) completely and say what is due, and why. Nothing is taken away. What
    is found without a reference is noted, so that its grace begins; with --dry-run not even that.

    \b
    Examples:
      wrasse orphans plan
      wrasse orphans plan archives --out plan.jsonl
      wrasse orphans plan archives --dry-run --json
    """
    finish(_plan(asked, root, out, note=not dry_run))


async def _plan(asked: Asked, name: str | None, out: str | None, *, note: bool) -> None:
    config = asked.config()
    name = the_root(config, name)
    async with yard(config, create=note) as here:
        desk = here.desk(name)
        looked = await look(here, desk, note=note)
        first: list[Suspected] = []
        due = _keeping(planned(desk, looked), first)
        count = sum(1 for _ in due) if out is None else write_plan(Path(out), desk.root, looked, due).lines
        value = {
            "root": desk.root.name,
            "round": looked.round.id,
            "at": looked.round.at,
            "armed": looked.armed,
            "held": looked.held,
            "counts": looked.round.counts,
            "lag": dict(histogram(looked.round.counts)),
            "foreign": [printable(key) for key in looked.foreign],
            "planned": count,
            "first": [_row(each) for each in first],
            "file": out,
        }
        asked.answer(value, lambda: _tell(desk.root, looked, first, count, out))


def _keeping(due: Iterable[Suspected], first: list[Suspected]) -> Iterator[Suspected]:
    for each in due:
        if len(first) < SHOWN:
            first.append(each)
        yield each


def _row(each: Suspected) -> dict[str, object]:
    return {
        "verb": each.verb,
        "unit": printable(name_of(each.known.unit)),
        "bytes": each.known.size,
        "reason": each.reason,
    }


def _tell(root: Root, looked: Looked, first: list[Suspected], count: int, out: str | None) -> None:
    counts, id = looked.round.counts, looked.round.id
    click.echo(f"{root.name}: {counts.get('listed', 0)} objects in {counts.get('units', 0)} units, round {id}")
    show_table(("count", "units"), [(name.replace("_", " "), counts[name]) for name in KEPT if counts.get(name)])
    if first:
        rows = [list(_row(each).values()) for each in first]
        show_table(("would", "to", "bytes", "because"), rows, title=f"{count} units are due")
        if count > len(first):
            click.echo(f"and {count - len(first)} more" + ("" if out else "; --out FILE writes them all"))
    else:
        click.echo("nothing is due")
    if looked.held:
        click.echo(f"held: {looked.held}; if that is right: wrasse orphans arm {root.name} --allow {looked.round.id}")
    if not looked.armed:
        click.echo(f"not armed: wrasse orphans apply carries out a plan, wrasse orphans arm {root.name} every one")
    if late := warning(counts, root.graces.superseded):
        click.echo(late)
    if looked.foreign:
        click.echo("foreign keys, never touched: " + ", ".join(printable(key) for key in looked.foreign[:3]))
    if out:
        click.echo(f"written to {out}")


@click.command("apply")
@click.argument("plan_file", metavar="PLAN")
@click.option("--allow", default="", metavar="ROUND", help="Carry out a plan that is held, of this round.")
@asks
def apply_(asked: Asked, plan_file: str, allow: str) -> None:
    """Carry out a plan that `wrasse orphans plan --out` wrote. Every unit is looked at once more: what is referenced,
    changed or gone by now is left alone. Refused if the plan is older than the shortest grace, or of another
    configuration.

    \b
    Examples:
      wrasse orphans apply plan.jsonl
      wrasse orphans apply plan.jsonl --allow 01KD3Z8Q6Y8M5B9W0X2V7T4N1R
    """
    report = finish(_apply(asked, plan_file, allow))
    asked.answer(report_json(report), lambda: told(report))
    raise click.exceptions.Exit(exit_code([report]))


async def _apply(asked: Asked, file: str, allow: str) -> Report:
    wanted, config = read_plan(Path(file)), asked.config()
    the_root(config, wanted.header.root)
    async with yard(config) as here:
        desk = here.desk(wanted.header.root)
        check_plan(wanted.header, desk.root, await desk.sightings.standing(desk.root.name), allow=allow)
        return await carry_out(here, desk, wanted.looked())


def told(*reports: Report) -> None:
    """What runs by hand did."""
    for report in reports:
        _told(report)


def _told(report: Report) -> None:
    ends = f"{report.planned} planned, {report.done} done, {report.lost} lost, {report.failed} failed"
    click.echo(f"{ends}; run {report.run}")
    for reason, count in report.kept.items():
        click.echo(f"  kept {count}: {printable(reason)}")
    if report.stopped_by:
        click.echo(f"  stopped by {report.stopped_by}: {printable(report.why)}")
    for error in report.errors:
        click.echo(f"  {printable(error)}")
