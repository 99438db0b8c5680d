"""References from a user's own SQLite database, which is opened read-only and never changed.

A snapshot is one read transaction, streamed in the byte order of keys; an index on `key` saves the sorting, and makes
`referenced` a lookup. In a database without WAL, a snapshot blocks writers while it lasts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import apsw

from wrasse.backends.sqlite.connection import ours
from wrasse.clock import Clock
from wrasse.errors import ConfigError, Refused, StoreBroken
from wrasse.ports.catalog import Query, Reference
from wrasse.ports.objects import raw_key
from wrasse.ports.page import Page, check_limit, number_in
from wrasse.ports.rules.reference_rows import Source

T = TypeVar("T")
Row = tuple[object, ...]
_BUSY_MS = 10_000
_ABSENT = {"prefix": "0", "owner": "''", "rule": "NULL", "ended_at": "NULL", "started_at": "NULL"}

_ALL = "SELECT {columns} FROM ({source}\n) WHERE key IS NOT NULL ORDER BY key COLLATE BINARY, 2, 3, 4, 5, 6"
_FROM = "SELECT {columns} FROM ({source}\n) WHERE key >= :form ORDER BY key COLLATE BINARY, 2, 3, 4, 5, 6"
_NAMED = "SELECT {columns} FROM ({source}\n) WHERE key = :form"
_ABOVE = """
    WITH RECURSIVE cut(size) AS (SELECT 0 UNION ALL SELECT size + 1 FROM cut WHERE size < length(:form))
    SELECT {columns} FROM cut CROSS JOIN ({source}
    ) WHERE key = substr(:form, 1, size) AND prefix
"""


# Everything below `a/b/` is before `a/b0`, since `0` is the byte after the slash.
_BELOW = "SELECT {columns} FROM ({source}\n) WHERE key > :form AND key < :end"


class SqliteCatalog:
    """The catalog of a table or a query of one database, or of several in one view."""

    def __init__(self, path: str | Path, source: str | Sequence[Query], clock: Clock) -> None:
        self._path = str(path)
        queries = (Query("query", source),) if isinstance(source, str) else source
        self._sources = [Source.of(each, f"the catalog {self._path}") for each in queries]
        self._clock = clock

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[SqliteSnapshot]:
        view = await _finished(self._open, undo=SqliteSnapshot.close)
        try:
            yield view
        finally:
            await _finished(view.close)

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        return await _finished(lambda: self._referenced(keys, below))

    def leader(self, name: str) -> None:
        return None

    def _referenced(self, keys: Sequence[str], below: bool) -> list[Reference | None]:
        view = self._open()
        try:
            return [view.protecting(key, below=below) for key in keys]
        finally:
            view.close()

    def _open(self) -> SqliteSnapshot:
        with _said(f"the catalog {self._path}"):
            db = apsw.Connection(os.path.abspath(self._path), apsw.SQLITE_OPEN_READONLY)
            try:
                source = self._sources[0] if len(self._sources) == 1 else _joined(db, self._sources)
                return SqliteSnapshot(db, source, self._clock)
            except BaseException:
                db.close(True)
                raise


class SqliteSnapshot:
    """One read transaction, which begins here."""

    def __init__(self, db: apsw.Connection, source: Source, clock: Clock) -> None:
        self._db = db
        self._source = source
        db.set_busy_timeout(_BUSY_MS)
        if db.pragma("encoding") != "UTF-8":
            raise Refused(
                f"{source.where} is not in UTF-8, so its keys have another order",
                do="name a copy of it in UTF-8, as `.dump` makes one",
            )
        db.execute("BEGIN").fetchall()
        db.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # the first read fixes the view
        self._at = clock.now()
        self._names = _column_names(db, source.sql)
        self._columns = source.columns(self._names, _ABSENT)
        self._turn = asyncio.Lock()
        self._rows: Iterator[tuple[Reference, str]] = iter(())
        self._next: tuple[Reference, str] | None = None
        self._stands: str | None = None  # the cursor from which `_next` and `_rows` continue

    @property
    def at(self) -> datetime:
        return self._at

    async def page(self, after: str | None, limit: int) -> Page[Reference]:
        check_limit(limit, "references")
        async with self._turn:
            return await _finished(lambda: self._page(after, limit))

    def protecting(self, key: str, *, below: bool = False) -> Reference | None:
        """The reference that protects a key longest."""
        statements = [_NAMED, *([_ABOVE] if "prefix" in self._names else []), *([_BELOW] if below else [])]
        with _said(self._source.where):
            found = [
                _reference(self._source, row)
                for form in _forms(raw_key(key))
                for statement in statements
                for row in self._select(statement, form)
            ]
        return max(found, key=lambda each: each.strength, default=None)

    def close(self) -> None:
        """Ends the view."""
        self._db.close(True)

    def _page(self, after: str | None, limit: int) -> Page[Reference]:
        shown: list[tuple[Reference, str]] = []
        with _said(self._source.where):
            if after is None or after != self._stands:
                self._start(after)
            while self._next is not None and len(shown) < limit:
                shown.append(self._next)
                self._next = next(self._rows, None)
        self._stands = shown[-1][1] if shown else None
        return Page(
            items=tuple(reference for reference, _ in shown),
            cursors=tuple(cursor for _, cursor in shown),
            at=self._at,
            more=self._next is not None,
        )

    def _start(self, after: str | None) -> None:
        """Moves to the first reference after a cursor."""
        if after is None:
            # From the very first row, so that a key of another type than text is noticed, and refused.
            self._rows = self._numbered(self._select(_ALL, ""))
            self._next = next(self._rows, None)
            return
        number, key = _parsed(after)
        self._rows = self._numbered(self._select(_FROM, _forms(raw_key(key))[0]))
        self._next = next(self._rows, None)
        while self._next is not None and _place(self._next[1]) <= (raw_key(key), number):
            self._next = next(self._rows, None)

    def _numbered(self, rows: Iterator[Row]) -> Iterator[tuple[Reference, str]]:
        """References with their cursor: a key, and the position among those with this key."""
        last, number = b"", 0
        for row in rows:
            reference = _reference(self._source, row)
            raw = raw_key(reference.key)
            if raw < last:
                raise StoreBroken(
                    f"{self._source.where} has both texts and blobs for keys",
                    do="use one type: SELECT CAST(key AS TEXT) AS key, ...",
                )
            number = number + 1 if raw == last else 1
            last = raw
            yield reference, f"{number}:{reference.key}"

    def _select(self, statement: str, form: str | bytes) -> Iterator[Row]:
        sql = statement.format(columns=self._columns, source=self._source.sql)
        return iter(self._db.execute(sql, {"form": form, "end": _after_directory(form)}))


def _column_names(db: apsw.Connection, sql: str) -> frozenset[str]:
    from apsw.ext import query_info  # large, and needed only here

    return frozenset(name.lower() for name, _ in query_info(db, f"SELECT * FROM ({sql}\n)").description)


def _joined(db: apsw.Connection, sources: Sequence[Source]) -> Source:
    """Several sources as one, each with all columns."""
    parts = []
    for each in sources:
        absent = {**_ABSENT, "rule": "'" + each.rule.replace("'", "''") + "'"}
        parts.append(f"SELECT {each.columns(_column_names(db, each.sql), absent)} FROM ({each.sql}\n)")
    return Source(" UNION ALL ".join(parts), "query", sources[0].where)


def _reference(source: Source, row: Row) -> Reference:
    """The reference in a row; a key may be a blob here."""
    key = row[0]
    return source.reference((key.decode("utf-8", "surrogateescape"), *row[1:]) if isinstance(key, bytes) else row)


@contextmanager
def _said(where: str) -> Iterator[None]:
    try:
        yield
    except apsw.SQLError as error:
        raise ConfigError(f"{where} refuses its query: {error}", do="try the query in a shell") from error
    except apsw.Error as error:
        raise ours(error, where) from error


def _forms(raw: bytes) -> list[str | bytes]:
    """The possible forms of a key in the database: a text equals no blob."""
    try:
        return [raw.decode(), raw]
    except UnicodeDecodeError:
        return [raw]


def _after_directory(form: str | bytes) -> str | bytes:
    """The first key after everything below a directory."""
    return form[:-1] + "0" if isinstance(form, str) else form[:-1] + b"0"


def _parsed(cursor: str) -> tuple[int, str]:
    number, colon, key = cursor.partition(":")
    return number_in(cursor, number if colon else ""), key


def _place(cursor: str) -> tuple[bytes, int]:
    number, key = _parsed(cursor)
    return raw_key(key), number


async def _finished(call: Callable[[], T], *, undo: Callable[[T], None] | None = None) -> T:
    """Runs a call in a thread, to its end even if its caller was cancelled: a connection serves one thread at a time.
    `undo` gets the result if the caller was cancelled."""
    future = asyncio.get_running_loop().run_in_executor(None, call)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as why:
            cancelled = why
    if cancelled is not None:
        if future.exception() is None and undo is not None:
            undo(future.result())
        raise cancelled
    return future.result()
