"""Records on Redis: a hash of values, two sorted sets that order them by name and by due time, and each name's newest
writes. Every write is one script, so that all of it happens or nothing, entries of streams included.

A version is a number that only grows and a salt of the writer: after a failover the number may be issued again, and the
salt still tells the versions apart. Nothing here expires by itself: deleted names are remembered for the newest
GONE_MAX of a collection, so that retries are safe.

Flat records are hashes of their own, `<data>:<key>` with one field for each key of a JSON object, so that programs
without wrasse can read and write them: the task hash of the seed. Indexes and the newest writes are stored separately,
below the root. The version of a flat record names our newest write and the digest of its fields, which every script
computes anew: a record that another program changed has a version that was never issued, so no conditional write of
ours overwrites it. A put replaces the whole record, expiry included.

Namespaces are the members of a sorted set that every write of a new key adds its collection to.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.keys import StreamKeys, literal_glob
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.streams import draft_words
from wrasse.bounded import EARLIEST
from wrasse.clock import from_micros, to_micros
from wrasse.errors import UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit, number_in
from wrasse.ports.records import (
    META,
    NONCES_KEPT,
    Collection,
    ForeignScan,
    IndexedRecords,
    IndexEntry,
    Record,
    SharedRecords,
    StatusRange,
    Written,
    check_record,
    index_cursor,
    key_of,
    namespace_of,
    read_cursor,
    stored_name,
)
from wrasse.ports.rules.conditional_records import ConditionalRecords, RecordWrite
from wrasse.ports.streams import Draft

GONE_MAX = 10_000
DUE_LETTERS = 19
POSITION_DIGITS = 20
_POSITION_ZERO = 1 << 63
_DUE = re.compile(r"[01]\d{18}", re.ASCII).fullmatch
_BEFORE_1970 = 10**18
_NO_VERSION = 1 << 53  # above every number: a version that was never issued
PAGE_MAX = 10_000
PAGE_BYTES_MAX = 32 << 20  # values in one page, unless a single one is longer
FIELDS_MAX = 1_000
FLAT_PAGE_MAX = 1_000
FLAT_PAGE_BYTES_MAX = 8 << 20
_START = b"0"
_decode = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder(order="sorted").encode


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
        script = load("record_writes.emit" if asked.emit else "record_writes.write")
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
    if index_entry is None:
        return b""
    return b"%b %0*d" % (index_entry.status.encode(), POSITION_DIGITS, index_entry.position + _POSITION_ZERO)


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


@reads_replies
class RedisRecords(ConditionalRecords):
    """One collection of records."""

    emits = True

    def __init__(self, client: RedisClient, collection: Collection) -> None:
        self._client = client
        self._writer = RecordWriter(client, collection)

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        name = name_of(key)
        stored = await self._client.ask("HGET", self._writer.values, name)
        return None if stored is None else _record(name, stored)

    async def write(self, asked: RecordWrite) -> Written:
        return await self._writer.write(asked, self._writer.values)

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        bounds = page_bounds(prefix, after)
        return await self._page(self._writer.names, bounds, limit, 0, lambda record: stored_name(record.key))

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        return await self._page(self._writer.due, due_bounds(before, after), limit, DUE_LETTERS, due_cursor)

    async def _page(
        self, index: str, bounds: tuple[bytes, bytes], limit: int, letters: int, cursor: Callable[[Record], str]
    ) -> Page[Record]:
        check_limit(limit, "records")
        args = (*bounds, min(limit, PAGE_MAX), PAGE_BYTES_MAX, letters)
        micros, more, *rows = await self._client.run(load("records.page"), (self._writer.values, index), args)
        pairs = zip(rows[::2], rows[1::2], strict=True)
        found = tuple(_record(member[letters:], stored, member[:letters]) for member, stored in pairs)
        return records_page(found, map(cursor, found), micros, more)


def _record(name: bytes, stored: bytes, listed: bytes = b"") -> Record:
    """A record of any bytes: the reader of its value reports an invalid one. `listed`: the due time by the index."""
    header, _, value = stored.partition(b"\n")
    version, _, due = header.decode(errors="replace").partition(" ")
    return Record(key_of(name.decode(errors="replace")), value, version, due_instant(listed.decode() or due))


@reads_replies
class RedisFlatRecords(ConditionalRecords):
    """One collection of records, each a hash."""

    emits = True

    def __init__(self, client: RedisClient, collection: Collection) -> None:
        self._client = client
        self._writer = RecordWriter(client, collection)
        self._prefix = f"{client.options.streams_prefix}{collection.data}:"

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        name = name_of(key)
        keys = (self._hash(key), self._writer.writes, self._writer.meta)
        found = await self._client.run(load("flat_records.get"), keys, (name,))
        return _flat_record(name, *found) if found else None

    async def write(self, asked: RecordWrite) -> Written:
        fields = [] if asked.value is None else _fields(asked.key, asked.value)
        return await self._writer.write(asked, self._hash(asked.key), fields)

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        bounds = page_bounds(prefix, after)
        return await self._page(self._writer.names, bounds, limit, 0, lambda record, _: stored_name(record.key))

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        bounds = due_bounds(before, after)
        return await self._page(self._writer.due, bounds, limit, DUE_LETTERS, lambda record, _: due_cursor(record))

    @property
    def status_index(self) -> IndexedRecords:
        return self

    @property
    def shared(self) -> SharedRecords:
        return self

    async def reindex(self, placed: Sequence[tuple[Record, IndexEntry | None]]) -> int:
        """See IndexedRecords."""
        if not placed:
            return 0
        own = self._writer
        keys = [own.status_index, own.writes, own.meta, *(self._hash(each.key) for each, _ in placed)]
        words: list[Word] = []
        for each, index_entry in placed:
            words += (name_of(each.key), each.version, index_entry_text(index_entry))
        return int(await self._client.run(load("flat_records.index_status"), keys, words))

    async def status_counts(self, spans: Sequence[StatusRange]) -> tuple[tuple[int, ...], datetime]:
        """See IndexedRecords."""
        bounds = [word for each in spans for word in _status_bounds(each.status, each.upto)]
        micros, *counts = await self._client.run(load("flat_records.counts"), (self._writer.status_index,), bounds)
        return tuple(counts), from_micros(int(micros))

    async def status_page(self, status: str, after: str | None, limit: int, *, newest: bool = False) -> Page[Record]:
        """See IndexedRecords."""
        lower, upper = _status_bounds(status)
        if after is not None:
            position, name = read_cursor(after)
            place = b"(" + index_entry_text(IndexEntry(status, position)) + name.encode()
            lower, upper = (lower, place) if newest else (place, upper)
        letters = len(status.encode()) + 1 + POSITION_DIGITS
        return await self._page(
            self._writer.status_index, (lower, upper), limit, letters, _status_cursor, newest=newest
        )

    async def scan(self, after: str | None, limit: int, *, dry: bool) -> ForeignScan:
        """See SharedRecords. The cursor of the scan is kept in Redis, so that it outlives the process."""
        check_limit(limit, "records")
        cursor: Word = after if after is not None else await self._client.ask("GET", self._writer.scan) or _START
        glob = literal_glob(self._prefix) + "*"
        scanned, hashes = await self._client.ask("SCAN", cursor, "MATCH", glob, "COUNT", limit, "TYPE", "hash")
        named = [(key, key[len(self._prefix.encode()) :]) for key in hashes]
        kept = [(key, name) for key, name in named if _is_name(name)]
        keys: list[str | bytes] = [self._writer.writes, self._writer.meta, *(key for key, _ in kept)]
        micros, *rows = await self._client.run(load("flat_records.changed"), keys, [name for _, name in kept])
        if not dry:
            await self._client.ask("SET", self._writer.scan, scanned)
        return ForeignScan(_records(rows), from_micros(int(micros)), scanned.decode(), scanned == _START)

    async def note(self, key: str, *, at: str, due_at: datetime | None) -> Outcome:
        """See SharedRecords."""
        own = self._writer
        keys = (self._hash(key), own.names, own.due, own.writes, own.gone, own.meta)
        due = b"" if due_at is None else due_text(due_at)
        answer = await self._client.run(load("flat_records.index_due"), keys, (name_of(key), at, due))
        return Outcome(answer.decode())

    def _hash(self, key: str) -> str:
        return self._prefix + stored_name(key)

    async def _page(
        self,
        index: str,
        bounds: tuple[bytes, bytes],
        limit: int,
        letters: int,
        cursor: Callable[[Record, bytes], str],
        *,
        newest: bool = False,
    ) -> Page[Record]:
        check_limit(limit, "records")
        own = self._writer
        keys = (index, own.names, own.due, own.writes, own.gone, own.meta, own.status_index)
        args = (*bounds, min(limit, FLAT_PAGE_MAX), FLAT_PAGE_BYTES_MAX, letters, self._prefix, "1" if newest else "")
        micros, more, *rows = await self._client.run(load("flat_records.page"), keys, args)
        found = _records(rows, 5)
        cursors = (cursor(record, before) for record, before in zip(found, rows[4::5], strict=True))
        return records_page(found, cursors, micros, more)


def _fields(key: str, value: bytes) -> list[bytes]:
    """The names and values of a record, in turn."""
    try:
        fields = _decode(value)
    except msgspec.MsgspecError as why:
        raise UsageError(
            f"the record {key!r} is not a JSON object of texts, as records of this collection are",
            do="write every value as a text",
        ) from why
    if not 1 <= len(fields) <= FIELDS_MAX:
        raise UsageError(f"the record {key!r} has {len(fields)} fields", do=f"use 1 to {FIELDS_MAX}")
    return [word.encode() for field in fields.items() for word in field]


def _status_bounds(status: str, upto: int | None = None) -> tuple[bytes, bytes]:
    """The bounds of a status, or of its part up to a position. No byte of a name is 255."""
    start = status.encode() + b" "
    return b"[" + start, b"(" + (start if upto is None else index_entry_text(IndexEntry(status, upto))) + b"\xff"


def _status_cursor(record: Record, before: bytes) -> str:
    return index_cursor(position_in(before), stored_name(record.key))


def _records(rows: Sequence[Any], words: int = 4) -> tuple[Record, ...]:
    return tuple(_flat_record(*rows[at : at + 4]) for at in range(0, len(rows), words))


def _flat_record(name: bytes, version: bytes, due: bytes, words: Sequence[bytes]) -> Record:
    # Another program may have written bytes that are not UTF-8: they are shown, so that people can find them.
    texts = [word.decode("utf-8", "backslashreplace") for word in words]
    value = _encode(dict(zip(texts[::2], texts[1::2], strict=True)))
    key, at, until = (each.decode(errors="replace") for each in (name, version, due))
    return Record(key_of(key), value, at, due_instant(until))


def _is_name(name: bytes) -> bool:
    """Whether a record may have this name. A key with another name is not a record."""
    try:
        text = name.decode()
        check_record(key_of(text), b"")
    except (UnicodeDecodeError, UsageError):
        return False
    return stored_name(key_of(text)) == text


def namespaces_key(root: str) -> str:
    """The sorted set of the collections of keys."""
    return f"{root}:namespaces"


@reads_replies
class RedisNamespaces:
    """See Namespaces."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._key = namespaces_key(client.options.root)

    async def page(self, after: str | None, limit: int) -> Page[str]:
        lower, found = b"" if after is None else f"{after}{META}".encode(), list[str]()
        page_loop, more = PageLoop(self._client.options.where, f"ZRANGEBYLEX {self._key}"), True
        while more and len(found) <= limit:
            page_loop.turn(lower)
            start = b"(" + lower if lower else b"-"
            asked = ("ZRANGEBYLEX", self._key, start, "+", "LIMIT", 0, limit + 1), ("TIME",)
            members, time = await self._client.ask_many(asked)
            more = len(members) > limit
            if any(each <= before for before, each in pairwise((lower, *members))):
                # Another program gave members scores, which puts them out of order: the whole set is sorted here.
                members, more = sorted(await self._client.ask("ZRANGE", self._key, 0, -1)), False
            found += [name for member in members if member > lower and (name := _namespace(member))]
            lower = members[-1] if members else lower
        return Page.of(found, limit, from_micros(self._client.time_in(time)), str)


def _namespace(member: bytes) -> str | None:
    try:
        return namespace_of(member.decode())
    except UnicodeDecodeError:
        return None
