"""wrasse demo: the tour, with its output."""

from __future__ import annotations

from collections.abc import Sequence

import click

from wrasse.cli.context import finish, write_json
from wrasse.cli.demo.tour import Demo, DemoPromise, DemoText, staged
from wrasse.cli.output import show_table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Answer with a JSON summary on stdout.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def demo(as_json: bool) -> None:
    """Demonstrate wrasse on this machine, in a temporary directory: jobs, a killed worker whose job is rescued, a lease
    that changes hands, a poison job, a dry run with its reasons. Takes about 20 seconds, longer on a busy machine, and
    needs no server.

    \b
    Examples:
      wrasse demo
      wrasse demo --json
    """
    ok, seconds, seen = finish(_play(quiet=as_json))
    if as_json:
        steps = [{"promise": e.promise, "seen": e.seen, "ok": e.ok, "seconds": round(e.seconds, 2)} for e in seen]
        write_json({"ok": ok, "seconds": round(seconds, 1), "steps": steps})
    else:
        _summary(seen, seconds)
    if not ok:
        raise click.exceptions.Exit(1)


async def _play(*, quiet: bool) -> tuple[bool, float, Sequence[DemoPromise]]:
    async with staged() as stage:
        play = Demo(stage, _silent if quiet else _tell)
        ok = await play.play()
        return ok, stage.seconds, play.seen


def _silent(told: DemoText) -> None:
    """With --json only the summary is written."""


def _tell(told: DemoText) -> None:
    if told.heading:
        click.echo()
        click.secho(f"── {told.text}", bold=True, fg="cyan")
        return
    if told.rows:
        show_table(told.columns, told.rows)
    if told.text:
        click.echo(f"   {told.text}")


def _summary(seen: Sequence[DemoPromise], seconds: float) -> None:
    click.echo()
    show_table(
        ("", "promise", "seen", "took"),
        [("ok" if each.ok else "fail", each.promise, each.seen, f"{each.seconds:.1f} s") for each in seen],
    )
    if all(each.ok for each in seen):
        click.echo(f"All of it happened, in {seconds:.0f} s. Next: `wrasse jobs enqueue` and `wrasse run --help`.")
    else:
        click.echo("Not everything happened as promised; see the last line.")
