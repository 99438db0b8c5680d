"""wrasse archives list, read, verify, replay, restart: what was archived, published again or gone on with."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import click

from wrasse.archives.archive_list import ListedArchive, list_archives
from wrasse.archives.batch import ArchiveFacts
from wrasse.archives.cursor import Cursors
from wrasse.archives.drain import GROUP
from wrasse.archives.reader import Archived, BadLine, error_text, facts_at, read
from wrasse.archives.restart import ArchiveReplayResult, Restart, plan_restart, replay, restart
from wrasse.archives.rule import Rule
from wrasse.archives.stream_lease import TTL, StreamLeases
from wrasse.archives.verify import PROBLEMS_MAX, Problem, Verified, verify, without
from wrasse.cli.context import CommandContext, asks, finish
from wrasse.cli.output import counted, printable, progress, show_facts, show_table
from wrasse.cli.streams import entry_json, entry_line
from wrasse.clock import Clock, SystemClock
from wrasse.config.load import Config
from wrasse.duration import format_duration, parse_duration
from wrasse.errors import BadDuration, Refused, StoreBroken, UsageError
from wrasse.observability.json_format import picked, to_json
from wrasse.ports.rules.subjects import check_pattern, check_subject, matches
from wrasse.ports.streams import Streams
from wrasse.runtime.archiver import archive_rules, build_rules, open_ports
from wrasse.runtime.backends import Stores
from wrasse.runtime.worker import owner_name


@dataclass(frozen=True, slots=True)
class ArchiveSources:
    """Where archives are looked for, which streams should have some, and the streams they came from."""

    rules: Sequence[Rule]
    archived: Sequence[Rule]
    streams: Streams


class BadLines:
    """Reports lines of archives that cannot be read on stderr, at once; keeps the first ones for an answer."""

    def __init__(self, asked: CommandContext) -> None:
        self._json = asked.json
        self.count = 0
        self.first: list[Mapping[str, object]] = []

    def __call__(self, bad: BadLine) -> None:
        """Reports one."""
        told = picked(bad, "key line what")
        self.count += 1
        if len(self.first) < PROBLEMS_MAX:
            self.first.append(told)
        click.echo(to_json(told) if self._json else f"{printable(bad.key)}: {bad}", err=True)

    def end(self) -> None:
        """Ends the command with 1 if there was any."""
        if self.count:
            raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class ArchiveSelection:
    """Which messages to read."""

    pattern: str
    since: datetime | None
    until: datetime | None

    def read(self, rule: Rule, bad: BadLines) -> AsyncIterator[Archived]:
        """Those among the archives of a rule."""
        return read(rule.objects, rule.prefix, self.pattern, since=self.since, until=self.until, report=bad)


@asynccontextmanager
async def opened(config: Config, *, create: bool = False) -> AsyncIterator[ArchiveSources]:
    """The stores of archives and the streams, for the length of a command; one that only reads creates nothing."""
    async with Stores.of(config.settings.worker, create=create) as stores:
        streams = (await stores.open_streams(config.homes.streams)).streams
        looked_for = await archive_rules(config, stores)
        yield ArchiveSources(looked_for, await build_rules(config, stores) or looked_for, streams)


@asynccontextmanager
async def opened_archives(config: Config) -> AsyncIterator[Sequence[Rule]]:
    """The stores of archives alone, to read."""
    async with Stores.of(config.settings.worker, create=False) as stores:
        yield await archive_rules(config, stores)


@click.command("list")
@click.argument("pattern", default=">")
@click.option("--since", metavar="WHEN", help="Only archives with messages of this time or later: 7d (ago), or a date.")
@click.option("--until", metavar="WHEN", help="Only archives with a message before this, in the same forms.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Archives at most.")
@asks
def list_(asked: CommandContext, pattern: str, since: str | None, until: str | None, limit: int) -> None:
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


async def _list(asked: CommandContext, pattern: str, span: tuple[datetime | None, datetime | None], limit: int) -> None:
    found, problems = list[Mapping[str, object]](), list[Problem]()
    since, until = span
    async with opened_archives(asked.config()) as rules:
        for rule in rules:
            async for each in list_archives(rule.objects, rule.prefix, pattern):
                if len(found) == limit:
                    break
                try:
                    facts = await facts_at(rule.objects, each.name)
                except StoreBroken as why:
                    problems.append(Problem(each.info.key, error_text(why, each.info.key)))
                    continue
                if facts is None or (since is not None and facts.last.at < since):
                    continue
                if until is None or facts.first.at < until:
                    found.append(_row(rule, each, facts))
    columns = ("key", "subject", "first", "last", "count", "bytes")
    asked.answer(
        {"archives": found, "problems": [picked(each, "key what") for each in problems]},
        lambda: show_facts(columns, found, empty="there is no such archive"),
    )
    for problem in problems:
        click.echo(f"{printable(problem.key)}: {printable(problem.what)}", err=True)
    if problems:
        raise click.exceptions.Exit(1)


def _row(rule: Rule, each: ListedArchive, facts: ArchiveFacts) -> Mapping[str, object]:
    return {
        "key": each.info.key,
        **picked(each.name, "subject domain epoch"),
        "start": str(each.name.after),
        "first": str(facts.first),
        "last": str(facts.last),
        **picked(facts, "count marked incomplete"),
        "bytes": each.info.size,
        "destination": rule.destination,
    }


@click.command("read")
@click.argument("pattern")
@click.option("--since", metavar="WHEN", help="Only what came at or after this: 7d (ago), or 2026-02-14T08:00.")
@click.option("--until", metavar="WHEN", help="Only what came before this, in the same forms.")
@click.option("--limit", type=click.IntRange(1), help="At most so many messages.")
@asks
def read_(asked: CommandContext, pattern: str, since: str | None, until: str | None, limit: int | None) -> None:
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
    finish(_read(asked, ArchiveSelection(pattern, moment_of(since, now), moment_of(until, now)), limit, bad))
    bad.end()


async def _read(asked: CommandContext, wanted: ArchiveSelection, limit: int | None, bad: BadLines) -> None:
    count = 0
    async with opened_archives(asked.config()) as rules:
        for rule in rules:
            async for archived in wanted.read(rule, bad):
                if count == limit:
                    return
                count += 1
                _write(asked, archived)


def _write(asked: CommandContext, archived: Archived) -> None:
    entry = archived.entry
    if asked.json:
        click.echo(to_json({**entry_json(entry, None), "raw": archived.marked, "archive": archived.key}))
    else:
        click.echo(entry_line(entry))
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
def verify_(asked: CommandContext, pattern: str, since: str | None) -> None:
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
    asked.answer({"whole": whole, "streams": [*map(_verified, found)]}, lambda: _tell_verified(found))
    if not whole:
        raise click.exceptions.Exit(1)


async def _verify(asked: CommandContext, pattern: str, since: datetime | None) -> list[Verified]:
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
        **picked(each, "subject epoch whole incomplete archives messages marked bytes waiting"),
        "start": None if each.start is None else str(each.start),
        "last": None if each.last is None else str(each.last),
        "problems": [picked(problem, "key what") for problem in each.problems],
    }


def _called(each: Verified) -> str:
    name = each.subject if each.epoch == 1 else f"{each.subject} (epoch {each.epoch})"
    return f"{name} (incomplete: a work queue)" if each.incomplete else name


def _tell_verified(found: Sequence[Verified]) -> None:
    rows = [("ok" if e.whole else "fail", _called(e), e.archives, e.messages, e.last, e.waiting) for e in found]
    columns = ("", "stream", "archives", "messages", "up to", "waiting")
    show_table(columns, rows, empty="there is no such archive")
    for each in found:
        for problem in each.problems:
            click.echo(f"{printable(problem.key or each.subject)}: {printable(problem.what)}")


_TURN = timedelta(minutes=10)
_PATIENCE = TTL + timedelta(seconds=5)  # longer than a lease that nobody renews


@click.command("replay")
@click.argument("pattern")
@click.option("--into", metavar="SUBJECT", help="The stream that gets them.  [default: each the one it came from]")
@click.option("--since", metavar="WHEN", help="Only what came at or after this: 7d (ago), or 2026-02-14T08:00.")
@click.option("--until", metavar="WHEN", help="Only what came before this, in the same forms.")
@click.option("--yes", is_flag=True, help="Really publish them.")
@click.option("--dry-run", is_flag=True, help="Show how many would be published, and change nothing.")
@asks
def replay_(
    asked: CommandContext,
    pattern: str,
    into: str | None,
    since: str | None,
    until: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Publish archived messages again, in their order and byte for byte: of one stream, or of all that match PATTERN.

    Begun again within two minutes of an interruption it adds no message twice where the backend knows keys; messages
    keep their ids in any case. A stream that is archived has them archived once more: use --into to keep them apart.
    A line that cannot be read is reported on stderr, the others are published, and the command ends with 1.

    \b
    Examples:
      wrasse archives replay gbe.events.audit.change --since=2026-02-14 --into=test.audit --dry-run
      wrasse archives replay 'gbe.events.audit.*' --since=1d --into=test.audit --yes
    """
    if not (yes or dry_run):
        raise Refused("a replay publishes many messages", do="look with --dry-run, then say --yes")
    check_pattern(pattern)
    if into is not None:
        check_subject(into)
    now = SystemClock().now()
    bad = BadLines(asked)
    done = finish(
        _replay(asked, ArchiveSelection(pattern, moment_of(since, now), moment_of(until, now)), into, dry_run, bad)
    )
    said = "would publish" if dry_run else "published"
    asked.answer(
        {"messages": done.messages, "bytes": done.bytes, "into": into, "dry_run": dry_run,
         "bad_lines": bad.count, "problems": bad.first},
        lambda: click.echo(f"{said} {counted(done.messages, 'message')} of {done.bytes} bytes"),
    )  # fmt: skip
    bad.end()


async def _replay(
    asked: CommandContext, wanted: ArchiveSelection, into: str | None, dry_run: bool, bad: BadLines
) -> ArchiveReplayResult:
    messages = size = 0
    async with opened(asked.config(), create=not dry_run) as places:
        with progress("messages") as told:
            for rule in places.rules:
                done = await replay(wanted.read(rule, bad), None if dry_run else places.streams, into, told)
                messages, size = messages + done.messages, size + done.bytes
    return ArchiveReplayResult(messages, size)


@click.command("restart")
@click.argument("subject")
@click.option("--yes", is_flag=True, help="Really begin the new epoch.")
@click.option("--dry-run", is_flag=True, help="Show what it would come to, and change nothing.")
@asks
def restart_(asked: CommandContext, subject: str, yes: bool, dry_run: bool) -> None:
    """Go on with the stream SUBJECT, which a failover or a restored backup set back behind its archives.

    What the stream holds and no archive does is archived in a new epoch, under keys that end in -e2, -e3 and so on.
    What was archived stays as it is.

    \b
    Examples:
      wrasse archives restart gbe.events.audit.change --dry-run
      wrasse archives restart gbe.events.audit.change --yes
    """
    if not (yes or dry_run):
        raise Refused("a restart begins a new epoch of archives", do="look with --dry-run, then say --yes")
    check_subject(subject)
    done = finish(_restart(asked, subject, dry_run))
    asked.answer(
        {"subject": subject, "epoch": done.epoch, "after": str(done.after), "new": done.new, "gone": done.gone,
         "dry_run": dry_run},
        lambda: _tell_restart(done, dry_run),
    )  # fmt: skip


def _tell_restart(done: Restart, dry_run: bool) -> None:
    click.echo(f"epoch {done.epoch} {'would begin' if dry_run else 'begins'} after {done.after}")
    click.echo(f"{done.new} entries of the stream are in no archive yet")
    click.echo(f"{done.gone} archived messages are in the stream no more: `wrasse archives replay` brings them back")


async def _wait_for_turn(turns: StreamLeases, subject: str, clock: Clock) -> None:
    """An archiver that met the trouble looks again now and then, and has the stream for that moment; one that died, or
    whose lease a failover brought back, has it until the lease ends."""
    ends, told = clock.monotonic() + _PATIENCE.total_seconds(), False
    while not await turns.asked_again(subject):
        if clock.monotonic() > ends:
            raise Refused(f"an archiver works on {subject!r} now", do="stop it, and try again")
        if not told:
            click.echo(f"waiting for an archiver that has {subject!r}, up to {format_duration(_PATIENCE)}", err=True)
            told = True
        await asyncio.sleep(0.1)


async def _restart(asked: CommandContext, subject: str, dry_run: bool) -> Restart:
    config, clock = asked.config(), SystemClock()
    async with Stores.of(config.settings.worker, clock, create=not dry_run) as stores:
        ports = await open_ports(config, stores, clock)
        rule = next((each for each in await build_rules(config, stores) if matches(each.pattern, subject)), None)
        if rule is None:
            raise UsageError(f"no entry of archiver.streams matches {subject!r}", do="see `wrasse config show`")
        cursors = Cursors(ports.records)
        turns = StreamLeases(ports.lease_manager, owner_name(), clock, _TURN)
        # Safety comes from the cursor's version; our turn keeps an archiver from finishing what it began before.
        if not dry_run:
            await _wait_for_turn(turns, subject, clock)
        try:
            planned = await plan_restart(ports.streams, cursors, rule, subject, GROUP)
            if not dry_run:
                await restart(cursors, planned)
            return planned
        finally:
            await turns.give_back()
