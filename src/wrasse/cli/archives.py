"""wrasse archives list, read, verify, replay, restart."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import click

from wrasse.archives.batch import ArchiveFacts
from wrasse.archives.cursor import TTL, Cursors, StreamLeases
from wrasse.archives.drain import GROUP
from wrasse.archives.reader import Archived, BadLine, ListedArchive, error_text, facts_at, list_archives, read
from wrasse.archives.restart import ArchiveReplayResult, Restart, plan_restart, replay, restart
from wrasse.archives.rule import Rule
from wrasse.archives.verify import PROBLEMS_MAX, Problem, Verified, verify, without
from wrasse.cli.context import CommandContext, finish, with_context
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

_TURN = timedelta(minutes=10)
_PATIENCE = TTL + timedelta(seconds=5)  # longer than a lease that is not renewed


@dataclass(frozen=True, slots=True)
class ArchiveSources:
    """The rules of the archive stores, the rules of archived streams, and the streams."""

    rules: Sequence[Rule]
    archived: Sequence[Rule]
    streams: Streams


class BadLines:
    """Reports unreadable lines of archives on stderr, at once; keeps the first ones for the answer."""

    def __init__(self, ctx: CommandContext) -> None:
        self._json = ctx.json
        self.count = 0
        self.first: list[Mapping[str, object]] = []

    def __call__(self, bad: BadLine) -> None:
        """Reports one line."""
        told = picked(bad, "key line what")
        self.count += 1
        if len(self.first) < PROBLEMS_MAX:
            self.first.append(told)
        click.echo(to_json(told) if self._json else f"{printable(bad.key)}: {bad}", err=True)

    def end(self) -> None:
        """Ends the command with exit code 1 if there was any."""
        if self.count:
            raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class ArchiveSelection:
    """Which messages to read."""

    pattern: str
    since: datetime | None
    until: datetime | None

    def read(self, rule: Rule, bad: BadLines) -> AsyncIterator[Archived]:
        """The selected messages in the archives of a rule."""
        return read(rule.objects, rule.prefix, self.pattern, since=self.since, until=self.until, report=bad)


@asynccontextmanager
async def opened(config: Config, *, create: bool = False) -> AsyncIterator[ArchiveSources]:
    """The stores of archives and the streams, for the length of a command; a read-only command creates nothing."""
    async with Stores.of(config.settings.worker, create=create) as stores:
        streams = (await stores.open_streams(config.homes.streams)).streams
        readable = await archive_rules(config, stores)
        yield ArchiveSources(readable, await build_rules(config, stores) or readable, streams)


@asynccontextmanager
async def opened_archives(config: Config) -> AsyncIterator[Sequence[Rule]]:
    """The stores of archives only, for reading."""
    async with Stores.of(config.settings.worker, create=False) as stores:
        yield await archive_rules(config, stores)


@click.command("list")
@click.argument("pattern", default=">")
@click.option("--since", metavar="WHEN", help="Only archives with messages from this time on: 7d (ago), or a date.")
@click.option("--until", metavar="WHEN", help="Only archives with messages before this time; same formats.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Archives at most.")
@with_context
def list_(ctx: CommandContext, pattern: str, since: str | None, until: str | None, limit: int) -> None:
    """Show the archives of the streams that match PATTERN (default: all), in the order of their keys. An unreadable
    archive is reported on stderr, and the exit code is 1.

    \b
    Examples:
      wrasse archives list
      wrasse archives list gbe.events.audit.change --since=7d --json
    """
    check_pattern(pattern)
    now = SystemClock().now()
    finish(_list(ctx, pattern, (moment_of(since, now), moment_of(until, now)), limit))


async def _list(ctx: CommandContext, pattern: str, span: tuple[datetime | None, datetime | None], limit: int) -> None:
    found, problems = list[Mapping[str, object]](), list[Problem]()
    since, until = span
    async with opened_archives(ctx.config()) as rules:
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
    ctx.answer(
        {"archives": found, "problems": [picked(each, "key what") for each in problems]},
        lambda: show_facts(columns, found, empty="no archive matches"),
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
@click.option("--since", metavar="WHEN", help="Only messages from this time on: 7d (ago), or 2026-02-14T08:00.")
@click.option("--until", metavar="WHEN", help="Only messages before this time; same formats.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of messages.")
@with_context
def read_(ctx: CommandContext, pattern: str, since: str | None, until: str | None, limit: int | None) -> None:
    """Read archived messages of one stream, or of all that match PATTERN: each once, in the order of its stream. With
    --json, one object per line. Unreadable lines are reported on stderr, the others are read, and the exit code is 1.

    \b
    Examples:
      wrasse archives read gbe.events.audit.change
      wrasse archives read 'gbe.events.audit.*' --since=2026-02-14 --until=2026-02-15 --json
    """
    check_pattern(pattern)
    now = SystemClock().now()
    bad = BadLines(ctx)
    finish(_read(ctx, ArchiveSelection(pattern, moment_of(since, now), moment_of(until, now)), limit, bad))
    bad.end()


async def _read(ctx: CommandContext, wanted: ArchiveSelection, limit: int | None, bad: BadLines) -> None:
    count = 0
    async with opened_archives(ctx.config()) as rules:
        for rule in rules:
            async for archived in wanted.read(rule, bad):
                if count == limit:
                    return
                count += 1
                _write(ctx, archived)


def _write(ctx: CommandContext, archived: Archived) -> None:
    entry = archived.entry
    if ctx.json:
        click.echo(to_json({**entry_json(entry, None), "raw": archived.marked, "archive": archived.key}))
    else:
        click.echo(entry_line(entry))
    sys.stdout.flush()


def moment_of(text: str | None, now: datetime) -> datetime | None:
    """The time that --since or --until means."""
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
        raise UsageError(f"{text!r} is not a valid time", do="write 7d (ago), or 2026-02-14T08:00") from None


@click.command("verify")
@click.argument("pattern", default=">")
@click.option("--since", metavar="WHEN", help="Only archives of this day and later: older ones may be deleted.")
@with_context
def verify_(ctx: CommandContext, pattern: str, since: str | None) -> None:
    """Verify the archives of the streams that match PATTERN: every archive is complete, the first starts where the
    stream did, each other one where the previous one ended, and the last one ends where the stream says. The exit
    code is 1 if anything is missing, duplicate or damaged.

    \b
    Examples:
      wrasse archives verify
      wrasse archives verify 'gbe.events.audit.*' --since=90d --json
    """
    check_pattern(pattern)
    found = finish(_verify(ctx, pattern, moment_of(since, SystemClock().now())))
    whole = all(each.whole for each in found)
    ctx.answer({"whole": whole, "streams": [*map(_verified, found)]}, lambda: _tell_verified(found))
    if not whole:
        raise click.exceptions.Exit(1)


async def _verify(ctx: CommandContext, pattern: str, since: datetime | None) -> list[Verified]:
    found: list[Verified] = []
    async with opened(ctx.config()) as places:
        with progress("archives") as advance:
            for rule in places.rules:
                chains = verify(
                    rule.objects, rule.prefix, pattern,
                    group=GROUP, streams=places.streams, since=since, looked=advance,
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
    show_table(columns, rows, empty="no archive matches")
    for each in found:
        for problem in each.problems:
            click.echo(f"{printable(problem.key or each.subject)}: {printable(problem.what)}")


@click.command("replay")
@click.argument("pattern")
@click.option("--into", metavar="SUBJECT", help="The target stream.  [default: each message's original stream]")
@click.option("--since", metavar="WHEN", help="Only messages from this time on: 7d (ago), or 2026-02-14T08:00.")
@click.option("--until", metavar="WHEN", help="Only messages before this time; same formats.")
@click.option("--yes", is_flag=True, help="Confirm the publication.")
@click.option("--dry-run", is_flag=True, help="Show how many would be published, and change nothing.")
@with_context
def replay_(
    ctx: CommandContext, pattern: str, into: str | None, since: str | None, until: str | None, yes: bool, dry_run: bool
) -> None:
    """Publish archived messages again, in order and byte for byte: of one stream, or of all that match PATTERN.

    If the backend has idempotency keys, repeating an interrupted replay within two minutes adds no message twice;
    messages keep their ids in any case. An archived stream archives them again: use --into to keep them apart.
    Unreadable lines are reported on stderr, the others are published, and the exit code is 1.

    \b
    Examples:
      wrasse archives replay gbe.events.audit.change --since=2026-02-14 --into=test.audit --dry-run
      wrasse archives replay 'gbe.events.audit.*' --since=1d --into=test.audit --yes
    """
    if not (yes or dry_run):
        raise Refused("a replay publishes many messages", do="check with --dry-run, then add --yes")
    check_pattern(pattern)
    if into is not None:
        check_subject(into)
    now = SystemClock().now()
    bad = BadLines(ctx)
    done = finish(
        _replay(ctx, ArchiveSelection(pattern, moment_of(since, now), moment_of(until, now)), into, dry_run, bad)
    )
    said = "would publish" if dry_run else "published"
    ctx.answer(
        {"messages": done.messages, "bytes": done.bytes, "into": into, "dry_run": dry_run,
         "bad_lines": bad.count, "problems": bad.first},
        lambda: click.echo(f"{said} {counted(done.messages, 'message')} of {done.bytes} bytes"),
    )  # fmt: skip
    bad.end()


async def _replay(
    ctx: CommandContext, wanted: ArchiveSelection, into: str | None, dry_run: bool, bad: BadLines
) -> ArchiveReplayResult:
    messages = size = 0
    async with opened(ctx.config(), create=not dry_run) as places:
        with progress("messages") as told:
            for rule in places.rules:
                done = await replay(wanted.read(rule, bad), None if dry_run else places.streams, into, told)
                messages, size = messages + done.messages, size + done.bytes
    return ArchiveReplayResult(messages, size)


@click.command("restart")
@click.argument("subject")
@click.option("--yes", is_flag=True, help="Confirm the new epoch.")
@click.option("--dry-run", is_flag=True, help="Show what would be archived, and change nothing.")
@with_context
def restart_(ctx: CommandContext, subject: str, yes: bool, dry_run: bool) -> None:
    """Continue archiving the stream SUBJECT after a failover or a restored backup set it back behind its archives.

    Entries of the stream that are in no archive are archived in a new epoch, under keys that end in -e2, -e3 and so
    on. Existing archives are not changed.

    \b
    Examples:
      wrasse archives restart gbe.events.audit.change --dry-run
      wrasse archives restart gbe.events.audit.change --yes
    """
    if not (yes or dry_run):
        raise Refused("a restart begins a new epoch of archives", do="check with --dry-run, then add --yes")
    check_subject(subject)
    done = finish(_restart(ctx, subject, dry_run))
    ctx.answer(
        {"subject": subject, "epoch": done.epoch, "after": str(done.after), "new": done.new, "gone": done.gone,
         "dry_run": dry_run},
        lambda: _tell_restart(done, dry_run),
    )  # fmt: skip


def _tell_restart(done: Restart, dry_run: bool) -> None:
    click.echo(f"epoch {done.epoch} {'would begin' if dry_run else 'begins'} after {done.after}")
    click.echo(f"{done.new} entries of the stream are in no archive yet")
    click.echo(f"{done.gone} archived messages are no longer in the stream: see `wrasse archives replay`")


async def _wait_for_turn(turns: StreamLeases, subject: str, clock: Clock) -> None:
    """Waits for the stream's lease: a running archiver has it briefly at each retry; one that died, or whose lease a
    failover restored, has it until it expires."""
    ends, told = clock.monotonic() + _PATIENCE.total_seconds(), False
    while not await turns.retry_now(subject):
        if clock.monotonic() > ends:
            raise Refused(f"an archiver has the lease of {subject!r}", do="stop it, and try again")
        if not told:
            click.echo(f"waiting for an archiver that has {subject!r}, up to {format_duration(_PATIENCE)}", err=True)
            told = True
        await asyncio.sleep(0.1)


async def _restart(ctx: CommandContext, subject: str, dry_run: bool) -> Restart:
    config, clock = ctx.config(), SystemClock()
    async with Stores.of(config.settings.worker, clock, create=not dry_run) as stores:
        ports = await open_ports(config, stores, clock)
        rule = next((each for each in await build_rules(config, stores) if matches(each.pattern, subject)), None)
        if rule is None:
            raise UsageError(f"no entry of archiver.streams matches {subject!r}", do="see `wrasse config show`")
        cursors = Cursors(ports.records)
        turns = StreamLeases(ports.lease_manager, owner_name(), clock, _TURN)
        # The cursor's version makes this safe; the lease keeps an archiver from finishing what it began before.
        if not dry_run:
            await _wait_for_turn(turns, subject, clock)
        try:
            planned = await plan_restart(ports.streams, cursors, rule, subject, GROUP)
            if not dry_run:
                await restart(cursors, planned)
            return planned
        finally:
            await turns.release_all()
