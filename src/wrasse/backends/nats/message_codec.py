"""JetStream messages and the entries they contain.

One header has what JetStream does not keep: `Wrasse: <ms> <number> <bytes> <name>`, the milliseconds of the entry's id,
how many entries its subject ever had, how many bytes those were, this one included, and a name by which its writer
finds it again. They are right because every append names the entry it follows. Fields beside the body are headers
`Wrasse-Field: name=value`, percent-encoded. Messages of other programs have no such header: their ids use the server's
milliseconds, and their headers are the fields beside the body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from urllib.parse import quote_from_bytes, unquote, unquote_to_bytes

import msgspec

from wrasse.backends.nats.client.connection import server_field_of
from wrasse.backends.nats.client.parser import Frame
from wrasse.bounded import in_utc
from wrasse.clock import to_micros
from wrasse.ports.streams import Entry, EntryId

_OURS = re.compile(rb"\r\nWrasse:(\d{1,15}) (\d{1,20}) (\d{1,20}) ([^\r]*)\r\n")
_FIELD = re.compile(rb"\r\nWrasse-Field:([^=\r]*)=([^\r]*)(?=\r\n)")
_HEADER = re.compile(rb"\r\n([^:\r\n]+):[ \t]*([^\r\n]*)")
_MINE = b"NATS/1.0\r\nWrasse:"
_ADDED = frozenset(
    (b"Nats-Stream", b"Nats-Subject", b"Nats-Sequence", b"Nats-Time-Stamp", b"Nats-Num-Pending", b"Nats-Last-Sequence",
     b"Nats-UpTo-Sequence")
)  # fmt: skip
_FRACTION = re.compile(r"\.\d+")


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of a stream. `ms` is for its id; `number` and `total` are 0 where another program wrote it."""

    seq: int
    ms: int
    number: int
    total: int
    header: bytes
    body: bytes

    @property
    def id(self) -> EntryId:
        """Where it is."""
        return EntryId(self.ms, self.seq)


def stored(seq: int, header: bytes, body: bytes, written: bytes = b"") -> StoredMessage:
    """A message as it was read; `written` is the server's timestamp."""
    found = _OURS.search(header) if header else None
    if found is None:
        ms = millis(written or server_field_of(header, b"Nats-Time-Stamp"))
        return StoredMessage(seq, ms, 0, 0, header, body)
    return StoredMessage(seq, int(found[1]), int(found[2]), int(found[3]), header, body)


def pulled(seq: bytes, rest: bytes, header: bytes, body: bytes) -> StoredMessage:
    """A message as a consumer delivers it; `rest` is what follows the sequence in its reply subject: a count,
    nanoseconds, what is pending; empty where it was read without a consumer."""
    if not rest:
        return stored(int(seq), header, body)
    found = _OURS.search(header) if header else None
    if found is None:
        return StoredMessage(int(seq), int(rest.split(b".")[1]) // 1_000_000, 0, 0, header, body)
    return StoredMessage(int(seq), int(found[1]), int(found[2]), int(found[3]), header, body)


def stored_of(frame: Frame) -> StoredMessage:
    """The message of a frame."""
    return pulled(frame[2], frame[3], frame[5], frame[7])


def ids_of(frames: Sequence[Frame], ms: int) -> list[bytes]:
    """Their ids, as `ms-seq`, with milliseconds that never decrease and begin at `ms` or later."""
    times = [frame[6] for frame in frames]
    # Texts of equal length sort like their bytes; where one is missing, another program wrote.
    if times and len(set(map(len, times))) == 1 and times[0] and int(times[0]) >= ms and sorted(times) == times:
        return [time + b"-" + frame[2] for time, frame in zip(times, frames, strict=True)]
    ids: list[bytes] = []
    for frame in frames:
        ms = max(ms, stored_of(frame).ms)  # the clock of the server may have stepped back
        ids.append(b"%d-%b" % (ms, frame[2]))
    return ids


def beside(frames: Sequence[Frame]) -> dict[int, Mapping[str, bytes]]:
    """The fields beside the bodies, by position."""
    headers = [frame[5] for frame in frames]
    together = b"".join(headers)
    if b"Wrasse-Field" not in together and together.count(_MINE) == len(headers) - headers.count(b""):
        return {}  # all of them ours and without fields, the common case
    fields = {place: fields_of(header) for place, header in enumerate(headers)}
    return {place: each for place, each in fields.items() if each}


def name_of(header: bytes) -> bytes:
    """The name that its writer gave it."""
    found = _OURS.search(header)
    return found[4] if found else b""


def fields_of(header: bytes) -> dict[str, bytes] | None:
    """The fields beside the body: ours, or for another program's message every header except those that the server adds
    to its answers. The values of a repeated header are joined by line breaks."""
    found: dict[str, bytes] = {}
    if header and not header.startswith(_MINE):
        for match in _HEADER.finditer(header):
            if match[1] not in _ADDED and not match[1].startswith(b"Wrasse"):
                name = match[1].decode("utf-8", "replace")
                found[name] = match[2] if name not in found else found[name] + b"\n" + match[2]
    if b"\r\nWrasse-Field:" in header:
        found |= {unquote(m[1].decode("utf-8", "replace")): unquote_to_bytes(m[2]) for m in _FIELD.finditer(header)}
    return found or None


def entry(subject: str, message: StoredMessage, ms: int) -> Entry:
    """The entry; `ms` is that of its id, never lower than the entry before."""
    return Entry(EntryId(ms, message.seq), subject, message.body, fields_of(message.header))


def written_fields(fields: Mapping[str, bytes] | None) -> bytes:
    """The headers of the fields."""
    if not fields:
        return b""
    return b"".join(
        b"Wrasse-Field:%b=%b\r\n" % (quote_from_bytes(name.encode()).encode(), quote_from_bytes(value).encode())
        for name, value in fields.items()
    )


def moment(text: str) -> datetime:
    """A timestamp of the server, which has nanoseconds."""
    shortened = _FRACTION.sub(lambda found: found[0][:7], text)
    return in_utc(datetime.fromisoformat(shortened))


def millis(text: bytes) -> int:
    """Milliseconds of a server timestamp; 0 if it cannot be read."""
    try:
        return to_micros(moment(text.decode())) // 1_000
    except ValueError:
        return 0
