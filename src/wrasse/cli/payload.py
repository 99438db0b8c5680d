"""The payload of a command: from the command line, a file or stdin; as a whole, or one per line, raw or as JSON."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import click
import msgspec

from wrasse.cli.output import progress
from wrasse.errors import TooLarge, UnknownName, UsageError, WrasseError

T = TypeVar("T")

STDIN = "-"


def check_sources(payload: str | None, path: str | None, *, lines: bool, json_lines: bool) -> None:
    """Refuses contradicting options, before anything is read."""
    if payload == STDIN and path in (None, STDIN):
        payload = None
    if payload is not None and (path is not None or lines or json_lines):
        raise click.UsageError("there are two payloads\ndo: pass it as an argument, or in a file or on stdin")
    if lines and json_lines:
        raise click.UsageError("--lines and --json-lines exclude each other\ndo: use one of them")


def one_payload(argument: str | None, path: str | None, bytes_max: int) -> bytes:
    """The one payload, byte for byte. A dash means stdin."""
    if argument is not None and argument != STDIN:
        return argument.encode("utf-8", "surrogateescape")
    if path is None and argument is None and sys.stdin.isatty():
        raise UsageError("there is no payload", do="pass it as an argument, with --file, or on stdin")
    with opened_input(path) as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise TooLarge(f"the payload is larger than {bytes_max} bytes", do="put the data elsewhere and send its name")
    return data


def opened_input(path: str | None) -> BinaryIO:
    """The file, or stdin if none or `-` is named."""
    if path is None or path == STDIN:
        return sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except OSError as why:
        raise UsageError(f"{path} cannot be read: {why.strerror}", do="name a readable file") from why


def from_lines(
    path: str | None, made: Callable[[bytes], T], *, what: str, bytes_max: int, spaces: bool = False
) -> Iterator[T]:
    """What `made` returns for each line, one by one, so that files of any length work. Empty lines are skipped, and
    lines of white space unless `spaces`. `what` is the label of the progress line."""
    with opened_input(path) as file, progress(what) as seen:
        number = 0
        while line := file.readline(bytes_max):
            number += 1
            line = line.rstrip(b"\r\n")
            if not (line if spaces else line.strip()):
                continue
            try:
                thing = made(line)
            except WrasseError as why:
                raise UsageError(f"line {number}: {why.message}", do=why.do) from why
            yield thing
            seen(1)


def fields_of(line: bytes, known: Collection[str], example: str) -> Mapping[str, object]:
    """The fields of a line that is a JSON object; only known ones are allowed."""
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise UsageError(f"not JSON: {why}", do="write one object per line") from None
    if not isinstance(fields, dict):
        raise UsageError("not a JSON object", do=f"write {example}, or use --lines")
    for name in fields:
        if name not in known:
            raise UnknownName(name, known, what="field")
    return fields


def payload_of(fields: Mapping[str, object]) -> bytes:
    """The payload in the fields of a line: base 64 bytes, or data encoded as JSON."""
    if "payload_b64" not in fields:
        return msgspec.json.encode(fields["data"]) if "data" in fields else b""
    try:
        return base64.b64decode(str(fields["payload_b64"]), validate=True)
    except ValueError:
        raise UsageError("payload_b64 is not base 64", do="encode the bytes, or use data") from None


class _Sized(Protocol):
    @property
    def payload(self) -> bytes: ...


SIZED = TypeVar("SIZED", bound=_Sized)


def pieces_of(things: Iterator[SIZED], count_max: int, bytes_max: int) -> Iterator[list[SIZED]]:
    """Jobs or messages in batches that fit into one call."""
    piece: list[SIZED] = []
    size = 0
    for thing in things:
        piece.append(thing)
        size += len(thing.payload)
        if len(piece) == count_max or size > bytes_max:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
