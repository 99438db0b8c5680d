"""wrasse archives replay and restart: archived messages published again, and going on after a stream was set back."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import click

from wrasse.app.archiving import build_rules, open_ports
from wrasse.app.building import owner_name
from wrasse.app.cli_archives_look import BadLines, Wanted, moment_of, opened
from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.progress import progress
from wrasse.app.wiring import Stores
from wrasse.archives.cursor import Cursors
from wrasse.archives.drain import GROUP
from wrasse.archives.restart import Replayed, Restart, plan_restart, replay, restart
from wrasse.archives.turns import TTL, Turns
from wrasse.clock import Clock, SystemClock
from wrasse.duration import format_duration
from wrasse.errors import Refused, UsageError
from wrasse.ports.subjects import check_pattern, check_subject, matches

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
    asked: Asked, pattern: str, into: str | None, since: str | None, until: str | None, yes: bool, dry_run: bool
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
    done = finish(_replay(asked, Wanted(pattern, moment_of(since, now), moment_of(until, now)), into, dry_run, bad))
    said = "would publish" if dry_run else "published"
    asked.answer(
        {"messages": done.messages, "bytes": done.bytes, "into": into, "dry_run": dry_run,
         "bad_lines": bad.count, "problems": bad.first},
        lambda: click.echo(f"{said} {done.messages} message{'' if done.messages == 1 else 's'} of {done.bytes} bytes"),
    )  # fmt: skip
    bad.end()


async def _replay(asked: Asked, wanted: Wanted, into: str | None, dry_run: bool, bad: BadLines) -> Replayed:
    messages = size = 0
    async with opened(asked.config(), create=not dry_run) as places:
        with progress("messages") as told:
            for rule in places.rules:
                done = await replay(wanted.read(rule, bad), None if dry_run else places.streams, into, told)
                messages, size = messages + done.messages, size + done.bytes
    return Replayed(messages, size)


@click.command("restart")
@click.argument("subject")
@click.option("--yes", is_flag=True, help="Really begin the new epoch.")
@click.option("--dry-run", is_flag=True, help="Show what it would come to, and change nothing.")
@asks
def restart_(asked: Asked, subject: str, yes: bool, dry_run: bool) -> None:
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
        lambda: _tell(done, dry_run),
    )  # fmt: skip


def _tell(done: Restart, dry_run: bool) -> None:
    click.echo(f"epoch {done.epoch} {'would begin' if dry_run else 'begins'} after {done.after}")
    click.echo(f"{done.new} entries of the stream are in no archive yet")
    click.echo(f"{done.gone} archived messages are in the stream no more: `wrasse archives replay` brings them back")


async def _wait_for_turn(turns: Turns, subject: str, clock: Clock) -> None:
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


async def _restart(asked: Asked, subject: str, dry_run: bool) -> Restart:
    config, clock = asked.config(), SystemClock()
    stores = Stores(clock, create=not dry_run)
    try:
        ports = await open_ports(config, stores, clock)
        rule = next((each for each in await build_rules(config, stores) if matches(each.pattern, subject)), None)
        if rule is None:
            raise UsageError(f"no entry of archiver.streams matches {subject!r}", do="see `wrasse config show`")
        cursors = Cursors(ports.records)
        turns = Turns(ports.lessor, owner_name(), clock, _TURN)
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
    finally:
        await stores.close()
