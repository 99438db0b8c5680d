"""wrasse streams publish: one message from an argument, a file or stdin, or one per line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import click

from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_input import check_sources, fields_of, from_lines, one_payload, payload_of
from wrasse.app.cli_streams import opened
from wrasse.clock import SystemClock
from wrasse.errors import UsageError
from wrasse.ports.subjects import check_subject
from wrasse.streams.envelope import PAYLOAD_BYTES_MAX, check_payload
from wrasse.streams.publisher import Message, Publisher

BATCH_MAX = 1_000
SHOWN_MAX = 20
LINE_BYTES_MAX = 2 * PAYLOAD_BYTES_MAX
FIELDS = ("subject", "data", "payload_b64", "key", "trace_id")


@dataclass(frozen=True, slots=True)
class Given:
    """What the options say about every message of this call."""

    subject: str
    key: str
    trace_id: str | None


@click.command()
@click.argument("subject")
@click.argument("payload", required=False)
@click.option("--key", default="", help="An idempotency key: the same one within two minutes publishes nothing new.")
@click.option("--trace-id", help="Passed on to whoever reads the message.")
@click.option("--file", "path", type=click.Path(dir_okay=False), help="Read the payload from this file; -: from stdin.")
@click.option("--lines", is_flag=True, help="One message per line of the file or stdin, the line being the payload.")
@click.option("--json-lines", is_flag=True, help=f"One message per line, as a JSON object with {', '.join(FIELDS)}.")
@asks
def publish(
    asked: Asked,
    subject: str,
    payload: str | None,
    key: str,
    trace_id: str | None,
    path: str | None,
    lines: bool,
    json_lines: bool,
) -> None:
    """Publish a message to the stream SUBJECT. The PAYLOAD goes out byte for byte; without one it is read from stdin.

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
    given = Given(subject, key, trace_id)
    if lines or json_lines:
        made = partial(_checked, _described if json_lines else _bare, given)
        messages = from_lines(path, made, what="messages", bytes_max=LINE_BYTES_MAX)
    else:
        messages = iter([_bare(given, one_payload(payload, path, PAYLOAD_BYTES_MAX))])
    finish(_publish(asked, messages))


async def _publish(asked: Asked, messages: Iterator[Message]) -> None:
    ids: list[str] = []
    count = 0
    async with opened(asked.config(), create=True) as store:
        publisher = Publisher(store.streams, SystemClock())
        try:
            for piece in _pieces(messages):
                sent = await publisher.publish_many(piece)
                count += len(sent)
                ids += sent[: BATCH_MAX - len(ids)]
        except UsageError as why:
            if count:
                raise UsageError(f"{why.message}; {count} messages before it are published", do=why.do) from why
            raise
    asked.answer({"published": count, "message_ids": ids}, lambda: _tell(ids, count))


def _tell(ids: list[str], count: int) -> None:
    if count > SHOWN_MAX:
        click.echo(f"published {count} messages")
    for id in ids if count <= SHOWN_MAX else ():
        click.echo(id)


def _checked(made: Callable[[Given, bytes], Message], given: Given, line: bytes) -> Message:
    message = made(given, line)
    check_subject(message.subject)
    check_payload(message.payload, message.subject)
    return message


def _bare(given: Given, payload: bytes) -> Message:
    return Message(given.subject, payload, given.key, given.trace_id)


def _described(given: Given, line: bytes) -> Message:
    fields = fields_of(line, FIELDS, '{"data": ...}')
    trace_id = fields.get("trace_id", given.trace_id)
    return Message(
        str(fields.get("subject", given.subject)),
        payload_of(fields),
        str(fields.get("key", "")),
        None if trace_id is None else str(trace_id),
    )


def _pieces(messages: Iterator[Message]) -> Iterator[list[Message]]:
    piece: list[Message] = []
    size = 0
    for message in messages:
        piece.append(message)
        size += len(message.payload)
        if len(piece) == BATCH_MAX or size > PAYLOAD_BYTES_MAX:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
