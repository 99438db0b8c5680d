"""Streams on SQLite: every change is one transaction, every read one snapshot of the database.

Of a chunk SQLite does the joining: one text of ids, one of lengths, one blob of bodies, whatever their number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeVar

import apsw
import msgspec

from wrasse.backends.sqlite import entries
from wrasse.backends.sqlite.connection import SqliteReader, SqliteWriter
from wrasse.backends.sqlite.entries import Range, decode_fields
from wrasse.backends.sqlite.rows import in_calendar
from wrasse.backends.sqlite.write_transaction import text
from wrasse.clock import Clock, from_micros, to_micros
from wrasse.ports.page import Page, check_limit
from wrasse.ports.rules.subjects import SUBJECT_BYTES_MAX, check_pattern, check_subject, fixed_part, is_subject, matches
from wrasse.ports.streams import (
    SEQ_MAX,
    Draft,
    Entry,
    EntryChunk,
    EntryId,
    GroupState,
    StreamState,
    Trimmed,
    check_drafts,
)

T = TypeVar("T")
_COLUMNS = """
    SELECT group_concat(ms || '-' || seq, ' '), json_group_array(length(body)), total(fields IS NOT NULL),
      CAST(group_concat(body, '') AS BLOB)
    FROM (SELECT ms, seq, fields, body FROM entries WHERE stream = ? AND (ms, seq) > (?, ?) AND (ms, seq) <= (?, ?)
      ORDER BY ms, seq LIMIT ?)
"""
_BESIDE = """
    SELECT ms || '-' || seq, fields FROM entries
    WHERE stream = ? AND (ms, seq) > (?, ?) AND (ms, seq) <= (?, ?) AND fields IS NOT NULL
"""
_decode_lengths = msgspec.json.Decoder(list[int]).decode
PAGE_MAX = 10_000
_log = logging.getLogger("wrasse.streams")
_LAST_ID = EntryId(SEQ_MAX, SEQ_MAX)
_FIRST_ENTRY = "SELECT ms, seq FROM entries WHERE stream = ? AND (ms, seq) > (?, ?) ORDER BY ms, seq LIMIT 1"
_GROUP_STATES = """
    SELECT CAST(json_group_array(json_array(g.name, g.delivered_ms, g.delivered_seq, p.ms, p.seq,
      (SELECT count(*) FROM pending WHERE entry_group = g.id),
      (SELECT count(*) FROM consumers WHERE entry_group = g.id))) AS BLOB)
    FROM entry_groups g LEFT JOIN pending p ON p.entry_group = g.id
      AND p.seq = (SELECT min(seq) FROM pending WHERE entry_group = g.id)
    WHERE g.stream = ?
"""


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """Entries in SQLite's format: decoded by the caller, after the transaction."""

    ids: str
    lengths: str
    bodies: bytes
    beside: Mapping[str, bytes]  # by id, fields as they are stored


def load_columns(db: apsw.Connection, stream: int, found: Range) -> EntryColumns:
    """The entries of a range."""
    bounds = (stream, found.after.ms, found.after.seq, found.last.ms, found.last.seq)
    ids, lengths, beside, bodies = db.execute(_COLUMNS, (*bounds, found.count)).get
    return EntryColumns(ids or "", lengths, bodies or b"", dict(db.execute(_BESIDE, bounds)) if beside else {})


def decode_columns(loaded: EntryColumns) -> tuple[Sequence[bytes], Sequence[bytes], Mapping[int, Mapping[str, bytes]]]:
    """Ids, bodies, and by position the fields beside them."""
    blob, ids, lengths = loaded.bodies, loaded.ids.encode().split(), _decode_lengths(loaded.lengths)
    ends = [0, *accumulate(lengths)]
    assert ends[-1] == len(blob), "bodies that were joined keep their lengths"
    bodies = [blob[start:end] for start, end in pairwise(ends)]
    if not loaded.beside:
        return ids, bodies, {}
    places = {id.decode(): place for place, id in enumerate(ids)}
    return ids, bodies, {places[id]: decode_fields(fields) for id, fields in loaded.beside.items()}


class SqliteStreams:
    """The streams of one database."""

    def __init__(self, writer: SqliteWriter, reader: SqliteReader, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    @property
    def dedup_window(self) -> timedelta:
        return entries.DEDUP_WINDOW

    async def append(self, drafts: Sequence[Draft]) -> Sequence[EntryId]:
        check_drafts(drafts)
        if not drafts:
            return ()
        subject = drafts[0].subject
        if all(not draft.key and draft.fields is None and draft.subject == subject for draft in drafts):
            # The common case. Work that can be done here is not done in the writer, which others wait for.
            bodies = [draft.body for draft in drafts]
            run = partial(entries.append_plain, subject=subject, bodies=bodies, size=sum(map(len, bodies)))
            ms, first = await self._writer.do(run, len(drafts))
            return tuple([EntryId(ms, seq) for seq in range(first, first + len(drafts))])
        return tuple(await self._writer.do(partial(entries.append, drafts=drafts), len(drafts)))

    async def read(self, subject: str, after: EntryId, limit: int) -> Page[Entry]:
        loaded = await self._loaded(subject, after, limit, partial(entries.load, subject=subject))
        if loaded is None:
            return Page((), (), self._clock.now(), False)
        shown = tuple(entries.decode_entries(loaded[0]))
        return Page(shown, tuple(str(entry.id) for entry in shown), self._clock.now(), loaded[1] and bool(shown))

    async def chunk(self, subject: str, after: EntryId, limit: int) -> EntryChunk:
        """Entries in columns, for `Streams.chunk`."""
        loaded = await self._loaded(subject, after, limit, load_columns)
        if loaded is None:
            return EntryChunk(subject, (), (), {}, self._clock.now(), False)
        ids, bodies, beside = decode_columns(loaded[0])
        return EntryChunk(subject, ids, bodies, beside, self._clock.now(), loaded[1] and bool(ids))

    async def _loaded(
        self, subject: str, after: EntryId, limit: int, load: Callable[[apsw.Connection, int, Range], T]
    ) -> tuple[T, bool] | None:
        """The entries that follow, in the format of `load`, and whether there are more; None without a stream."""
        check_subject(subject)
        most = check_limit(limit, "entries", PAGE_MAX)

        def run(db: apsw.Connection) -> tuple[T, bool] | None:
            stream = entries.head(db, subject)
            if stream is None:
                return None
            found = entries.fitting(db, stream.id, entries.measure(db, stream.id, after, _LAST_ID, most))
            return load(db, stream.id, found), found.last < stream.last

        return await self._reader.do(run)

    async def info(self, subject: str) -> StreamState | None:
        check_subject(subject)

        def run(db: apsw.Connection) -> StreamState | None:
            stream = entries.head(db, subject)
            if stream is None:
                return None
            first = db.execute(_FIRST_ENTRY, (stream.id, 0, 0)).get
            return StreamState(
                subject,
                length=stream.length,
                bytes=stream.bytes,
                appended=stream.last.seq,
                first=EntryId(*first) if first else None,
                last=stream.last if stream.last.seq else None,
                groups=tuple(_groups(db, stream, to_micros(self._clock.now()))),
                at=self._clock.now(),
            )

        return await self._reader.do(run)

    async def subjects(self, pattern: str, after: str | None, limit: int) -> Page[str]:
        check_pattern(pattern)
        check_limit(limit, "streams")
        start = fixed_part(pattern)
        bounds = "subject >= ? AND subject < ?", [start, f"{start}\U0010ffff"]
        if after is not None and after >= start:
            bounds = "subject > ? AND subject < ?", [after, f"{start}\U0010ffff"]

        def run(db: apsw.Connection) -> list[str]:
            sql = f"SELECT CAST(subject AS BLOB) FROM streams WHERE {bounds[0]} ORDER BY subject"
            found: list[str] = []
            for (stored,) in db.execute(sql, bounds[1]):
                subject = text(stored)
                if subject.encode() != stored or not is_subject(subject):
                    odd = stored[:SUBJECT_BYTES_MAX]
                    _log.error("a row of the table streams is skipped: %r is not a subject", odd)
                elif matches(pattern, subject):
                    found.append(subject)
                    if len(found) > min(limit, PAGE_MAX):
                        break
            return found

        found = await self._reader.do(run)
        shown = tuple(found[: min(limit, PAGE_MAX)])
        return Page(shown, shown, self._clock.now(), len(found) > len(shown))

    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        check_subject(subject)
        check_limit(limit, "entries")
        limits = entries.TrimLimits(age, below, tuple(protect), min(limit, PAGE_MAX))
        return await self._writer.do(partial(entries.trim, subject=subject, limits=limits), limits.limit)


class _GroupRow(msgspec.Struct, frozen=True, array_like=True):
    name: str
    ms: int
    seq: int
    pending_ms: int | None  # of the lowest that is pending
    pending_seq: int | None
    pending: int
    consumers: int


_decode_groups = msgspec.json.Decoder(list[_GroupRow]).decode


def _groups(db: apsw.Connection, stream: entries.Head, now: int) -> Iterator[GroupState]:
    for row in sorted(_decode_groups(text(db.execute(_GROUP_STATES, (stream.id,)).get)), key=lambda row: row.name):
        delivered, oldest = EntryId(row.ms, row.seq), None
        if row.pending_ms is not None and row.pending_seq is not None:
            oldest = EntryId(row.pending_ms, row.pending_seq)
        # Numbers have no gap, so the number of the first undelivered entry gives the count.
        following = db.execute(_FIRST_ENTRY, (stream.id, row.ms, row.seq)).get
        yield GroupState(
            row.name,
            floor=delivered if oldest is None else oldest.previous,
            delivered=delivered,
            pending=row.pending,
            oldest_pending_at=None if oldest is None else from_micros(in_calendar(oldest.ms * 1_000, now)),
            consumers=row.consumers,
            lag=stream.last.seq - following[1] + 1 if following else 0,
        )
