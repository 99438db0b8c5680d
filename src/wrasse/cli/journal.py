"""wrasse journal: the actions of sweeps, newest first."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import click

from wrasse.cli.context import DURATION, CommandContext, finish, with_context
from wrasse.cli.output import show_table
from wrasse.observability.json_format import ago, line_json
from wrasse.ports.journal import Line, LineFilter
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.runtime.backends import Stores

OUTCOMES = (*(outcome.value for outcome in Outcome), "open")
LINE_COLUMNS = ("when", "sweep", "did", "to", "outcome", "why")


@click.command()
@click.option("--sweep", help="Only lines of this sweep.")
@click.option("--run", help="Only lines of this run.")
@click.option("--suspect", metavar="ID", help="Only lines about this job, lease or archive.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only lines with this outcome; open: not known yet.")
@click.option("--since", type=DURATION, help="Only lines of this last time, such as 1h.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000), help="Lines per page.")
@click.option("--after", help="Continue after this cursor, from the last page.")
@click.option("--oldest", is_flag=True, help="Oldest first.")
@with_context
def journal(
    ctx: CommandContext,
    sweep: str | None,
    run: str | None,
    suspect: str | None,
    outcome: str | None,
    since: timedelta | None,
    limit: int,
    after: str | None,
    oldest: bool,
) -> None:
    """Show the actions of sweeps: verb, suspect, reason and outcome.

    \b
    Examples:
      wrasse journal
      wrasse journal --sweep=stuck-jobs --since=1h
      wrasse journal --suspect=resize-a --json
    """
    name = None if sweep is None else sweep.replace("-", "_")
    ended = None if outcome in (None, "open") else Outcome(outcome)
    where = LineFilter(sweep=name, run=run, suspect=suspect, outcome=ended, open=True if outcome == "open" else None)
    finish(_journal(ctx, where, since, limit, after, oldest))


async def _journal(
    ctx: CommandContext, where: LineFilter, since: timedelta | None, limit: int, after: str | None, oldest: bool
) -> None:
    config = ctx.config()
    async with Stores.of(config.settings.worker, create=False) as stores:
        if since is not None:
            horizon = (await (await stores.open(config.homes.journal)).health_sample()).at - since
            where = replace(where, since=horizon)
        page = await (await stores.open_journal(config.homes.journal)).page(where, after, limit, newest=not oldest)
    ctx.answer({"lines": [line_json(line) for line in page], "next": page.cursor}, lambda: _text(page))


def line_row(line: Line, now: datetime) -> tuple[object, ...]:
    """One line for a person."""
    many = f" and {line.intent.count - 1} more" if line.intent.count > 1 else ""
    outcome = line.outcome.value if line.outcome is not None else "open"
    why = f"{line.intent.reason}; {line.detail}" if line.detail else line.intent.reason
    return ago(line.intended_at, now), line.intent.sweep, line.intent.verb, line.intent.suspect + many, outcome, why


def _text(page: Page[Line]) -> None:
    rows = [line_row(line, page.at) for line in page]
    show_table(LINE_COLUMNS, rows, empty="no line of the journal matches", after=page.cursor)
