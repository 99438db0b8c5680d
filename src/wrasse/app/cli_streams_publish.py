"""wrasse streams publish: one message from an argument, a file or stdin, or one per line."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import click
import msgspec

from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_input import check_sources, one_payload, opened_input
from wrasse.app.cli_streams import opened
from wrasse.app.progress import progress
from wrasse.clock import SystemClock
from wrasse.errors import UnknownName, UsageError, WrasseError
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
        messages = _from_lines(path, _described if json_lines else _bare, given)
    else:
        messages = iter([_bare(given, one_payload(payload, path, PAYLOAD_BYTES_MAX))])
    finish(_publish(asked, messages))


async def _publish(asked: Asked, messages: Iterator[Message]) -> None:
    ids: list[str] = []
    count = 0
    async with opened(asked.config()) as store:
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


def _from_lines(
    path: str | None, made: Callable[[Given, bytes], Message], given: Given
) -> Iterator[Message]:
    """Messages one by one, so that a file of any length goes through. Empty lines are passed over."""
    with opened_input(path) as file, progress("messages") as seen:
        number = 0
        while line := file.readline(LINE_BYTES_MAX):
            number += 1
            line = line.rstrip(b"\r\n")
            if not line.strip():
                continue
            try:
                message = made(given, line)
                check_subject(message.subject)
                check_payload(message.payload, message.subject)
            except WrasseError as why:
                raise UsageError(f"line {number}: {why.message}", do=why.do) from why
            yield message
            seen(1)


def _bare(given: Given, payload: bytes) -> Message:
    return Message(given.subject, payload, given.key, given.trace_id)


def _described(given: Given, line: bytes) -> Message:
    fields = _fields(line)
    trace_id = fields.get("trace_id", given.trace_id)
    return Message(
        str(fields.get("subject", given.subject)),
        _data(fields),
        str(fields.get("key", "")),
        None if trace_id is None else str(trace_id),
    )


def _fields(line: bytes) -> Mapping[str, object]:
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise UsageError(f"not JSON: {why}", do="write one object per line") from None
    if not isinstance(fields, dict):
        raise UsageError("not a JSON object", do='write {"data": ...}, or use --lines')
    for name in fields:
        if name not in FIELDS:
            raise UnknownName(name, FIELDS, what="field")
    return fields


def _data(fields: Mapping[str, object]) -> bytes:
    if "payload_b64" not in fields:
        return msgspec.json.encode(fields["data"]) if "data" in fields else b""
    try:
        return base64.b64decode(str(fields["payload_b64"]), validate=True)
    except binascii.Error:
        raise UsageError("payload_b64 is not base 64", do="encode the bytes, or use data") from None


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
