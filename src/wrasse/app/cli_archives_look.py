"""wrasse archives list, read and verify: what was archived of streams."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

import click

from wrasse.app.archiving import build_rules, shelves
from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_streams_read import bytes_of, entry_json
from wrasse.app.cli_table import printable, show_table
from wrasse.app.config import Config
from wrasse.app.homes import homes
from wrasse.app.job_text import glimpse
from wrasse.app.plain import to_json
from wrasse.app.progress import progress
from wrasse.app.wiring import Stores
from wrasse.archives.batch import Facts
from wrasse.archives.drain import GROUP
from wrasse.archives.naming import instant_of
from wrasse.archives.reader import Archived, BadLine, facts_at, read, spoilt
from wrasse.archives.rule import Rule
from wrasse.archives.shelf import Shelved, shelved
from wrasse.archives.verify import PROBLEMS_MAX, Problem, Verified, verify, without
from wrasse.clock import SystemClock
from wrasse.duration import parse_duration
from wrasse.errors import BadDuration, StoreBroken, UsageError
from wrasse.ports.streams import Streams
from wrasse.ports.subjects import check_pattern
from wrasse.streams.letters import envelope_in


@dataclass(frozen=True, slots=True)
class Places:
    """Where archives are looked for, which streams should have some, and the streams they came from."""

    rules: Sequence[Rule]
    archived: Sequence[Rule]
    streams: Streams


class BadLines:
    """Reports lines of archives that cannot be read on stderr, at once; keeps the first ones for an answer."""

    def __init__(self, asked: Asked) -> None:
        self._json = asked.json
        self.count = 0
        self.first: list[Mapping[str, object]] = []

    def __call__(self, bad: BadLine) -> None:
        """Reports one."""
        told = {"key": bad.key, "line": bad.line, "what": bad.what}
        self.count += 1
        if len(self.first) < PROBLEMS_MAX:
            self.first.append(told)
        click.echo(to_json(told) if self._json else f"{printable(bad.key)}: {bad}", err=True)

    def end(self) -> None:
        """Ends the command with 1 if there was any."""
        if self.count:
            raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages to read."""

    pattern: str
    since: datetime | None
    until: datetime | None

    def read(self, rule: Rule, bad: BadLines) -> AsyncIterator[Archived]:
        """Those among the archives of a rule."""
        return read(rule.objects, rule.prefix, self.pattern, since=self.since, until=self.until, report=bad)


@asynccontextmanager
async def opened(config: Config, *, create: bool = False) -> AsyncIterator[Places]:
    """The stores of archives and the streams, for the length of a command; one that only reads creates nothing."""
    stores = Stores(SystemClock(), create=create)
    try:
        streams = (await stores.open_streams(homes(config).streams)).streams
        looked_for = await shelves(config, stores)
        yield Places(looked_for, await build_rules(config, stores) or looked_for, streams)
    finally:
        await stores.close()


@click.command("list")
@click.argument("pattern", default=">")
@click.option("--since", metavar="WHEN", help="Only archives with messages of this time or later: 7d (ago), or a date.")
@click.option("--until", metavar="WHEN", help="Only archives with a message before this, in the same forms.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Archives at most.")
@asks
def list_(asked: Asked, pattern: str, since: str | None, until: str | None, limit: int) -> None:
    """Show the archives of the streams that match PATTERN, all without one, in the order of their keys. One that cannot
    be read is reported on stderr, and the command ends with 1.

    \b
    Examples:
      wrasse archives list
      wrasse archives list gbe.events.audit.change --since=7d --json
    """
    check_pattern(pattern)
    now = SystemClock().now()
    finish(_list(asked, pattern, (moment_of(since, now), moment_of(until, now)), limit))


async def _list(asked: Asked, pattern: str, span: tuple[datetime | None, datetime | None], limit: int) -> None:
    found, problems = list[Mapping[str, object]](), list[Problem]()
    since, until = span
    async with opened(asked.config()) as places:
        for rule in places.rules:
            async for each in shelved(rule.objects, rule.prefix, pattern):
                if len(found) == limit:
                    break
                try:
                    facts = await facts_at(rule.objects, each.name)
                except StoreBroken as why:
                    problems.append(Problem(each.info.key, spoilt(why, each.info.key)))
                    continue
                if facts is None or (since is not None and instant_of(facts.last) < since):
                    continue
                if until is None or instant_of(facts.first) < until:
                    found.append(_row(rule, each, facts))
    columns = ("key", "subject", "first", "last", "count", "bytes")
    asked.answer(
        {"archives": found, "problems": [{"key": each.key, "what": each.what} for each in problems]},
        lambda: show_table(columns, [[row[name] for name in columns] for row in found])
        if found
        else click.echo("there is no such archive"),
    )
    for problem in problems:
        click.echo(f"{printable(problem.key)}: {printable(problem.what)}", err=True)
    if problems:
        raise click.exceptions.Exit(1)


def _row(rule: Rule, each: Shelved, facts: Facts) -> Mapping[str, object]:
    return {
        "key": each.info.key,
        "subject": each.name.subject,
        "domain": each.name.domain,
        "epoch": each.name.epoch,
        "start": str(each.name.after),
        "first": str(facts.first),
        "last": str(facts.last),
        "count": facts.count,
        "marked": facts.marked,
        "incomplete": facts.incomplete,
        "bytes": each.info.size,
        "destination": rule.destination,
    }


@click.command("read")
@click.argument("pattern")
@click.option("--since", metavar="WHEN", help="Only what came at or after this: 7d (ago), or 2026-02-14T08:00.")
@click.option("--until", metavar="WHEN", help="Only what came before this, in the same forms.")
@click.option("--limit", type=click.IntRange(1), help="At most so many messages.")
@asks
def read_(asked: Asked, pattern: str, since: str | None, until: str | None, limit: int | None) -> None:
    """Read archived messages of one stream, or of all that match PATTERN: each once, in the order of its stream. With
    --json, one object per line. A line of an archive that cannot be read is reported on stderr, the others are read,
    and the command ends with 1.

    \b
    Examples:
      wrasse archives read gbe.events.audit.change
      wrasse archives read 'gbe.events.audit.*' --since=2026-02-14 --until=2026-02-15 --json
    """
    check_pattern(pattern)
    now = SystemClock().now()
    bad = BadLines(asked)
    finish(_read(asked, Wanted(pattern, moment_of(since, now), moment_of(until, now)), limit, bad))
    bad.end()


async def _read(asked: Asked, wanted: Wanted, limit: int | None, bad: BadLines) -> None:
    count = 0
    async with opened(asked.config()) as places:
        for rule in places.rules:
            async for archived in wanted.read(rule, bad):
                if count == limit:
                    return
                count += 1
                _write(asked, archived)


def _write(asked: Asked, archived: Archived) -> None:
    entry = archived.entry
    if asked.json:
        click.echo(to_json({**entry_json(entry, None), "raw": archived.marked, "archive": archived.key}))
    else:
        try:
            envelope = envelope_in(entry)
            id, payload = envelope.message_id or "-", envelope.payload
        except StoreBroken:
            id, payload = "-", bytes_of(entry)
        at = instant_of(entry.id).strftime("%Y-%m-%d %H:%M:%S")
        click.echo(f"{at}  {entry.id}  {entry.subject}  {printable(id)}  {printable(glimpse(payload, 80))}")
    sys.stdout.flush()


def moment_of(text: str | None, now: datetime) -> datetime | None:
    """What --since and --until mean."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)
    except ValueError:
        pass
    try:
        return now - parse_duration(text)
    except BadDuration:
        raise UsageError(f"{text!r} is no moment", do="write 7d (ago), or 2026-02-14T08:00") from None


@click.command("verify")
@click.argument("pattern", default=">")
@click.option("--since", metavar="WHEN", help="Only archives of this day and later: older ones may be gone.")
@asks
def verify_(asked: Asked, pattern: str, since: str | None) -> None:
    """Prove the archives of the streams that match PATTERN: every archive is whole, the first starts where the stream
    did, each other one where the one before it ended, and the last one ends where the stream says. Ends with 1 if
    anything is missing, twice or damaged.

    \b
    Examples:
      wrasse archives verify
      wrasse archives verify 'gbe.events.audit.*' --since=90d --json
    """
    check_pattern(pattern)
    found = finish(_verify(asked, pattern, moment_of(since, SystemClock().now())))
    whole = all(each.whole for each in found)
    asked.answer({"whole": whole, "streams": [*map(_verified, found)]}, lambda: _tell(found))
    if not whole:
        raise click.exceptions.Exit(1)


async def _verify(asked: Asked, pattern: str, since: datetime | None) -> list[Verified]:
    found: list[Verified] = []
    async with opened(asked.config()) as places:
        with progress("archives") as looked:
            for rule in places.rules:
                chains = verify(
                    rule.objects, rule.prefix, pattern,
                    group=GROUP, streams=places.streams, since=since, looked=looked,
                )  # fmt: skip
                found += [each async for each in chains]
        known = {each.subject for each in found}
        for rule in places.archived:
            lost = without(places.streams, rule, pattern, group=GROUP, known=known, since=since)
            found += [each async for each in lost]
    return found


def _verified(each: Verified) -> Mapping[str, object]:
    return {
        "subject": each.subject,
        "epoch": each.epoch,
        "whole": each.whole,
        "incomplete": each.incomplete,
        "archives": each.archives,
        "messages": each.messages,
        "marked": each.marked,
        "bytes": each.bytes,
        "start": None if each.start is None else str(each.start),
        "last": None if each.last is None else str(each.last),
        "waiting": each.waiting,
        "problems": [{"key": problem.key, "what": problem.what} for problem in each.problems],
    }


def _called(each: Verified) -> str:
    name = each.subject if each.epoch == 1 else f"{each.subject} (epoch {each.epoch})"
    return f"{name} (incomplete: a work queue)" if each.incomplete else name


def _waiting(each: Verified) -> str:
    return "" if each.waiting is None else str(each.waiting)


def _tell(found: Sequence[Verified]) -> None:
    if not found:
        click.echo("there is no such archive")
        return
    rows = [
        ("ok" if e.whole else "fail", _called(e), e.archives, e.messages, e.last, _waiting(e)) for e in found
    ]
    show_table(("", "stream", "archives", "messages", "up to", "waiting"), rows)
    for each in found:
        for problem in each.problems:
            click.echo(f"{printable(problem.key or each.subject)}: {printable(problem.what)}")
