"""wrasse periodic: periodic jobs, their last and their next slot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import click

from wrasse.cli.context import CommandContext, finish, with_context
from wrasse.cli.output import show_table
from wrasse.config.settings import Settings
from wrasse.errors import WrasseError
from wrasse.jobs.periodic import read_when
from wrasse.jobs.scheduler import PERIODIC, PeriodicMark, read_mark
from wrasse.observability.json_format import ago
from wrasse.ports.backend import Backend
from wrasse.ports.page import pages
from wrasse.ports.records import Record
from wrasse.runtime.backends import Stores

PAGE = 500


@dataclass(frozen=True, slots=True)
class ListedPeriodic:
    """One periodic job, from the settings or from the last program that ran it."""

    name: str
    kind: str
    when: str
    missed: str
    mark: PeriodicMark | None
    invalid: str = ""  # why its record cannot be read

    def next_after(self, now: datetime) -> datetime | None:
        """Its next slot; None if its schedule is unknown."""
        return read_when(self.when).next_after(now) if self.when else None


@click.command("list")
@with_context
def list_periodic(ctx: CommandContext) -> None:
    """List periodic jobs: those of the settings, and those that a program has run.

    \b
    Examples:
      wrasse periodic list
      wrasse periodic list --json
    """
    finish(_list(ctx))


async def _list(ctx: CommandContext) -> None:
    config = ctx.config()
    async with Stores.of(config.settings.worker, create=False) as stores:
        store = await stores.open(config.homes.jobs)
        found = await _known(store, config.settings)
        now = (await store.health_sample()).at
    rows = [
        (each.name, each.kind, each.when, each.missed, _moment(each.next_after(now)), *_last(each, now))
        for each in found
    ]
    columns = ("name", "kind", "when", "missed", "next", "last", "last job")
    ctx.answer(
        {"periodic": [_json(each, now) for each in found]}, lambda: show_table(columns, rows, empty="no periodic jobs")
    )


async def _known(store: Backend, settings: Settings) -> list[ListedPeriodic]:
    found, marks = dict[str, ListedPeriodic](), dict[str, ListedPeriodic]()
    async for page in pages(lambda after: store.records(PERIODIC).page("", after, PAGE)):
        marks |= {record.key: _read(record) for record in page}
    found |= marks
    for name, own in settings.periodic.items():
        made = own.as_periodic(name)
        listed = marks.get(name, ListedPeriodic(name, "", "", "", None))
        found[name] = replace(listed, kind=made.kind, when=made.when, missed=made.missed.value)
    return [found[name] for name in sorted(found)]


def _read(record: Record) -> ListedPeriodic:
    try:
        mark = read_mark(record)
        read_when(mark.when)
    except WrasseError as why:
        return ListedPeriodic(record.key, "", "", "", None, why.message)
    return ListedPeriodic(record.key, mark.kind, mark.when, mark.missed, mark)


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}Z"


def _last(each: ListedPeriodic, now: datetime) -> tuple[str, str]:
    if each.invalid:
        return "invalid", each.invalid
    return (ago(each.mark.last, now), each.mark.job) if each.mark is not None and each.mark.job else ("never", "")


def _json(each: ListedPeriodic, now: datetime) -> dict[str, object]:
    ran = each.mark is not None and bool(each.mark.job)
    return {
        "name": each.name,
        "kind": each.kind,
        "when": each.when,
        "missed": each.missed,
        "next": each.next_after(now),
        "last": each.mark.last if each.mark is not None and ran else None,
        "last_job": each.mark.job if each.mark is not None and ran else None,
        **({"invalid": each.invalid} if each.invalid else {}),
    }
