"""Names in JetStream: one reversible mapping.

A subject keeps its name, behind the prefix. Its stream is named by it with `-` for a dot and `=2D` (hexadecimal) for
every byte that is no letter, digit or `_`: `gbe.events.audit` is kept in `gbe-events-audit`. A name that would be too
long for the server is shortened to a hash; the subject is in the stream's configuration. What we note beside the
long for the server is shortened to a hash; the subject is in the stream's configuration. Notes of wrasse are kept in
one more stream, `<root>_books`: the mark of every group that reads by cursor, and what a stream may hold.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from wrasse.backends.nats.options import NatsOptions
from wrasse.ports.rules.subjects import matches

_NAME_MAX = 200  # of 255 that the server allows
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")


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
