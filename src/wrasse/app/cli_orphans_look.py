"""wrasse orphans why and list: what is known, from where, since when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import click

from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_table import printable, show_table
from wrasse.app.orphan_running import Yard, yard
from wrasse.app.orphaning import instance_of
from wrasse.app.plain import plain
from wrasse.duration import format_duration
from wrasse.errors import UnknownName
from wrasse.orphans.consent import read_consent
from wrasse.orphans.desk import Desk
from wrasse.orphans.passing import live, name_of, raw, text
from wrasse.orphans.root import Root
from wrasse.ports.journal import Line, LineFilter
from wrasse.ports.sightings import Sighting, Standing, State

_LINES = 20


@click.command()
@click.argument("key")
@click.option("--root", help="The root to ask; without it, the one whose prefix the key has.")
@asks
def why(asked: Asked, key: str, root: str | None) -> None:
    """Say what protects or condemns KEY, or the unit it belongs to: the row and the rule, since when it is an orphan,
    when it is due, and what was done to it.

    \b
    Examples:
      wrasse orphans why archives/ws1/op7/home.tar.gz
      wrasse orphans why archives/ws1/op7/ --json
    """
    facts = finish(_why(asked, key, root))
    asked.answer(facts, lambda: _tell(facts))


async def _why(asked: Asked, key: str, root: str | None) -> Mapping[str, object]:
    async with yard(asked.config(), create=False) as here:
        if root is None:
            fits = [desk for desk in here.desks if key.startswith(desk.root.prefix)]
            if not fits:
                raise UnknownName(key, [desk.root.prefix for desk in here.desks], what="root with the key")
            desk = fits[0]
        else:
            desk = here.desk(root)
        return await _facts(here, desk, key)


async def _facts(here: Yard, desk: Desk, key: str) -> Mapping[str, object]:
    template, name = desk.root.template, raw(key)
    place = template.place(name)
    unit = place.unit if place else name if template.units.fullmatch(name) else None
    facts: dict[str, object] = {"key": key, "root": desk.root.name, "shape": template.text}
    if unit is None:
        return {**facts, "verdict": "foreign: it has another shape, and is never touched"}
    standing = await desk.sightings.standing(desk.root.name)
    (reference,) = await desk.referenced([text(unit)])
    (sighting,) = await desk.sightings.get(desk.root.name, [text(unit)])
    lines = await here.opened.journal.page(
        LineFilter(sweep=instance_of(desk.root.name), suspect=name_of(unit)), None, _LINES, newest=True
    )
    listed = await desk.listed(text(unit))
    protects = reference is not None and live(reference, desk.root, standing.at)
    return {
        **facts,
        "unit": name_of(unit),
        "files": [{"key": info.key, "bytes": info.size, "modified_at": info.modified_at} for info in listed],
        "reference": None
        if reference is None
        else {
            "key": reference.key,
            "rule": reference.rule,
            "owner": reference.owner,
            "ended_at": reference.ended_at,
            "started_at": reference.started_at,
        },
        "sighting": None if sighting is None else _sighting(sighting, desk.root, standing),
        "journal": [_line(line) for line in lines],
        "verdict": _verdict(protects, sighting, desk.root, standing, bool(listed)),
    }


def _line(line: Line) -> Mapping[str, object]:
    told = line.intent
    return {
        "at": line.intended_at,
        "run": told.run,
        "verb": told.verb,
        "reason": told.reason,
        "outcome": line.outcome,
    }


def _verdict(protects: bool, sighting: Sighting | None, root: Root, standing: Standing, there: bool) -> str:
    if protects:
        return "protected: a reference names it"
    if sighting is None:
        if not there:
            return "gone: it is not there, and nothing is noted of it"
        return "unreferenced, and not noted yet: the next look may begin its grace, if it is old enough"
    evidence = sighting.evidence.value.replace("_", " ")
    if sighting.state is not State.SEEN:
        return f"in quarantine, {evidence}; purged after {format_duration(root.quarantine)}, unless it is referenced"
    left = root.graces.of(sighting.evidence) - _lasted(sighting, standing)
    if left > timedelta(0):
        return f"an orphan, {evidence}; due in {format_duration(_whole(left))}"
    return f"an orphan, {evidence}; due now"


def _sighting(sighting: Sighting, root: Root, standing: Standing) -> Mapping[str, object]:
    rounds = (standing.last.number if standing.last else 0) - sighting.first_round + 1
    return {
        "evidence": sighting.evidence.value,
        "state": sighting.state.value,
        "since": sighting.first_at,
        "looks": rounds,
        "lasted_seconds": _lasted(sighting, standing),
        "grace_seconds": root.graces.of(sighting.evidence),
        "quarantined_at": sighting.state_at,
        "round": sighting.state_round,
    }


def _lasted(sighting: Sighting, standing: Standing) -> timedelta:
    tick = 0 if standing.last is None else standing.last.tick
    return timedelta(microseconds=max(0, tick - sighting.first_tick))


def _whole(left: timedelta) -> timedelta:
    return timedelta(seconds=left // timedelta(seconds=1)) or timedelta(seconds=1)


def _tell(facts: Mapping[str, object]) -> None:
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
@click.option("--state", type=click.Choice([each.value for each in State]), help="Only sightings in this state.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Sightings at most.")
@asks
def list_(asked: Asked, root: str | None, state: str | None, limit: int) -> None:
    """List the roots: whether each is armed, and what its last look counted. With ROOT, the orphans noted there.

    \b
    Examples:
      wrasse orphans list
      wrasse orphans list archives --state=moved --json
    """
    finish(_roots(asked) if root is None else _sightings(asked, root, state, limit))


async def _roots(asked: Asked) -> None:
    async with yard(asked.config(), create=False) as here:
        found = [await _root(desk) for desk in here.desks]
    columns = ("root", "armed", "looked_at", "objects", "protected", "due", "waiting", "in_quarantine", "refused")
    asked.answer(
        {"roots": found},
        lambda: show_table(columns, [[_cell(row[name]) for name in columns] for row in found])
        if found
        else click.echo("no root of orphans is configured; see docs/how-to/reclaim-storage.md"),
    )


def _cell(value: object) -> object:
    return ("no", "yes")[value] if isinstance(value, bool) else plain(value)


async def _root(desk: Desk) -> Mapping[str, object]:
    standing = await desk.sightings.standing(desk.root.name)
    consent, last = read_consent(standing.value), standing.last
    counts = {} if last is None else last.counts
    return {
        "root": desk.root.name,
        "armed": consent.armed == desk.root.digest,
        "looked_at": None if last is None else last.at,
        "round": None if last is None else last.id,
        "objects": counts.get("listed", 0),
        "protected": counts.get("protected", 0),
        "due": counts.get("due", 0),
        "waiting": counts.get("waiting", 0) + counts.get("found", 0) + counts.get("restarted", 0),
        "in_quarantine": counts.get("in_quarantine", 0) + counts.get("purged", 0),
        "refused": f"{consent.refused}: {consent.why}" if consent.refused else "",
        "counts": counts,
    }


async def _sightings(asked: Asked, root: str, state: str | None, limit: int) -> None:
    async with yard(asked.config(), create=False) as here:
        desk = here.desk(root)
        standing = await desk.sightings.standing(root)
        page = await desk.sightings.page(root, None, limit, None if state is None else State(state))
        found = [
            {"unit": name_of(raw(each.unit)), "bytes": each.size, **_sighting(each, desk.root, standing)}
            for each in page
        ]
    columns = ("unit", "evidence", "state", "since", "looks", "bytes")
    asked.answer(
        {"sightings": found, "more": page.more},
        lambda: show_table(columns, [[plain(row[name]) for name in columns] for row in found])
        if found
        else click.echo("nothing is noted there"),
    )
