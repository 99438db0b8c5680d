"""wrasse sweep: run sweeps once, or show what they would do and why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from wrasse.cli.context import DURATION, CommandContext, finish, with_context
from wrasse.cli.output import printable, progress, show_table
from wrasse.clock import SystemClock
from wrasse.config.load import Config
from wrasse.duration import format_duration
from wrasse.engine.report import Report
from wrasse.engine.run import ACTIONS_MAX, RUNTIME_MAX
from wrasse.errors import ConfigError, Refused, StoreBroken, UnknownName, WrasseError
from wrasse.observability.json_format import report_json
from wrasse.runtime.backends import Stores
from wrasse.runtime.engine import LEASE_SWEEPS, open_engine


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--dry-run", is_flag=True, help="Show the plan, with a reason per line, and change nothing.")
@click.option("--once", is_flag=True, help="Run once and stop; this is the default.")
@click.option("--wait", type=DURATION, default="10s", show_default=True, help="How long to wait for another process.")
@click.option("--list", "listing", is_flag=True, help="List the sweeps and what each removes.")
@with_context
def sweep(ctx: CommandContext, names: Sequence[str], dry_run: bool, once: bool, wait: timedelta, listing: bool) -> None:
    """Run sweeps once: those named, or every one that is enabled. Fails if any of them failed; exits with 3 if one was
    paused by a guard or is run by another process.

    \b
    Examples:
      wrasse sweep --list
      wrasse sweep --dry-run
      wrasse sweep stuck-jobs --json
    """
    config = ctx.config()
    wanted = [_known(name, config) for name in names]
    if listing:
        _list(ctx, config)
        return
    settings = config.settings
    chosen = wanted or [name for name in config.catalogue if settings.sweeps[name].enabled]
    reports, refused = finish(_sweep(config, chosen, dry_run, wait))
    ctx.answer({"dry_run": dry_run, "reports": [report_json(report) for report in reports]}, lambda: _tell(reports))
    if refused is not None:
        raise refused
    raise click.exceptions.Exit(exit_code(reports))


def exit_code(reports: Sequence[Report]) -> int:
    """1 if a run failed, 3 if a guard paused one; a run that used up its budget is a success."""
    if not all(report.good for report in reports):
        return 1
    return 0 if all(report.stopped_by in (None, ACTIONS_MAX, RUNTIME_MAX) for report in reports) else 3


def _known(name: str, config: Config) -> str:
    wanted = name.replace("-", "_")
    if wanted not in config.catalogue:
        raise UnknownName(name, [each.replace("_", "-") for each in config.catalogue], what="sweep")
    home = config.homes.ports["leases"]
    if wanted in LEASE_SWEEPS and config.settings.leases.server:
        raise ConfigError(f"leases are swept by {home} ({home.by}), not by this process", do="run it on that server")
    return wanted


def _list(ctx: CommandContext, config: Config) -> None:
    settings, catalogue = config.settings.sweeps, config.catalogue
    facts = [
        {
            "name": entry.name,
            "takes_away": entry.takes_away,
            "unless": entry.unless,
            "enabled": settings[entry.name].enabled,
            "interval_seconds": settings[entry.name].interval,
        }
        for entry in catalogue.values()
    ]
    rows = [(entry.name, entry.takes_away, entry.unless, _every(config, entry.name)) for entry in catalogue.values()]
    ctx.answer({"sweeps": facts}, lambda: show_table(("sweep", "takes away", "unless", "runs"), rows))


def _every(config: Config, name: str) -> str:
    own = config.settings.sweeps[name]
    return f"every {format_duration(own.interval)}" if own.enabled else "off"


async def _sweep(
    config: Config, names: Sequence[str], dry_run: bool, wait: timedelta
) -> tuple[list[Report], WrasseError | None]:
    """The reports, and why one is missing: another process runs that sweep, or its state cannot be read. The others run
    all the same."""
    clock = SystemClock()
    reports: list[Report] = []
    refused: WrasseError | None = None
    async with Stores.of(config.settings.worker, clock, create=not dry_run) as stores:
        engine, _ = await open_engine(config, stores, clock, names)
        with progress("sweeps", len(names)) as seen:
            for name in engine.names:
                try:
                    reports.append(await (engine.plan(name) if dry_run else engine.sweep_now(name, wait=wait)))
                except (Refused, StoreBroken) as why:
                    refused = why
                seen(1)
    return reports, refused


def _tell(reports: Sequence[Report]) -> None:
    for report in reports:
        if report.dry_run:
            actions = "1 action" if report.planned == 1 else f"{report.planned} actions"
            click.echo(click.style(f"{report.sweep}: would take {actions}", bold=True))
            if report.plan:
                show_table(("would", "to", "because"), [(each.verb, each.suspect, each.reason) for each in report.plan])
        else:
            counts = f"{report.seen} seen, {report.done} done, {report.conflict} in conflict, {report.failed} failed"
            click.echo(click.style(f"{report.sweep}: {counts}", bold=True))
        for reason, count in report.kept.items():
            click.echo(f"  kept {count}: {printable(reason)}")
        if report.unknown:
            click.echo(f"  {report.unknown} with unknown outcome; the next run checks them")
        if report.stopped_by:
            click.echo(f"  stopped by {report.stopped_by}: {printable(report.why)}")
        for note in (*report.notes, *report.errors):
            click.echo(f"  {printable(note)}")
