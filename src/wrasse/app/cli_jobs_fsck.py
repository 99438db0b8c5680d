"""wrasse jobs fsck: what a backend keeps of jobs in several structures, compared; and repaired if asked to."""

from __future__ import annotations

from collections.abc import Sequence

import click

from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_jobs import opened
from wrasse.app.cli_table import printable, show_table
from wrasse.app.progress import progress
from wrasse.ports.damage import Damage

NOTHING_TO_CHECK = "this backend keeps a job in one record, which cannot contradict another: there is nothing to check"


@click.command()
@click.option("--repair", is_flag=True, help="Repair what is found. Without it, nothing is changed.")
@asks
def fsck(asked: Asked, repair: bool) -> None:
    """Look for damage in what is kept of jobs: what other programs, evictions or lost keys left contradictory.

    Safe while workers run; a repair loses no job, though one may run again. It ends with 1 if there is damage that was
    not repaired. A backend that keeps every job in one record has nothing to check.

    \b
    Examples:
      wrasse jobs fsck
      wrasse jobs fsck --json
      wrasse jobs fsck --repair
    """
    finish(_fsck(asked, repair))


async def _fsck(asked: Asked, repair: bool) -> None:
    config = asked.config()
    async with opened(config) as store:
        if store.damages is None:
            asked.answer(
                {"checked": False, "damage": [], "repaired": False, "why": NOTHING_TO_CHECK},
                lambda: click.echo(NOTHING_TO_CHECK),
            )
            return
        with progress("looked at") as seen:
            found = await store.damages.check(repair=repair, silence=config.settings.worker.heartbeat_ttl, seen=seen)
    answer = {"checked": True, "damage": [_json(each) for each in found], "repaired": repair}
    asked.answer(answer, lambda: _tell(found, repair))
    if any(each.repaired < each.count for each in found):
        raise click.exceptions.Exit(1)


def _json(each: Damage) -> dict[str, object]:
    return {
        "kind": each.kind,
        "about": each.about,
        "repair": each.repair,
        "count": each.count,
        "repaired": each.repaired,
        "names": each.names,
    }


def _tell(found: Sequence[Damage], repair: bool) -> None:
    if not found:
        click.echo("no damage")
        return
    rows = [(each.kind, each.count, each.about, each.repair) for each in found]
    show_table(("damage", "count", "what it is", "what was done" if repair else "what --repair does"), rows)
    for each in found:
        click.echo(f"{each.kind}: {', '.join(printable(name) for name in each.names)}")
    if not repair:
        click.echo("nothing was changed; repair it with: wrasse jobs fsck --repair")
