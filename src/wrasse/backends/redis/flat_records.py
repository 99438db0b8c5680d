"""Records that are hashes of their own, `<data>:<key>` with one field for each key of a JSON object, so that programs
without wrasse can read and write them: the task hash of the seed.

Indexes and the newest writes are stored separately, below the root. The version of a record names our newest write and
the digest of its fields, which every script computes anew: a record that another program changed has a version that was
never issued, so no conditional write of ours overwrites it. A put replaces the whole record, expiry included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.keys import literal_glob
from wrasse.backends.redis.record_writes import (
    DUE_LETTERS,
    POSITION_DIGITS,
    RecordWriter,
    due_bounds,
    due_cursor,
    due_instant,
    due_text,
    index_entry_text,
    name_of,
    page_bounds,
    position_in,
    records_page,
)
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.clock import from_micros
from wrasse.errors import UsageError
from wrasse.ports.foreign_records import ForeignScan, SharedRecords
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit
from wrasse.ports.records import Collection, Record, Written, check_record, key_of, stored_name
from wrasse.ports.rules.conditional_records import ConditionalRecords, RecordWrite
from wrasse.ports.status_index import IndexedRecords, IndexEntry, StatusRange, index_cursor, read_cursor

FIELDS_MAX = 1_000
PAGE_MAX = 1_000
PAGE_BYTES_MAX = 8 << 20
_START = b"0"
_decode = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder(order="sorted").encode


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
        found = await self._client.run(load("flat_get"), keys, (name,))
        return _record(name, *found) if found else None

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
        """See ShelvedRecords."""
        if not placed:
            return 0
        own = self._writer
        keys: list[str | bytes] = [
            own.status_index,
            own.writes,
            own.meta,
            *(self._hash(each.key) for each, _ in placed),
        ]
        words = [(name_of(each.key), each.version, index_entry_text(index_entry)) for each, index_entry in placed]
        return int(await self._client.run(load("flat_shelve"), keys, [word for each in words for word in each]))

    async def status_counts(self, spans: Sequence[StatusRange]) -> tuple[tuple[int, ...], datetime]:
        """See ShelvedRecords."""
        bounds = [word for each in spans for word in _status_bounds(each.status, each.upto)]
        micros, *counts = await self._client.run(load("flat_counts"), (self._writer.status_index,), bounds)
        return tuple(counts), from_micros(int(micros))

    async def status_page(self, status: str, after: str | None, limit: int, *, newest: bool = False) -> Page[Record]:
        """See ShelvedRecords."""
        lower, upper = _status_bounds(status)
        if after is not None:
            position, name = read_cursor(after)
            place = b"(" + index_entry_text(IndexEntry(status, position)) + name.encode()
            lower, upper = (lower, place) if newest else (place, upper)
        letters = len(status.encode()) + 1 + POSITION_DIGITS
        return await self._page(
            self._writer.status_index, (lower, upper), limit, letters, _status_cursor, newest=newest
        )

    async def look(self, after: str | None, limit: int, *, dry: bool) -> ForeignScan:
        """See SharedRecords. The cursor of the scan is kept in Redis, so that it outlives the process."""
        check_limit(limit, "records")
        cursor: Word = after if after is not None else await self._client.ask("GET", self._writer.scan) or _START
        glob = literal_glob(self._prefix) + "*"
        scanned, hashes = await self._client.ask("SCAN", cursor, "MATCH", glob, "COUNT", limit, "TYPE", "hash")
        named = [(key, key[len(self._prefix.encode()) :]) for key in hashes]
        kept = [(key, name) for key, name in named if _is_name(name)]
        keys: list[str | bytes] = [self._writer.writes, self._writer.meta, *(key for key, _ in kept)]
        micros, *rows = await self._client.run(load("flat_changed"), keys, [name for _, name in kept])
        if not dry:
            await self._client.ask("SET", self._writer.scan, scanned)
        return ForeignScan(_records(rows), from_micros(int(micros)), scanned.decode(), scanned == _START)

    async def note(self, key: str, *, at: str, due_at: datetime | None) -> Outcome:
        """See SharedRecords."""
        own = self._writer
        keys = (self._hash(key), own.names, own.due, own.writes, own.gone, own.meta)
        due = b"" if due_at is None else due_text(due_at)
        answer = await self._client.run(load("flat_index"), keys, (name_of(key), at, due))
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
        args = (*bounds, min(limit, PAGE_MAX), PAGE_BYTES_MAX, letters, self._prefix, "1" if newest else "")
        micros, more, *rows = await self._client.run(load("flat_page"), keys, args)
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
    return tuple(_record(*rows[at : at + 4]) for at in range(0, len(rows), words))


def _record(name: bytes, version: bytes, due: bytes, words: Sequence[bytes]) -> Record:
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
