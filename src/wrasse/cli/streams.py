"""wrasse streams publish, read, info: messages read directly, or as a member of a group.

Without a group, reading changes nothing. With one, each message is acked when it has been written, so that a reader
that is killed gets it again.
"""

from __future__ import annotations

import asyncio
import base64
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import click

from wrasse.cli.context import CommandContext, finish, with_context
from wrasse.cli.output import printable, show_table
from wrasse.cli.payload import check_sources, fields_of, from_lines, one_payload, payload_of, pieces_of
from wrasse.clock import SystemClock, from_micros, to_micros
from wrasse.config.load import Config
from wrasse.duration import parse_duration
from wrasse.errors import BadDuration, StoreBroken, UsageError
from wrasse.observability.json_format import ago, glimpse, stream_json, text_of, to_json
from wrasse.ports.backend import StreamStore
from wrasse.ports.groups import Ack, StartAt, check_group
from wrasse.ports.rules.subjects import check_pattern, check_subject, is_wild
from wrasse.ports.streams import START, Entry, EntryId, Streams, StreamState
from wrasse.runtime.backends import Stores
from wrasse.runtime.signals import on_stop
from wrasse.streams.delivery import envelope_in
from wrasse.streams.envelope import PAYLOAD_BYTES_MAX, Envelope, check_payload
from wrasse.streams.membership import JoinOptions, Membership, consumer_name
from wrasse.streams.publisher import Publication, Publisher

BATCH_MAX = 1_000
SHOWN_MAX = 20
LINE_BYTES_MAX = 2 * PAYLOAD_BYTES_MAX
FIELDS = ("subject", "data", "payload_b64", "key", "trace_id")
PAGE = 100
STREAMS_MAX = 1_000
POLL = 0.2  # seconds
ACK = timedelta(seconds=30)
_ID = re.compile(r"\d+-\d+")


@asynccontextmanager
async def opened(config: Config, *, create: bool = False) -> AsyncIterator[StreamStore]:
    """The backend of the streams, for the length of a command; a command that only reads creates nothing."""
    async with Stores.of(config.settings.worker, create=create) as stores:
        yield await stores.open_streams(config.homes.streams)


@click.command()
@click.argument("subject")
@click.argument("payload", required=False)
@click.option(
    "--key", default="", help="An idempotency key: a second message with it within two minutes is not published."
)
@click.option("--trace-id", help="Passed on to the consumers.")
@click.option("--file", "path", type=click.Path(dir_okay=False), help="Read the payload from this file; -: from stdin.")
@click.option("--lines", is_flag=True, help="One message per line of the file or stdin, the line being the payload.")
@click.option("--json-lines", is_flag=True, help=f"One message per line, as a JSON object with {', '.join(FIELDS)}.")
@with_context
def publish(
    ctx: CommandContext,
    subject: str,
    payload: str | None,
    key: str,
    trace_id: str | None,
    path: str | None,
    lines: bool,
    json_lines: bool,
) -> None:
    """Publish a message to the stream SUBJECT. The PAYLOAD is stored byte for byte; without one it is read from stdin.

    \b
    Examples:
      wrasse streams publish orders.eu.paid '{"order": 42}' --key=order-42
      wrasse streams publish gbe.events.audit.change --file=change.json
      wrasse streams publish logs.web --lines < access.log
    """
    check_subject(subject)
    check_sources(payload, path, lines=lines, json_lines=json_lines)
    if key and (lines or json_lines):
        raise click.UsageError("one key cannot name many messages\ndo: put keys into the lines with --json-lines")
    given = Publication(subject, b"", key, trace_id)
    if lines or json_lines:
        made = partial(_of_line, given, described=json_lines)
        messages = from_lines(path, made, what="messages", bytes_max=LINE_BYTES_MAX)
    else:
        messages = iter([replace(given, payload=one_payload(payload, path, PAYLOAD_BYTES_MAX))])
    finish(_publish(ctx, messages))


async def _publish(ctx: CommandContext, messages: Iterator[Publication]) -> None:
    ids: list[str] = []
    count = 0
    async with opened(ctx.config(), create=True) as store:
        publisher = Publisher(store.streams, SystemClock())
        try:
            for piece in pieces_of(messages, BATCH_MAX, PAYLOAD_BYTES_MAX):
                sent = await publisher.publish_many(piece)
                count += len(sent)
                ids += sent[: BATCH_MAX - len(ids)]
        except UsageError as why:
            if count:
                raise UsageError(f"{why.message}; {count} messages before it are published", do=why.do) from why
            raise
    ctx.answer({"published": count, "message_ids": ids}, lambda: _tell_published(ids, count))


def _tell_published(ids: list[str], count: int) -> None:
    if count > SHOWN_MAX:
        click.echo(f"published {count} messages")
    for id in ids if count <= SHOWN_MAX else ():
        click.echo(id)


def _of_line(given: Publication, line: bytes, *, described: bool) -> Publication:
    """A message with the fields of its line, which have precedence over the options."""
    message = replace(given, payload=line)
    if described:
        fields = fields_of(line, FIELDS, '{"data": ...}')
        own = {name: str(fields[name]) for name in ("subject", "key", "trace_id") if fields.get(name) is not None}
        message = replace(given, payload=payload_of(fields), **own)
    check_subject(message.subject)
    check_payload(message.payload, message.subject)
    return message


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read."""

    pattern: str
    start: str
    limit: int | None
    follow: bool


@click.command()
@click.argument("pattern")
@click.option("--group", help="Read as a member of this group, and ack what was written.")
@click.option(
    "--from",
    "start",
    default="first",
    show_default=True,
    metavar="WHERE",
    help="first, last (only new messages), a time ago (5m), or after an entry (its id). An existing group continues at "
    "its position.",
)
@click.option("--follow", "-f", is_flag=True, help="Continue with new messages, until stopped.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of messages.")
@with_context
def read(ctx: CommandContext, pattern: str, group: str | None, start: str, follow: bool, limit: int | None) -> None:
    """Read messages of one stream, or of all that match PATTERN: `*` is one token, `>` the rest. With --json, one
    object per line.

    \b
    Examples:
      wrasse streams read gbe.events.audit.change --from=1h
      wrasse streams read 'orders.>' --follow --json
      wrasse streams read gbe._deadletter.tasks --group=triage --limit=10
    """
    check_pattern(pattern)
    wanted = ReadOptions(pattern, start, limit, follow)
    if group is not None:
        check_group("any", group)
    finish(_read(ctx, wanted, group))


async def _read(ctx: CommandContext, wanted: ReadOptions, group: str | None) -> None:
    stopped = asyncio.Event()
    with on_stop(lambda _: stopped.set()):
        async with opened(ctx.config(), create=wanted.follow or group is not None) as store:
            if group is None:
                await _read_directly(ctx, wanted, store, stopped)
            else:
                await _consume(ctx, wanted, store, group, stopped)


async def _read_directly(ctx: CommandContext, wanted: ReadOptions, store: StreamStore, stopped: asyncio.Event) -> None:
    """Reads without a group."""
    now = (await store.health_sample()).at
    count = 0
    async for entry in _entries(store.streams, wanted, start_at(wanted.start, now), stopped):
        _write(ctx, entry, None)
        count += 1
        if count == wanted.limit or stopped.is_set():
            return


async def _entries(
    streams: Streams, wanted: ReadOptions, start: StartAt, stopped: asyncio.Event
) -> AsyncIterator[Entry]:
    """The entries of all matching streams, the oldest first; then, with --follow, new ones."""
    cursors: dict[str, EntryId] = {}
    first = True
    while not stopped.is_set():
        subjects = await _subjects(streams, wanted.pattern)
        for subject in subjects:
            if subject not in cursors:
                # A stream that appears later is read from its first entry.
                cursors[subject] = await _cursor(streams, subject, start) if first else START
        first = False
        waiting = {subject: list(await _after(streams, subject, cursors[subject])) for subject in subjects}
        while waiting := {subject: entries for subject, entries in waiting.items() if entries}:
            subject = min(waiting, key=lambda name: (waiting[name][0].id, name))
            entry = waiting[subject].pop(0)
            cursors[subject] = entry.id
            yield entry
            if not waiting[subject]:
                waiting[subject] = list(await _after(streams, subject, entry.id))
        if not wanted.follow:
            return
        await asyncio.sleep(POLL)


async def _after(streams: Streams, subject: str, after: EntryId) -> tuple[Entry, ...]:
    return (await streams.read(subject, after, PAGE)).items


async def _subjects(streams: Streams, pattern: str) -> tuple[str, ...]:
    if not is_wild(pattern):
        return (pattern,)
    page = await streams.subjects(pattern, None, STREAMS_MAX)
    if page.more:
        raise UsageError(f"more than {STREAMS_MAX} streams match {pattern!r}", do="write a narrower pattern")
    return page.items


async def _cursor(streams: Streams, subject: str, start: StartAt) -> EntryId:
    if start.first:
        return START
    if start.at is not None:
        return EntryId(max(to_micros(start.at) // 1_000, 0), 0).previous
    if start.after is not None:
        return start.after
    state = await streams.info(subject)
    return START if state is None or state.last is None else state.last


def start_at(text: str, now: datetime) -> StartAt:
    """The position that --from means."""
    if text == "first":
        return StartAt(first=True)
    if text == "last":
        return StartAt()
    if _ID.fullmatch(text):
        return StartAt(after=EntryId.parse(text))
    try:
        return StartAt(at=now - parse_duration(text))
    except BadDuration:
        raise UsageError(
            f"--from {text!r} is not a position in a stream",
            do="write first, last, a duration such as 5m, or an entry's id",
        ) from None


async def _consume(
    ctx: CommandContext, wanted: ReadOptions, store: StreamStore, group: str, stopped: asyncio.Event
) -> None:
    """Reads as a member of a group. Without --follow it ends when the group has no more messages."""
    clock = SystemClock()
    start = start_at(wanted.start, (await store.health_sample()).at)
    members = Membership(
        streams=store.streams,
        groups=store.groups,
        clock=clock,
        pattern=wanted.pattern,
        group=group,
        options=JoinOptions(start),
    )
    name = consumer_name(clock)
    left = wanted.limit
    try:
        while not stopped.is_set() and left != 0:
            await members.refresh()
            room = PAGE if left is None else min(left, PAGE)
            wait = timedelta(seconds=POLL if wanted.follow else 0)
            found = await store.groups.deliver(members.subjects, group, name, room, ack_timeout=ACK, wait=wait)
            for delivery in found:
                _write(ctx, delivery.entry, delivery.number)
            await store.groups.answer([Ack(each.entry.subject, group, each.entry.id) for each in found])
            left = None if left is None else left - len(found)
            if not found and not wanted.follow:
                return
            if not members.subjects:
                await asyncio.sleep(POLL)
    finally:
        # Messages that were delivered but not written become due for others at once.
        await members.leave(name)


def _write(ctx: CommandContext, entry: Entry, number: int | None) -> None:
    if ctx.json:
        click.echo(to_json(entry_json(entry, number)))
    else:
        click.echo(entry_line(entry))
    sys.stdout.flush()


def entry_line(entry: Entry) -> str:
    """One message as a line: time, entry, subject, id, payload, and additional fields."""
    envelope = _envelope(entry)
    at = entry.id.at.strftime("%Y-%m-%d %H:%M:%S")
    id, payload = ("-", _bytes_of(entry)) if envelope is None else (envelope.message_id or "-", envelope.payload)
    beside = b" ".join(b"%s=%s" % (name.encode(), value) for name, value in (entry.fields or {}).items())
    shown = f"  [{printable(glimpse(beside, 80))}]" if beside and entry.body else ""
    return f"{at}  {entry.id}  {entry.subject}  {printable(id)}  {printable(glimpse(payload, 80))}{shown}"


def _bytes_of(entry: Entry) -> bytes:
    """What to show of an entry that is not a message: its body, or without one, its fields."""
    return entry.body or b" ".join(b"%s=%s" % (name.encode(), value) for name, value in (entry.fields or {}).items())


def _envelope(entry: Entry) -> Envelope | None:
    try:
        return envelope_in(entry)
    except StoreBroken:
        return None


def entry_json(entry: Entry, number: int | None) -> Mapping[str, object]:
    """One message as JSON; an entry that is not a message has no message id, and its bytes as payload."""
    envelope = _envelope(entry)
    payload = entry.body if envelope is None else envelope.payload
    return {
        "entry_id": str(entry.id),
        "subject": entry.subject,
        "message_id": None if envelope is None or not envelope.message_id else envelope.message_id,
        "timestamp": None if envelope is None else from_micros(envelope.timestamp * 1_000),
        "trace_id": None if envelope is None else envelope.trace_id,
        "payload": text_of(payload),
        "payload_b64": base64.b64encode(payload).decode(),
        "fields": {name: text_of(value) for name, value in (entry.fields or {}).items()},
        **({} if number is None else {"number": number}),
    }


@click.command()
@click.argument("pattern", default=">")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000), help="Streams per page.")
@click.option("--after", help="Continue after this subject, from the last page.")
@with_context
def info(ctx: CommandContext, pattern: str, limit: int, after: str | None) -> None:
    """Show the streams that match PATTERN (default: all): length, size, age of the oldest entry, and for each group its
    floor (everything up to it is acked), its pending entries, and its lag.

    \b
    Examples:
      wrasse streams info
      wrasse streams info 'gbe.events.>' --json
    """
    check_pattern(pattern)
    finish(_info(ctx, pattern, after, limit))


async def _info(ctx: CommandContext, pattern: str, after: str | None, limit: int) -> None:
    async with opened(ctx.config()) as store:
        page = await store.streams.subjects(pattern, after, limit)
        found = [state for subject in page if (state := await store.streams.info(subject)) is not None]
    ctx.answer(
        {"streams": [stream_json(state) for state in found], "next": page.cursor},
        lambda: _tell_info(found, page.cursor),
    )


def _tell_info(found: Sequence[StreamState], more: str | None) -> None:
    rows = [
        (state.subject, state.length, state.bytes, _age(state.first, state), state.appended, _age(state.last, state))
        for state in found
    ]
    show_table(("stream", "length", "bytes", "oldest", "ever", "newest"), rows, empty="no stream matches")
    groups = [
        (state.subject, g.name, "invalid", "", "", g.invalid)
        if g.invalid
        else (state.subject, g.name, g.floor, g.pending, "" if g.lag is None else g.lag, g.consumers)
        for state in found
        for g in state.groups
    ]
    if groups:
        click.echo("")
        show_table(("stream", "group", "floor", "pending", "lag", "consumers"), groups)
    if more:
        click.echo(f"more: --after={more}")


def _age(id: EntryId | None, state: StreamState) -> str:
    return "" if id is None else ago(id.at, state.at)
