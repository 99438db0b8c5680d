"""Subjects of records, due entries and namespaces in a JetStream key-value bucket. Pure.

    $KV.<root>.<collection>.r.<key>                       a record
    $KV.<root>.<collection>.due.<bucket>.<key>.<mark>     its entry in this due bucket; the record names the mark
    $KV.<root>.<collection>.buckets.<bucket>              this due bucket has, or had, entries
    $KV.<root>.ns.<namespace>                             this namespace has, or had, keys

A bucket allows letters, digits and `-/_=.` only, and a dot ends a token: every other byte of UTF-8 is written as `=`
and two hexadecimal digits, so that any key can be decoded. The server does not sort: listings are sorted by
`stored_name` here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OTHERS = re.compile(rb"[^A-Za-z0-9_/-]")
_ESCAPED = re.compile(rb"=([0-9A-F]{2})")
_TOKEN = re.compile(r"(?:[A-Za-z0-9_/-]|=[0-9A-F]{2})+")


def token(text: str) -> str:
    """The text as one token of a subject."""
    return _OTHERS.sub(lambda found: b"=%02X" % found[0][0], text.encode()).decode()


def text_of(written: str) -> str | None:
    """The inverse of `token`; None for a token it never writes, such as another program's key."""
    if not _TOKEN.fullmatch(written):
        return None
    try:
        return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), written.encode()).decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class DueEntry:
    """A record's entry in a due bucket. No two entries have the same mark, so that one is never mistaken for
    another."""

    due_bucket: str
    mark: str


class KvNames:
    """The subjects of one collection."""

    def __init__(self, root: str, collection: str) -> None:
        self._start = f"$KV.{root}.{token(collection)}."

    @property
    def records(self) -> str:
        """The filter of all records."""
        return f"{self._start}r.*"

    @property
    def buckets(self) -> str:
        """The filter of all due buckets."""
        return f"{self._start}buckets.*"

    def record(self, key: str) -> str:
        """The record of a key."""
        return f"{self._start}r.{token(key)}"

    def due_bucket(self, due_bucket: str) -> str:
        """The message of a due bucket."""
        return f"{self._start}buckets.{due_bucket}"

    def entry(self, key: str, entry: DueEntry) -> str:
        """An entry of a key."""
        return f"{self._start}due.{entry.due_bucket}.{token(key)}.{entry.mark}"

    def entries(self, bucket: str, key: str | None = None) -> str:
        """The filter of all entries of a due bucket, or of one key in it."""
        return f"{self._start}due.{bucket}.{'*' if key is None else token(key)}.*"

    def key(self, subject: str) -> str | None:
        """The key of a record's subject."""
        return text_of(subject.removeprefix(f"{self._start}r."))

    def bucket_of(self, subject: str) -> str:
        """The due bucket of its subject."""
        return subject.rpartition(".")[2]

    def entry_of(self, subject: str) -> tuple[str, DueEntry] | None:
        """The key and the entry of an entry's subject."""
        bucket, _, rest = subject.removeprefix(f"{self._start}due.").partition(".")
        name, _, mark = rest.partition(".")
        key = text_of(name)
        return None if key is None else (key, DueEntry(bucket, mark))


def namespace_subject(root: str, name: str) -> str:
    """The message of a namespace; the name `*` is the filter of all."""
    return f"$KV.{root}.ns.{name if name == '*' else token(name)}"
