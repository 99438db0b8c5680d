"""JetStream messages and the entries they contain, and the names in JetStream.

One header has what JetStream does not keep: `Wrasse: <ms> <number> <bytes> <name>`, the milliseconds of the entry's id,
how many entries its subject ever had, how many bytes those were, this one included, and a name by which its writer
finds it again. They are right because every append names the entry it follows. Fields beside the body are headers
`Wrasse-Field: name=value`, percent-encoded. Messages of other programs have no such header: their ids use the server's
milliseconds, and their headers are the fields beside the body.

Names are one reversible mapping. A subject keeps its name, behind the prefix. Its stream is named by it with `-` for a
dot and `=2D` (hexadecimal) for every byte that is no letter, digit or `_`: `gbe.events.audit` is kept in
`gbe-events-audit`. A name that would be too long for the server is shortened to a hash; the subject is in the stream's
configuration. Notes of wrasse are kept in one more stream, `<root>_books`: the mark of every group that reads by
cursor, and the newest entry and the single writer of every stream.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote_from_bytes, unquote, unquote_to_bytes

import msgspec

from wrasse.backends.nats.client.connection import server_field_of
from wrasse.backends.nats.client.transport import Frame
from wrasse.backends.nats.options import NatsOptions
from wrasse.bounded import in_utc
from wrasse.clock import to_micros
from wrasse.ports.rules.subjects import matches
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
_NAME_MAX = 200  # of 255 that the server allows
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")


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


@dataclass(frozen=True, slots=True)
class NatsNames:
    """The names of one backend."""

    root: str
    prefix: str = ""
    patterns: tuple[str, ...] = ()  # each kept in one stream with all its subjects
    replicas: int = 1
    storage: str = "file"

    @classmethod
    def of(cls, options: NatsOptions, patterns: tuple[str, ...] = ()) -> NatsNames:
        """The names for these options."""
        return cls(options.root, options.streams_prefix, patterns, options.replicas, options.storage)

    @property
    def books(self) -> str:
        """The stream of the notes."""
        return f"{self.root}_books"

    @property
    def books_subjects(self) -> str:
        """The filter of all notes."""
        return f"{self.root}._books.>"

    def subject_note_subject(self, subject: str) -> str:
        """The subject of the note about one stream."""
        return f"{self.root}._books.lane.{token(subject)}"

    def mark(self, subject: str, group: str) -> str:
        """The mark of one group."""
        return f"{self.root}._books.mark.{token(subject)}.{token(group)}"

    def marks(self, subject: str) -> str:
        """The marks of all groups of one stream."""
        return f"{self.root}._books.mark.{token(subject)}.*"

    def ledger(self, subject: str, group: str) -> str:
        """The ledger in which earlier versions kept a group's state."""
        return f"{self.root}._books.group.{token(subject)}.{token(group)}"

    def stored(self, subject: str) -> str:
        """The subject's name in JetStream."""
        return f"{self.prefix}{subject}"

    def subject(self, stored: str) -> str | None:
        """The subject of a JetStream subject; None if it is not ours."""
        return stored[len(self.prefix) :] if stored.startswith(self.prefix) else None

    def reserved(self, stored: str) -> bool:
        """Whether these subjects belong to the server, a bucket or the books of some root: no streams for entries."""
        return stored.startswith("$") or stored.split(".")[1:2] == ["_books"]

    def home(self, subject: str) -> tuple[str, str]:
        """The stream that is made for this subject, and the subjects it contains."""
        pattern = next((each for each in self.patterns if matches(each, subject)), subject)
        return stream_name(self.stored(pattern)), self.stored(pattern)


def token(text: str) -> str:
    """One token of a subject, for any text; `text_of` reads it back."""
    return "".join(
        chr(byte) if byte in _PLAIN else "-" if byte == 0x2E else f"={byte:02X}"
        for byte in text.encode("utf-8", "surrogatepass")
    )


def text_of(written: str) -> str:
    """What `token` wrote."""
    out, at = bytearray(), 0
    while at < len(written):
        if written[at] == "=":
            out.append(int(written[at + 1 : at + 3], 16))
            at += 3
        else:
            out.append(0x2E if written[at] == "-" else ord(written[at]))
            at += 1
    return out.decode("utf-8", "surrogatepass")


def stream_name(stored: str) -> str:
    """The name of the stream for a subject or pattern."""
    name = token(stored)
    return name if len(name) <= _NAME_MAX else f"{name[:120]}={hashlib.sha256(stored.encode()).hexdigest()[:40]}"
