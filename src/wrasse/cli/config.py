"""wrasse config: shows the settings and their sources, or checks them."""

from __future__ import annotations

from dataclasses import asdict

import click

from wrasse.cli.context import CommandContext, with_context
from wrasse.cli.output import show_table
from wrasse.config.backend_urls import table
from wrasse.config.dump import ShownSetting, shown, written
from wrasse.runtime.handler_app import unseen_app


@click.command()
@click.option("--changed", is_flag=True, help="Only what differs from the defaults.")
@click.option("--where", is_flag=True, help="Which backend serves what, and which setting decided it.")
@with_context
def show(ctx: CommandContext, changed: bool, where: bool) -> None:
    """Show every setting as YAML, with its source beside it. Secrets are hidden. --where shows the backends instead:
    which one serves each port, with absolute paths, and which setting decided it. Nothing is opened or created.

    \b
    Examples:
      wrasse config show
      wrasse config show --changed
      wrasse config show --where
      WRASSE_WORKER_COUNT=4 wrasse config show --json
    """
    if where:
        _where(ctx)
        return
    settings = [each for each in shown(ctx.config()) if not changed or each.source != "default"]
    value = {each.leaf.path: {"value": each.value, "source": each.source} for each in settings}
    ctx.answer(value, lambda: _yaml(settings))


def _where(ctx: CommandContext) -> None:
    config = ctx.config()
    for warning in unseen_app(config):
        click.echo(f"warning: {warning}", err=True)
    rows = list(table(config.homes))
    value = [asdict(row) for row in rows]

    def text() -> None:
        columns = ("port", "backend", "decided by", "stored there")
        show_table(columns, [(row.port, row.backend, row.by, row.holds) for row in rows])
        for row in rows:
            if row.refused:
                click.echo(f"{row.port}: {row.refused}")

    ctx.answer({"backends": value}, text)


def _yaml(settings: list[ShownSetting]) -> None:
    open_at: list[str] = []
    for each in settings:
        *sections, name = each.leaf.path.split(".")
        for depth, section in enumerate(sections):
            if open_at[: depth + 1] != sections[: depth + 1]:
                click.echo("  " * depth + click.style(f"{section}:", bold=True))
        open_at = sections
        unset = each.leaf.key.filled and not each.value  # not written as an empty text
        line = "  " * len(sections) + (f"# {name}: not set" if unset else f"{name}: {written(each.value)}")
        source = "" if each.source == "default" else click.style(f"  # {each.source}", fg="cyan")
        click.echo(line + source)


@click.command()
@with_context
def check(ctx: CommandContext) -> None:
    """Check the configuration: names, types, values, and whether this version has the backends it names.

    \b
    Examples:
      wrasse config check
      wrasse config check --config=production.yaml
    """
    found = ctx.config()
    where = found.file.name if found.file else "defaults"
    answer = {"ok": True, "file": None if found.file is None else str(found.file), "warnings": list(found.warnings)}
    ctx.answer(answer, lambda: click.echo(f"{where}: ok, {len(found.sources)} settings set"))
