"""The bytes of a record on NATS: one line of JSON about it, then its value as it is. Pure.

The line holds the version, the due time with the mark of its entry, entries that were left for `leave`, and the last
writes, which answer whoever asks again after a lost reply. A record that was deleted stays for a while as one that says
`gone`. A value that would make the message too long for the server is compressed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import datetime

import msgspec

from wrasse.backends.bucket.envelope import Write, Writes
from wrasse.backends.nats.kv_names import Entry
from wrasse.bounded import decoded
from wrasse.clock import from_micros, to_micros
from wrasse.ports.records import VALUE_BYTES_MAX

LEFT_MAX = 8  # entries that wait for `leave`; older ones go when they are stale


class _Head(msgspec.Struct, omit_defaults=True):
    version: str
    due: int | None = None
    entry: tuple[str, str] | None = None
    left: list[tuple[str, str]] = []
    writes: list[Write] = []
    whole: bool = False
    gone: bool = False
    packed: bool = False


_decode = msgspec.json.Decoder(_Head).decode


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as its message holds it."""

    value: bytes
    version: str
    due_at: datetime | None
    writes: Writes
    entry: Entry | None = None  # in the due index; there exactly if there is a due time
    left: tuple[Entry, ...] = ()
    gone: bool = False  # deleted: only its writes count


def pack(stored: Stored, bytes_max: int) -> bytes:
    """The bytes of the message; its value compressed if they would be more than `bytes_max`."""
    head = _Head(
        stored.version,
        None if stored.due_at is None else to_micros(stored.due_at),
        None if stored.entry is None else (stored.entry.bucket, stored.entry.mark),
        [(entry.bucket, entry.mark) for entry in stored.left],
        list(stored.writes.kept),
        stored.writes.whole,
        stored.gone,
    )
    line = msgspec.json.encode(head)
    if len(line) + 1 + len(stored.value) <= bytes_max:
        return line + b"\n" + stored.value
    head.packed = True
    return msgspec.json.encode(head) + b"\n" + zlib.compress(stored.value, 1)


def unpack(data: bytes) -> Stored:
    """The record in these bytes; ValueError if they are none of ours."""
    line, newline, value = data.partition(b"\n")
    if not newline:
        raise ValueError("no line about the record")
    head = decoded(_decode, line)
    return Stored(
        _unpacked(value) if head.packed else value,
        head.version,
        None if head.due is None else _instant(head.due),
        Writes(tuple(head.writes), head.whole),
        None if head.entry is None else Entry(*head.entry),
        tuple(Entry(*each) for each in head.left),
        head.gone,
    )


def _instant(micros: int) -> datetime:
    try:
        return from_micros(micros)
    except OverflowError:
        raise ValueError("its due time is outside of the calendar") from None


def _unpacked(value: bytes) -> bytes:
    """The value, which is never longer than a record may be, whatever the bytes say."""
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(value, VALUE_BYTES_MAX + 1)
    except zlib.error as error:
        raise ValueError("the value cannot be unpacked") from error
    if len(found) > VALUE_BYTES_MAX or not unpacking.eof:
        raise ValueError("the value is longer than a record may be")
    return found
