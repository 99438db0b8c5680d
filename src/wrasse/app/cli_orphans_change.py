"""wrasse orphans arm, disarm and undo: who says what a root may do, and takes back what it did."""

from __future__ import annotations

import click
import msgspec

from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_orphans_plan import told
from wrasse.app.cli_sweep import exit_code
from wrasse.app.orphan_running import Yard, carry_out, given, the_root, yard
from wrasse.app.orphaning import instance_of
from wrasse.app.status_json import report_json
from wrasse.engine.report import Report
from wrasse.errors import Refused, UnknownName
from wrasse.orphans.consent import Consent, read_consent, write_consent
from wrasse.orphans.desk import Desk
from wrasse.orphans.passing import known_of, text, unit_of
from wrasse.orphans.verdict import RESTORE, Suspected
from wrasse.ports.journal import LineFilter
from wrasse.ports.outcome import Outcome
from wrasse.ports.sightings import Sighting, Standing, State

_PAGE = 1_000
_UNDO_MAX = 1_000_000


@click.command()
@click.argument("root")
@click.option("--allow", default="", metavar="ROUND", help="Overrule what this round was refused or held for, once.")
@asks
def arm(asked: Asked, root: str, allow: str) -> None:
    """Let ROOT act by itself, with the configuration it has now. It must have been looked at once: read its plan first.

    \b
    Examples:
      wrasse orphans arm archives
      wrasse orphans arm archives --allow 01KD3Z8Q6Y8M5B9W0X2V7T4N1R
    """
    consent = finish(_arm(asked, root, allow))
    text = f"{root} is armed" + (f"; what round {allow} was refused for is allowed once" if allow else "")
    asked.answer({"root": root, "armed": True, "allowed": consent.allowed}, lambda: click.echo(text))


async def _arm(asked: Asked, root: str, allow: str) -> Consent:
    config = asked.config()
    the_root(config, root)
    async with yard(config) as here:
        desk = here.desk(root)
        standing = await desk.sightings.standing(root)
        consent = read_consent(standing.value)
        if allow and allow != consent.refused:
            last = f"the last one is {consent.refused}: {consent.why}" if consent.refused else "none was"
            raise Refused(f"round {allow} is not the last that was refused; {last}", do="name that one, if it is right")
        if standing.last is None and not allow:
            raise Refused(f"{root} was never looked at", do=f"read its plan first: wrasse orphans plan {root}")
        armed = msgspec.structs.replace(consent, armed=desk.root.digest, allowed=allow or consent.allowed)
        return await _write(desk, armed, standing)


@click.command()
@click.argument("root")
@asks
def disarm(asked: Asked, root: str) -> None:
    """Let ROOT only plan from now on. What is in quarantine stays there: nothing is purged, references bring it back.

    \b
    Examples:
      wrasse orphans disarm archives
    """
    finish(_disarm(asked, root))
    asked.answer({"root": root, "armed": False}, lambda: click.echo(f"{root} is not armed any more"))


async def _disarm(asked: Asked, root: str) -> None:
    config = asked.config()
    the_root(config, root)
    async with yard(config) as here:
        desk = here.desk(root)
        standing = await desk.sightings.standing(root)
        await _write(desk, msgspec.structs.replace(read_consent(standing.value), armed="", allowed=""), standing)


async def _write(desk: Desk, consent: Consent, standing: Standing) -> Consent:
    if not await desk.sightings.write(desk.root.name, write_consent(consent), at=standing.version):
        raise Refused(f"a run of {desk.root.name} noted something meanwhile", do="ask again")
    return consent


@click.command()
@click.argument("run")
@asks
def undo(asked: Asked, run: str) -> None:
    """Bring back what RUN put into quarantine: a run as reports and journal name it, or a round as plans do. Never
    overwrites: where something else stands by now, the copy stays in the trash.

    \b
    Examples:
      wrasse orphans undo 01KD3Z8Q6Y8M5B9W0X2V7T4N1R
    """
    reports = finish(_undo(asked, run))
    asked.answer({"reports": [report_json(each) for each in reports]}, lambda: told(*reports))
    raise click.exceptions.Exit(exit_code(reports))


async def _undo(asked: Asked, run: str) -> list[Report]:
    reports = []
    async with yard(asked.config()) as here:
        for desk in here.desks:
            found = await _taken(here, desk, run)
            standing = await desk.sightings.standing(desk.root.name)
            if found and standing.last is not None:
                suspects = [Suspected(RESTORE, known_of(each), f"undo of {run}") for each in found]
                reports.append(await carry_out(here, desk, given(standing.last, suspects)))
    if not reports:
        do = "see `wrasse orphans why KEY`, which names the run; what was purged does not come back"
        raise UnknownName(run, (), what="run that has anything in quarantine", do=do)
    return reports


async def _taken(here: Yard, desk: Desk, run: str) -> list[Sighting]:
    """What a run, or a round, put into quarantine and what is still there, in the order of keys."""
    root, units = desk.root.name, set[str]()
    after: str | None = None
    while len(units) < _UNDO_MAX:
        lines = await here.opened.journal.page(LineFilter(sweep=instance_of(root), run=run), after, _PAGE)
        # What it lost another run had taken, whose doing is not undone under this name.
        taken = [line.intent for line in lines if line.outcome is not Outcome.LOST]
        units |= {text(unit_of(intent.suspect)) for intent in taken if intent.verb == "quarantine"}
        after = lines.cursor
        if after is None:
            break
    found = []
    for state in (State.MARKED, State.MOVED):
        after = None
        while True:
            page = await desk.sightings.page(root, after, _PAGE, state)
            found += [each for each in page if each.unit in units or each.state_round == run]
            after = page.cursor
            if after is None:
                break
    return sorted(found, key=lambda each: known_of(each).unit)
