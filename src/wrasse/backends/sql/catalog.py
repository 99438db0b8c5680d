"""References from a user's own database, through SQLAlchemy. The database is never changed.

A snapshot is one read-only transaction and one consistent view of all references, streamed in the byte order of keys.
The database sorts by bytes, which is checked: a key out of order is an error, and so is a stream that is shorter or
longer than the count of the same view. `referenced` uses another transaction, on a connection that is kept open. Both
refuse a replica: a reference that has not arrived there yet would look like an orphan.

A prefix may end anywhere in a key, and looking up every piece of every key would be a hundred times the work. So the
last snapshot that was read to its end gives the characters with which prefixes end, always including the slash; without
one, every piece is looked up.

On PostgreSQL a session's advisory lock decides which process leads, on the connection that also answers the last
lookups. The lock ends with the connection, so that a process that has lost it cannot look up anything either: a lock on
a connection of its own would outlive the other, or end before it. If it is lost in a run, it is not taken again before
the next run. A pooler that gives each transaction another session would make the lock useless: it is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime

from wrasse.backends.sql.address import POSTGRES, SqlAddress
from wrasse.backends.sql.connection import SqlConnection, SqlThread
from wrasse.backends.sql.dialect import Params
from wrasse.errors import Refused, StoreBroken, StoreUnavailable, WrasseError
from wrasse.ports.backend import FAIL, OK, WARN, Finding
from wrasse.ports.catalog import Query, Reference
from wrasse.ports.guard import Guard
from wrasse.ports.page import Page, check_limit, number_in
from wrasse.ports.rules.reference_rows import Source

ASK_MAX = 10.0  # seconds
_HELD = """SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()
    AND classid = %(high)s AND objid = %(low)s AND objsubid = 1"""
Endings = frozenset[str] | None
_SLASH = frozenset({"/"})
_INVALID_TEXT = re.compile("[\0\ud800-\udfff]")  # never in a text of a database: bytes that are not UTF-8, and NUL
CHECK = "references"
SMALL_ROWS = 10_000  # rows; a smaller table is read faster than an index
_EXPLAIN_MAX = 30.0
_MAKE_AN_INDEX = (
    "make an index on what the query calls key, sorted by bytes; on PostgreSQL: "
    'CREATE INDEX CONCURRENTLY ON documents (path COLLATE "C")'
)
END_MAX = 10.0  # seconds to close a connection
VIEW_MAX = 900.0  # seconds for one statement of a snapshot, sorting included
NumberedReference = tuple[Reference, str]
Parts = Generator[list[NumberedReference], None, None]
LOOKUP_MAX = 30.0  # seconds for one batch of `referenced`
KEYS_MAX = 10_000


def lock_id(name: str) -> int:
    """The number of a lock by its name: the first eight bytes of its SHA-256, without the sign bit."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) & 0x7FFF_FFFF_FFFF_FFFF


class SqlLeader(Guard):
    """A guard that lets only the leader run. Leadership is taken at the first check, and kept until `release` or the
    end of the connection."""

    name = "leader"

    def __init__(self, lock: str, connection: SqlConnection, thread: SqlThread) -> None:
        self._lock = lock
        self._id = lock_id(lock)
        self._connection = connection
        self._thread = thread
        self._session = 0  # the connection on which it was taken; 0: not taken
        self._lost = False

    async def acquire(self) -> bool:
        """Takes leadership, or keeps it; False while another session has it."""
        self._lost = False
        return await self._thread.run(lambda: self._connection.guarded(self._acquire), self._connection, ASK_MAX)

    async def pause_reason(self) -> str | None:
        """Why this process must not continue: it does not lead, or cannot find out."""
        if self._lost:
            return f"the lock {self._lock!r} was lost in this run"
        led = self._session != 0
        try:
            if led and await self._thread.run(
                lambda: self._connection.guarded(self._verify), self._connection, ASK_MAX
            ):
                return None
        except Refused:
            raise
        except WrasseError:
            pass  # without an answer there is no leadership
        if led:
            self._session, self._lost = 0, True
            return f"the lock {self._lock!r} was lost in this run"
        return None if await self.acquire() else f"another process has the lock {self._lock!r}"

    def recall(self, memory: str | None) -> None:
        """A new run begins: a lost lock may be taken again."""
        self._lost = False

    async def release(self) -> None:
        """Gives leadership up."""
        await self._thread.run(lambda: self._connection.guarded(self._release), self._connection, ASK_MAX)

    def _acquire(self) -> bool:
        if self._session and self._verify():
            return True
        self._connection.dialect.begin(self._connection, ASK_MAX)
        refuse_pooler(self._connection)
        # Requested once only: a session that takes a lock twice must release it twice.
        taken = bool(self._connection.rows("SELECT pg_try_advisory_lock(%(id)s)", {"id": self._id})[0][0])
        self._connection.end()
        self._session = self._connection.opened if taken else 0
        return taken

    def _verify(self) -> bool:
        if self._session != self._connection.opened:
            return False
        self._connection.dialect.begin(self._connection, ASK_MAX)
        parts: Params = {"high": self._id >> 32, "low": self._id & 0xFFFF_FFFF}
        held = self._connection.rows(_HELD, parts)[0][0] == 1
        self._connection.end()
        return held and self._session == self._connection.opened

    def _release(self) -> None:
        if self._session == self._connection.opened:
            self._connection.rows("SELECT pg_advisory_unlock(%(id)s)", {"id": self._id})
            self._connection.end()
        self._session = 0


def refuse_pooler(connection: SqlConnection) -> None:
    """Raises if a session is not exclusively ours. Two connections of ours, each in a transaction and each again after
    it, use two sessions, always the same, unless a pooler assigns sessions by the transaction."""
    other = SqlConnection(connection.address)
    pid = "SELECT pg_backend_pid()"
    try:
        mine = connection.rows(pid)
        connection.end()
        theirs = other.rows(pid)  # its transaction stays open, so its session stays in use
        if mine == theirs or connection.rows(pid) != mine:
            raise Refused(
                f"{connection.address.shown} is behind a pooler that gives every transaction another session, "
                "where a lock means nothing",
                do="name the server itself, or a pool in session mode; or leave out `lock`: wrasse has its own lease",
            )
        connection.end()
    finally:
        other.close()


class ReferenceQuery:
    """Some keys, and the strongest reference to each of them so far."""

    def __init__(self, keys: Sequence[str], endings: Endings, *, below: bool) -> None:
        self._below = below
        self._at: dict[str, list[int]] = {}
        self._under: dict[str, list[int]] = {}
        odd = _INVALID_TEXT.search("/".join(keys)) is not None
        self._whole = {key for key in keys if not _INVALID_TEXT.search(key)} if odd else set(keys)
        for index, key in enumerate(keys):
            self._at.setdefault(key, []).append(index)
            for piece in pieces(text_part(key) if odd else key, endings):
                self._under.setdefault(piece, []).append(index)
        self.found: list[Reference | None] = [None] * len(keys)

    @property
    def named(self) -> list[str]:
        """The keys of the rows that matter: the keys themselves, and their possible prefixes."""
        return sorted(self._whole | self._under.keys())

    @property
    def directories(self) -> list[str]:
        """Directories below which rows matter, in order; nested ones are left out."""
        if not self._below:
            return []
        outer: list[str] = []
        for key in sorted(key for key in self._whole if key.endswith("/")):
            if not outer or not key.startswith(outer[-1]):
                outer.append(key)
        return outer

    def note(self, rows: Iterable[Reference]) -> None:
        """Adds rows to the result."""
        for row in rows:
            for index in self._protected(row):
                before = self.found[index]
                if before is None or row.strength > before.strength:
                    self.found[index] = row

    def _protected(self, row: Reference) -> Iterator[int]:
        yield from self._at.get(row.key, ())
        if row.prefix:
            yield from self._under.get(row.key, ())
        if self._below:
            for end in _slashes(row.key):
                yield from self._at.get(row.key[:end], ())


def pieces(key: str, endings: Endings) -> list[str]:
    """The prefixes that can cover a key."""
    if endings == _SLASH:
        return ["", *(key[:end] for end in _slashes(key))]
    return ["", *(key[:end] for end in range(1, len(key) + 1) if endings is None or key[end - 1] in endings)]


def text_part(key: str) -> str:
    """A key up to the first character that a database text cannot contain."""
    limit = _INVALID_TEXT.search(key)
    return key if limit is None else key[: limit.start()]


def _slashes(key: str) -> Iterator[int]:
    at = key.find("/")
    while at >= 0:
        yield at + 1
        at = key.find("/", at + 1)


def examined(connection: SqlConnection, sources: Sequence[Source]) -> Sequence[Finding]:
    """One finding for each query."""
    try:
        return connection.guarded(lambda: [*_all(connection, sources)])
    except WrasseError as why:
        return (Finding(CHECK, FAIL, why.message, why.do),)


def _all(connection: SqlConnection, sources: Sequence[Source]) -> Iterator[Finding]:
    dialect = connection.dialect
    dialect.begin(connection, _EXPLAIN_MAX)
    for source in sources:
        plain = dialect.plain(source, connection.names(source.sql))
        sql, values = dialect.counted(plain)
        rows = connection.rows(sql, values)[0][0]
        assert isinstance(rows, int), "a count is a number"
        statements = [*dialect.named(plain, ["a/b/"]), *dialect.below(plain, ["a/b/"], True)]
        slow = rows > SMALL_ROWS and any(dialect.scans(connection, each) for each in statements)
        what = f"{source.rule} of {source.where}: {rows} references"
        if slow:
            yield Finding(CHECK, WARN, f"{what}; no index is used, so each batch reads the whole table", _MAKE_AN_INDEX)
        else:
            yield Finding(CHECK, OK, what)
    connection.end()


class SqlSnapshot:
    """The view. It has a connection of its own, and uses the thread of its catalog."""

    def __init__(self, connection: SqlConnection, sources: Sequence[Source], thread: SqlThread) -> None:
        self._connection = connection
        self._sources = sources
        self._thread = thread
        self._turn = asyncio.Lock()
        self._at: datetime | None = None
        self._all = ""
        self._parts: Parts = _nothing()
        self._waiting: list[NumberedReference] = []  # the next references, a part of the stream
        self._stands: str | None = None  # the cursor before them
        self.endings: Endings = None  # the last characters of prefixes, once all were read

    @property
    def at(self) -> datetime:
        """The database's clock when the view was opened."""
        assert self._at is not None, "a snapshot is opened before it is read"
        return self._at

    async def open(self) -> None:
        """Opens the view."""
        await self._run(self._open)

    async def page(self, after: str | None, limit: int) -> Page[Reference]:
        """References in the byte order of their keys."""
        check_limit(limit, "references")
        async with self._turn:
            pages: list[Page[Reference]] = []
            await self._run(lambda: pages.append(self._page(after, limit)))
            return pages[0]

    async def close(self) -> None:
        """Ends the view."""
        await self._thread.run(self._close, self._connection, END_MAX)

    async def _run(self, call: object) -> None:
        assert callable(call), "a step of the view"
        await self._thread.run(lambda: self._connection.guarded(call), self._connection, VIEW_MAX)

    def _open(self) -> None:
        connection = self._connection
        self._at = connection.dialect.begin(connection, VIEW_MAX)
        plain = [connection.dialect.plain(each, connection.names(each.sql)) for each in self._sources]
        self._all = " UNION ALL ".join(plain)

    def _close(self) -> None:
        parts, self._parts, self._waiting, self._stands = self._parts, _nothing(), [], None
        self._connection.close()  # first, so that the end of the stream needs no more answers of the server
        with suppress(WrasseError):
            self._connection.guarded(parts.close)

    def _page(self, after: str | None, limit: int) -> Page[Reference]:
        if after is None or after != self._stands:
            self._start(after)
        shown: list[NumberedReference] = []
        while self._waiting and len(shown) < limit:
            room = limit - len(shown)
            shown += self._waiting[:room]
            self._waiting = self._waiting[room:] or next(self._parts, [])
        self._stands = shown[-1][1] if shown else None
        return Page(
            tuple([reference for reference, _ in shown]),
            tuple([cursor for _, cursor in shown]),
            self.at,
            bool(self._waiting),
        )

    def _start(self, after: str | None) -> None:
        """Moves to the first reference after a cursor."""
        self._parts.close()  # MySQL has one stream at a time
        if after is None:
            sql, values = self._connection.dialect.counted(self._all)
            count = self._connection.rows(sql, values)[0][0]
            assert isinstance(count, int), "a count is a number"
            self._parts = self._whole(count)
            self._waiting = next(self._parts, [])
            return
        place = _place(after)
        self._parts = self._from(place[0])
        self._waiting = []
        for part in self._parts:
            self._waiting = [each for each in part if _place(each[1]) > place]
            if self._waiting:
                return

    def _whole(self, count: int) -> Parts:
        """Everything, and an error if the number differs from the count."""
        seen, endings = 0, {"/"}
        for part in self._from(""):
            seen += len(part)
            endings.update([each.key[-1] for each, _ in part if each.prefix and each.key])
            yield part
        if seen != count:
            raise StoreBroken(
                f"{self._connection.address.shown} sent {seen} of {count} references; nothing was judged",
                do="check the proxies between wrasse and the database",
            )
        self.endings = frozenset(endings)

    def _from(self, key: str) -> Parts:
        """References with their cursor: a key, and the position among those with this key."""
        read = self._sources[0].reference
        last, number = "", 0
        sql, values = self._connection.dialect.ordered(self._all, key)
        for part in self._connection.stream(sql, values):
            shown: list[NumberedReference] = []
            for row in part:
                reference = read(row)
                own = reference.key
                if own < last:  # the order of code points is that of their UTF-8
                    raise StoreBroken(
                        f"{self._connection.address.shown} does not sort keys by their bytes; nothing was judged",
                        do="name a database that does",
                    )
                number = number + 1 if own == last else 1
                last = own
                shown.append((reference, f"{number}:{own}"))
            yield shown


def _nothing() -> Parts:
    yield from ()


def _place(cursor: str) -> tuple[str, int]:
    number, colon, key = cursor.partition(":")
    return key, number_in(cursor, number if colon else "")


class SqlCatalog:
    """The catalog of any number of queries in one database."""

    def __init__(self, address: SqlAddress, queries: Sequence[Query]) -> None:
        assert queries, "a catalog without a query would protect nothing"
        self._address = address
        self._sources = tuple(Source.of(each, address.shown) for each in queries)
        self._thread = SqlThread("wrasse-sql")
        self._connection = SqlConnection(address)
        self._plain: tuple[str, ...] = ()
        self._indexed: tuple[bool, ...] = ()  # of each source, whether what is below a directory is found by an index
        self._endings: Endings = None

    @classmethod
    def open(cls, url: str, queries: Sequence[Query]) -> SqlCatalog:
        """The catalog of a URL. It connects at the first use."""
        return cls(SqlAddress.parse(url), queries)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[SqlSnapshot]:
        view = SqlSnapshot(SqlConnection(self._address), self._sources, self._thread)
        try:
            await view.open()
            yield view
        finally:
            await view.close()
        if view.endings is not None:
            self._endings = view.endings
        self._plain = ()  # and the plan of each source: tables grow, and indexes are made

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        found: list[Reference | None] = []
        for start in range(0, len(keys), KEYS_MAX):
            query = ReferenceQuery(keys[start : start + KEYS_MAX], self._endings, below=below)
            await self._thread.run(lambda query=query: self._ask(query), self._connection, LOOKUP_MAX)  # type: ignore[misc]
            found += query.found
        return found

    async def examine(self) -> Sequence[Finding]:
        """Checks whether its queries can be answered, and by an index."""
        return await self._thread.run(lambda: examined(self._connection, self._sources), self._connection, LOOKUP_MAX)

    def leader(self, name: str) -> SqlLeader | None:
        return SqlLeader(name, self._connection, self._thread) if self._address.kind == POSTGRES else None

    async def close(self) -> None:
        """Closes the connection."""
        await self._thread.run(self._connection.close, self._connection, LOOKUP_MAX)
        await self._thread.close()

    def _ask(self, query: ReferenceQuery) -> None:
        kept = self._connection.is_open
        try:
            self._connection.guarded(lambda: self._ask_all(query))
        except StoreUnavailable:
            # A kept connection may have ended while it was idle. That proves nothing about the server.
            if not kept or self._connection.was_shut:
                raise
            self._connection.guarded(lambda: self._ask_all(query))

    def _ask_all(self, query: ReferenceQuery) -> None:
        connection, dialect = self._connection, self._connection.dialect
        dialect.begin(connection, LOOKUP_MAX)
        if not self._plain:
            self._prepare(query.directories)
        named, directories = query.named, query.directories
        for source, plain, indexed in zip(self._sources, self._plain, self._indexed, strict=True):
            statements = [*dialect.named(plain, named)]
            if directories:
                statements += dialect.below(plain, directories, indexed)
            for sql, values in statements:
                query.note([source.reference(row) for row in connection.rows(sql, values)])
        connection.end()

    def _prepare(self, directories: Sequence[str]) -> None:
        connection, dialect = self._connection, self._connection.dialect
        self._plain = tuple(dialect.plain(each, connection.names(each.sql)) for each in self._sources)
        few = directories[:2] or ["a/"]
        self._indexed = tuple(
            not any(dialect.scans(connection, each) for each in dialect.below(plain, few, True))
            for plain in self._plain
        )
