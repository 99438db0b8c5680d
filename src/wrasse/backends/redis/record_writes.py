"""Writes to records on Redis: one script each, so that all of it happens or nothing, entries of streams included.

A version is a number that only grows and a salt of the writer: after a failover the number may be issued again, and the
salt still tells the versions apart. Nothing here expires by itself: deleted names are remembered for the newest
GONE_MAX of a collection, so that retries are safe.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.namespaces import namespaces_key
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.stream_entries import draft_words
from wrasse.backends.redis.stream_keys import StreamKeys
from wrasse.bounded import EARLIEST
from wrasse.clock import from_micros, to_micros
from wrasse.ports.namespaces import namespace_of
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, number_in
from wrasse.ports.records import NONCES_KEPT, Collection, Record, Written, stored_name
from wrasse.ports.rules.conditional_records import RecordWrite
from wrasse.ports.status_index import IndexEntry
from wrasse.ports.streams import Draft

GONE_MAX = 10_000
DUE_LETTERS = 19
POSITION_DIGITS = 20
_POSITION_ZERO = 1 << 63
_DUE = re.compile(r"[01]\d{18}", re.ASCII).fullmatch
_BEFORE_1970 = 10**18
_NO_VERSION = 1 << 53  # above every number: a version that was never issued


class RecordWriter:
    """Writes the records of one collection."""

    def __init__(self, client: RedisClient, collection: Collection) -> None:
        root = f"{client.options.root}:records:{collection.data}"
        self.values, self.names, self.due = root, f"{root}:names", f"{root}:due"
        self.writes, self.gone, self.meta, self.scan = f"{root}:writes", f"{root}:gone", f"{root}:meta", f"{root}:scan"
        self.status_index = f"{root}:shelves"
        self._client = client
        self._streams = StreamKeys(client.options)
        self._namespaces = namespaces_key(client.options.root)
        self._listed_as = collection.data if namespace_of(collection.data) else ""

    async def write(self, asked: RecordWrite, stored: str, fields: Sequence[bytes] | None = None) -> Written:
        """Makes one write; `stored` is the key of the values, or of a record that is a hash of its own: `fields` are
        then its names and values."""
        flat, at = fields is not None, "" if asked.at is None else asked.at or "-"
        keys = [
            self._streams.registry, stored, self.names, self.due, self.writes, self.gone, self.meta, self._namespaces,
            self.status_index,
        ]  # fmt: skip
        # A write without a nonce is never retried, and an empty nonce means none.
        args: list[Word] = [
            name_of(asked.key), at, _number(at), asked.nonce or "", secrets.token_hex(4),
            "delete" if asked.value is None else "write", b"" if asked.due_at is None else due_text(asked.due_at),
            b"" if flat else asked.value or b"", NONCES_KEPT, GONE_MAX, self._listed_as, "flat" if flat else "",
            index_entry_text(asked.index_entry), len(fields or ()), *(fields or ()),
        ]  # fmt: skip
        if asked.emit:
            self._add(asked.emit, keys, args)
        script = load("record_emit" if asked.emit else "record_write")
        micros, outcome, version = await self._client.run(script, keys, args)
        return Written(Outcome(outcome.decode()), version.decode() or None, from_micros(int(micros)))

    def _add(self, emit: Sequence[Draft], keys: list[str], args: list[Word]) -> None:
        """Adds the drafts, by stream. All keys of a root share a slot on a Cluster, those of its streams too."""
        by_subject: dict[str, list[Draft]] = {}
        for draft in emit:
            by_subject.setdefault(draft.subject, []).append(draft)
        args.append(len(by_subject))
        for subject, drafts in by_subject.items():
            of = self._streams.of(subject)
            keys += (of.log, of.facts, of.known, of.known_expiry)
            args += (subject, len(drafts))
            for draft in drafts:
                args += draft_words(draft)


def name_of(key: str) -> bytes:
    """The name a record is stored under."""
    return stored_name(key).encode()


def due_text(instant: datetime) -> bytes:
    """A moment in 19 digits whose byte order is that of time."""
    return _due_digits(to_micros(instant))


def _due_digits(micros: int) -> bytes:
    return b"1%018d" % micros if micros >= 0 else b"0%018d" % (_BEFORE_1970 + micros)


def index_entry_text(index_entry: IndexEntry | None) -> bytes:
    """An index entry in bytes whose order is that of statuses and positions; empty for none."""
    return (
        b""
        if index_entry is None
        else b"%b %0*d" % (index_entry.status.encode(), POSITION_DIGITS, index_entry.position + _POSITION_ZERO)
    )


def position_in(text: bytes) -> int:
    """The position in a text of `index_entry_text`."""
    return int(text[-POSITION_DIGITS:]) - _POSITION_ZERO


def due_instant(due: str) -> datetime | None:
    """The moment in a text of `due_text`; None if nothing is due, or another program wrote it."""
    if _DUE(due) is None:
        return None
    return from_micros(int(due[1:]) - (0 if due[0] == "1" else _BEFORE_1970))


def due_cursor(record: Record) -> str:
    """The cursor of a listing of due records after this one."""
    if record.due_at is None:
        raise ValueError("a record in the due index without a due time")
    return f"{to_micros(record.due_at)}:{stored_name(record.key)}"


def page_bounds(prefix: str, after: str | None) -> tuple[bytes, bytes]:
    """The bounds of a listing by name, for ZRANGEBYLEX."""
    start = name_of(prefix)
    lower = b"(" + after.encode() if after is not None and after.encode() >= start else b"[" + start
    # No byte of UTF-8 is 0xff, so the last one can always be incremented.
    return lower, b"(" + start[:-1] + bytes([start[-1] + 1]) if start else b"+"


def due_bounds(before: datetime | None, after: str | None) -> tuple[bytes, bytes]:
    """The bounds of a listing by due time; no upper one where it is the server's clock."""
    lower = b"[" + due_text(EARLIEST) if after is None else b"(" + _moment(after)
    return lower, b"" if before is None else b"(" + due_text(before) + b"\xff"


def records_page(found: tuple[Record, ...], cursors: Iterable[str], micros: bytes, more: bytes) -> Page[Record]:
    """A page from a script's answer."""
    if more == b"1" and not found:
        raise ValueError("an empty page that is not the last")
    return Page(found, tuple(cursors), from_micros(int(micros)), more == b"1")


def _number(at: str) -> int:
    number = at.partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < 16 else _NO_VERSION


def _moment(cursor: str) -> bytes:
    due, colon, name = cursor.partition(":")
    micros = number_in(cursor, due if colon else "")
    return _due_digits(min(max(micros, -_BEFORE_1970), _BEFORE_1970 - 1)) + name.encode(errors="surrogatepass")
