"""Where a command's payload comes from: the command line, a file or stdin; whole, or one per line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import click

from wrasse.errors import TooLarge, UsageError


def check_sources(payload: str | None, path: str | None, *, lines: bool, json_lines: bool) -> None:
    """Refuses what contradicts itself, before anything is read."""
    if payload is not None and (path is not None or lines or json_lines):
        raise click.UsageError("there are two payloads\ndo: give it as an argument, or in a file or on stdin")
    if lines and json_lines:
        raise click.UsageError("--lines and --json-lines exclude each other\ndo: give one of them")


def one_payload(argument: str | None, path: str | None, bytes_max: int) -> bytes:
    """The one payload, byte for byte."""
    if argument is not None:
        return argument.encode("utf-8", "surrogateescape")
    if path is None and sys.stdin.isatty():
        raise UsageError("there is no payload", do="give it as an argument, with --file, or on stdin")
    with opened_input(path) as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise TooLarge(f"the payload is larger than {bytes_max} bytes", do="put the data elsewhere and send its name")
    return data


def opened_input(path: str | None) -> BinaryIO:
    """The file, or stdin where none or `-` is named."""
    if path is None or path == "-":
        return sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except OSError as why:
        raise UsageError(f"{path} cannot be read: {why.strerror}", do="name a file that can be") from why
