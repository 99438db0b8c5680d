"""Records on SQLite. A name keeps its last writes, also after the record is deleted, so that a retry is safe.

`writes` has the newest NONCES_KEPT writes to a name, each with its nonce and the version it made; `since` is the newest
version that was dropped. So for a write at a version not older than `since` it is certain whether it was made. Deleted
names are remembered for the newest GONE_MAX of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import apsw
import msgspec

from wrasse.backends.sqlite.connection import SqliteReader, SqliteWriter
from wrasse.backends.sqlite.entries import append
from wrasse.backends.sqlite.rows import in_calendar, instant, micros
from wrasse.backends.sqlite.write_transaction import WriteTransaction, text
from wrasse.clock import Clock, from_micros, to_micros
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit
from wrasse.ports.records import (
    NONCES_KEPT,
    IndexedRecords,
    IndexEntry,
    Record,
    StatusRange,
    Written,
    index_cursor,
    key_of,
    namespace_of,
    read_cursor,
    stored_name,
)
from wrasse.ports.rules.conditional_records import ConditionalRecords, RecordWrite

GONE_MAX = 10_000
PAGE_MAX = 10_000
PAGE_BYTES_MAX = 32 << 20  # values in one page, unless a single one is longer
_POSITION_MAX = (1 << 63) - 1

_FIND = "SELECT version, since, CAST(writes AS BLOB), value IS NOT NULL FROM records WHERE collection = ? AND name = ?"
_STORE = """
    INSERT INTO records (collection, name, version, since, due, writes, value, shelf, turn)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (collection, name) DO UPDATE SET
      version = excluded.version, since = excluded.since, due = excluded.due,
      writes = excluded.writes, value = excluded.value, shelf = excluded.shelf, turn = excluded.turn
"""
_SET_INDEX_ENTRY = """
    UPDATE records SET shelf = ?1, turn = ?2
    WHERE collection = ?3 AND name = ?4 AND version = ?5 AND (shelf IS NOT ?1 OR turn IS NOT ?2)
"""
_COUNT = "SELECT n FROM shelves WHERE collection = ? AND shelf = ?"
_COUNT_UPTO = "SELECT count(*) FROM records WHERE collection = ? AND shelf = ? AND turn <= ?"
_OLDEST_GONE = "SELECT seq, collection, version FROM records WHERE value IS NULL ORDER BY version LIMIT ?"
_FORGOT = "INSERT INTO forgotten VALUES (?, ?) ON CONFLICT DO UPDATE SET version = max(version, excluded.version)"
_COLUMNS = "SELECT name, value, version, due, turn FROM records WHERE"
_STATUS_UP = f"{_COLUMNS} collection = ? AND shelf = ? AND (turn, name) > (?, ?) ORDER BY turn, name LIMIT ?"
_STATUS_DOWN = (
    f"{_COLUMNS} collection = ? AND shelf = ? AND (turn, name) < (?, ?) ORDER BY turn DESC, name DESC LIMIT ?"
)
_NEXT_COLLECTION = "SELECT CAST(min(collection) AS BLOB) FROM records WHERE collection > CAST(? AS TEXT)"


class Write(msgspec.Struct, frozen=True, array_like=True):
    """One write to a name. A write without a nonce is never retried."""

    nonce: str | None
    version: int
    deleted: bool


class NameState(msgspec.Struct, frozen=True):
    """The state of a name: its version now (None: no record), and its writes newer than `since`."""

    version: int | None
    since: int
    writes: list[Write]


_Row = tuple[bytes, bytes, int, int | None, int | None]  # name, value, version, due, turn
_decode_writes = msgspec.json.Decoder(list[Write]).decode


def judge(name_state: NameState, at: int | None, nonce: str | None) -> Outcome | Write | None:
    """The verdict on a write that expects version `at` (None: no record): the earlier write that it repeats, or why it
    cannot be made; None if it is to be made now."""
    for write in name_state.writes:
        if nonce is not None and write.nonce == nonce:
            return write
    if name_state.version == at:
        return None
    # A write with this nonce may have been made and dropped, unless all writes since the version it names are known.
    certain = nonce is None or (name_state.since == 0 if at is None else at >= name_state.since)
    return Outcome.CONFLICT if certain else Outcome.UNKNOWN


class SqliteRecords(ConditionalRecords):
    """One collection of records."""

    emits = True

    def __init__(self, writer: SqliteWriter, reader: SqliteReader, clock: Clock, collection: str) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._collection = collection

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        where = f"{_COLUMNS} collection = ? AND name = ? AND value IS NOT NULL"
        found = await self._reader.do(lambda db: db.execute(where, (self._collection, _name(key))).get)
        return None if found is None else _record(*found[:4], now=to_micros(self._clock.now()))

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        start = _name(prefix)
        # One bound below, since SQLite seeks to one of two and reads on from there.
        if after is not None and _bytes(after) >= start:
            terms, values = "name > ?", [_bytes(after)]
        else:
            terms, values = "name >= ?", [start]
        if start:
            # No byte of UTF-8 is 0xff, so the last one can always be incremented.
            terms += " AND name < ?"
            values.append(start[:-1] + bytes([start[-1] + 1]))
        sql = f"{_COLUMNS} collection = ? AND value IS NOT NULL AND {terms} ORDER BY name LIMIT ?"
        return await self._page(sql, values, limit, lambda row: _text(row[0]))

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        horizon = to_micros(self._clock.now() if before is None else before)
        due, stored = (-_POSITION_MAX - 1, "") if after is None else read_cursor(after)
        terms = "collection = ? AND value IS NOT NULL AND due <= ? AND (due, name) > (?, ?)"
        sql = f"{_COLUMNS} {terms} ORDER BY due, name LIMIT ?"
        return await self._page(sql, [horizon, due, _bytes(stored)], limit, _due_cursor)

    @property
    def status_index(self) -> IndexedRecords:
        return self

    async def reindex(self, placed: Sequence[tuple[Record, IndexEntry | None]]) -> int:
        """See IndexedRecords."""

        def run(tx: WriteTransaction) -> int:
            moved = 0
            for record, index_entry in placed:
                stands = (None, None) if index_entry is None else (index_entry.status, index_entry.position)
                tx.db.execute(
                    _SET_INDEX_ENTRY, (*stands, self._collection, _name(record.key), _version(record.version))
                )
                moved += tx.db.changes()
            return moved

        return await self._writer.do(run) if placed else 0

    async def status_counts(self, spans: Sequence[StatusRange]) -> tuple[tuple[int, ...], datetime]:
        """See IndexedRecords. A part of a status is counted in its index."""

        def count(db: apsw.Connection, span: StatusRange) -> int:
            if span.upto is None:
                return db.execute(_COUNT, (self._collection, span.status)).get or 0
            return int(db.execute(_COUNT_UPTO, (self._collection, span.status, span.upto)).get)

        counts = await self._reader.do(lambda db: tuple(count(db, each) for each in spans))
        return counts, self._clock.now()

    async def status_page(self, status: str, after: str | None, limit: int, *, newest: bool = False) -> Page[Record]:
        """See IndexedRecords."""
        position, name = (_POSITION_MAX, b"\xff") if newest else (-_POSITION_MAX - 1, b"")
        if after is not None:
            position, stored = read_cursor(after)
            name = _bytes(stored)
        sql = _STATUS_DOWN if newest else _STATUS_UP
        return await self._page(sql, [status, position, name], limit, _status_cursor)

    async def write(self, asked: RecordWrite) -> Written:
        name, at, value = _name(asked.key), None if asked.at is None else _version(asked.at), asked.value

        def run(tx: WriteTransaction) -> Written:
            now = from_micros(tx.now())
            name_state = self._name_state(tx.db, name)
            verdict = judge(name_state, at, asked.nonce)
            if isinstance(verdict, Write):
                return Written(Outcome.DONE, None if verdict.deleted else str(verdict.version), now)
            if verdict is not None:
                return Written(verdict, None, now)
            version = self._store(tx, name, name_state, asked)
            if asked.emit:
                append(tx, asked.emit)  # if there is no space for it, the record is not written either
            return Written(Outcome.DONE, None if value is None else str(version), now)

        return await self._writer.do(run)

    def _name_state(self, db: apsw.Connection, name: bytes) -> NameState:
        found = db.execute(_FIND, (self._collection, name)).get
        if found is not None:
            version, since, writes, live = found
            try:
                known = _decode_writes(writes)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                since, known = version, []  # another program overwrote them: all writes up to now count as dropped
            return NameState(version if live else None, since, known)
        forgotten = db.execute("SELECT version FROM forgotten WHERE collection = ?", (self._collection,)).get
        return NameState(None, forgotten or 0, [])

    def _store(self, tx: WriteTransaction, name: bytes, name_state: NameState, asked: RecordWrite) -> int:
        value, index_entry = asked.value, asked.index_entry
        version = tx.draw()
        writes = [*name_state.writes, Write(asked.nonce, version, deleted=value is None)]
        since = max(name_state.since, *(write.version for write in writes[:-NONCES_KEPT]), 0)
        text = msgspec.json.encode(writes[-NONCES_KEPT:]).decode()
        stands = (None, None) if index_entry is None else (index_entry.status, index_entry.position)
        tx.db.execute(_STORE, (self._collection, name, version, since, micros(asked.due_at), text, value, *stands))
        if value is None:
            _forget(tx, tx.gone(1) - GONE_MAX)
        elif name_state.version is None and name_state.writes:
            tx.gone(-1)
        return version

    async def _page(
        self, sql: str, values: Sequence[int | bytes | str], limit: int, cursor: Callable[[_Row], str]
    ) -> Page[Record]:
        check_limit(limit, "records")

        def run(db: apsw.Connection) -> Page[Record]:
            found: list[Record] = []
            cursors: list[str] = []
            size, more, now = 0, False, to_micros(self._clock.now())
            for row in db.execute(sql, (self._collection, *values, min(limit, PAGE_MAX) + 1)):
                size += len(row[1])
                if len(found) == min(limit, PAGE_MAX) or (found and size > PAGE_BYTES_MAX):
                    more = True
                    break
                found.append(_record(*row[:4], now=now))
                cursors.append(cursor(row))
            return Page(tuple(found), tuple(cursors), self._clock.now(), more)

        return await self._reader.do(run)


def _forget(tx: WriteTransaction, count: int) -> None:
    """Drops the oldest deleted names."""
    if count <= 0:
        return
    rows = tx.db.execute(_OLDEST_GONE, (count,)).fetchall()
    for seq, collection, version in rows:
        tx.db.execute(_FORGOT, (collection, version))
        tx.db.execute("DELETE FROM records WHERE seq = ?", (seq,))
    tx.gone(-len(rows))


def _name(key: str) -> bytes:
    return stored_name(key).encode()


def _record(name: bytes, value: bytes, version: int, due: int | None, *, now: int) -> Record:
    """A name that is not UTF-8 and a time outside of the calendar are shown as closely as possible."""
    return Record(key_of(text(name)), value, str(version), instant(in_calendar(due, now)))


def _text(name: bytes) -> str:
    """A stored name in a cursor, whatever its bytes."""
    return name.decode("utf-8", "surrogateescape")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _version(at: str) -> int:
    """A version as a number; a text that is not one of ours is above all of them, and so matches none."""
    return int(at) if at.isdecimal() and len(at) < 19 else 1 << 62


def _status_cursor(row: _Row) -> str:
    assert row[4] is not None, "a row with a status has a position"
    return index_cursor(row[4], _text(row[0]))


def _due_cursor(row: _Row) -> str:
    return f"{row[3]}:{_text(row[0])}"


class SqliteNamespaces:
    """The namespaces in a database: the index on collections is read by skipping, one seek per collection."""

    def __init__(self, reader: SqliteReader, clock: Clock) -> None:
        self._reader, self._clock = reader, clock

    async def page(self, after: str | None, limit: int) -> Page[str]:
        found = await self._reader.do(lambda db: _namespaces(db, after, limit + 1))
        return Page.of(found, limit, self._clock.now(), str)


def _namespaces(db: apsw.Connection, after: str | None, limit: int) -> list[str]:
    found: list[str] = []
    place = b"" if after is None else f"{after}/\U0010ffff".encode()  # past every collection of that namespace
    while len(found) < limit and (collection := db.execute(_NEXT_COLLECTION, (place,)).get) is not None:
        if name := namespace_of(text(collection)):
            found.append(name)
        place = collection
    return found
