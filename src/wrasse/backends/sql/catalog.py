"""References from a user's own database, through SQLAlchemy. Nothing in it is ever changed.

A snapshot is one read-only transaction, streamed in the byte order of keys; `referenced` is another, on a connection
that is kept. Both refuse a replica: what has not arrived there yet would look like an orphan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from wrasse.backends.sql.address import POSTGRES, SqlAddress
from wrasse.backends.sql.asking import Asked, Endings
from wrasse.backends.sql.leader import SqlLeader
from wrasse.backends.sql.link import Link, SqlThread
from wrasse.backends.sql.plans import examined
from wrasse.backends.sql.snapshot import SqlSnapshot
from wrasse.errors import StoreUnavailable
from wrasse.ports.catalog import Query, Reference
from wrasse.ports.finding import Finding
from wrasse.ports.reference_rows import Source

LOOK_MAX = 30.0  # seconds for one batch of `referenced`
KEYS_MAX = 10_000


class SqlCatalog:
    """The port, for any number of queries in one database."""

    def __init__(self, address: SqlAddress, queries: Sequence[Query]) -> None:
        assert queries, "a catalog without a query would protect nothing"
        self._address = address
        self._sources = tuple(Source.of(each, address.shown) for each in queries)
        self._thread = SqlThread("wrasse-sql")
        self._link = Link(address)
        self._plain: tuple[str, ...] = ()
        self._indexed: tuple[bool, ...] = ()  # of each source, whether what is below a directory is found by an index
        self._endings: Endings = None

    @classmethod
    def open(cls, url: str, queries: Sequence[Query]) -> SqlCatalog:
        """The catalog of a URL. It connects when it is first asked."""
        return cls(SqlAddress.parse(url), queries)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[SqlSnapshot]:
        view = SqlSnapshot(Link(self._address), self._sources, self._thread)
        try:
            await view.open()
            yield view
        finally:
            await view.close()
        if view.endings is not None:
            self._endings = view.endings
        self._plain = ()  # and with it how each source is asked: tables grow, and indexes are made

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        found: list[Reference | None] = []
        for start in range(0, len(keys), KEYS_MAX):
            asked = Asked(keys[start : start + KEYS_MAX], self._endings, below=below)
            await self._thread.run(lambda asked=asked: self._ask(asked), self._link, LOOK_MAX)  # type: ignore[misc]
            found += asked.found
        return found

    async def examine(self) -> Sequence[Finding]:
        """Whether its queries can be answered, and by an index."""
        return await self._thread.run(lambda: examined(self._link, self._sources), self._link, LOOK_MAX)

    def leader(self, name: str) -> SqlLeader | None:
        return SqlLeader(name, self._link, self._thread) if self._address.kind == POSTGRES else None

    async def close(self) -> None:
        """Lets go of the connection."""
        await self._thread.run(self._link.close, self._link, LOOK_MAX)
        await self._thread.close()

    def _ask(self, asked: Asked) -> None:
        kept = self._link.is_open
        try:
            self._link.guarded(lambda: self._ask_all(asked))
        except StoreUnavailable:
            # A connection that was kept may have ended while nobody used it. That proves nothing about the server.
            if not kept or self._link.was_shut:
                raise
            self._link.guarded(lambda: self._ask_all(asked))

    def _ask_all(self, asked: Asked) -> None:
        link, dialect = self._link, self._link.dialect
        dialect.begin(link, LOOK_MAX)
        if not self._plain:
            self._prepare(asked.directories)
        named, directories = asked.named, asked.directories
        for source, plain, indexed in zip(self._sources, self._plain, self._indexed, strict=True):
            statements = [*dialect.named(plain, named)]
            if directories:
                statements += dialect.below(plain, directories, indexed)
            for sql, values in statements:
                asked.note([source.reference(row) for row in link.rows(sql, values)])
        link.end()

    def _prepare(self, directories: Sequence[str]) -> None:
        link, dialect = self._link, self._link.dialect
        self._plain = tuple(dialect.plain(each, link.names(each.sql)) for each in self._sources)
        few = directories[:2] or ["a/"]
        self._indexed = tuple(
            not any(dialect.scans(link, each) for each in dialect.below(plain, few, True)) for plain in self._plain
        )
