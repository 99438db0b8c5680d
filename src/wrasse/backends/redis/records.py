"""Records on Redis: a hash of values, two sorted sets that order them by name and by due time, and each name's newest
writes. Writes are in `record_writes.py`; records that are hashes of their own are in `flat_records.py`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.record_writes import (
    DUE_LETTERS,
    GONE_MAX as GONE_MAX,
    RecordWriter,
    due_bounds,
    due_cursor,
    due_instant,
    name_of,
    page_bounds,
    records_page,
)
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.ports.page import Page, check_limit
from wrasse.ports.records import Collection, Record, Written, key_of, stored_name
from wrasse.ports.rules.conditional_records import ConditionalRecords, RecordWrite

PAGE_MAX = 10_000
PAGE_BYTES_MAX = 32 << 20  # values in one page, unless a single one is longer


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
        micros, more, *rows = await self._client.run(load("record_page"), (self._writer.values, index), args)
        pairs = zip(rows[::2], rows[1::2], strict=True)
        found = tuple(_record(member[letters:], stored, member[:letters]) for member, stored in pairs)
        return records_page(found, map(cursor, found), micros, more)


def _record(name: bytes, stored: bytes, listed: bytes = b"") -> Record:
    """A record of any bytes: the reader of its value reports an invalid one. `listed`: the due time by the index."""
    header, _, value = stored.partition(b"\n")
    version, _, due = header.decode(errors="replace").partition(" ")
    return Record(key_of(name.decode(errors="replace")), value, version, due_instant(listed.decode() or due))
