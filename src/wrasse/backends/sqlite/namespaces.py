"""Namespaces of the records in a database: the index on collections is read by skipping, one seek per collection."""

from __future__ import annotations

from apsw import Connection

from wrasse.backends.sqlite.bulk import text
from wrasse.backends.sqlite.connection_thread import SqliteReader
from wrasse.clock import Clock
from wrasse.ports.namespaces import namespace_of
from wrasse.ports.page import Page

_NEXT = "SELECT CAST(min(collection) AS BLOB) FROM records WHERE collection > CAST(? AS TEXT)"


class SqliteNamespaces:
    """The port."""

    def __init__(self, reader: SqliteReader, clock: Clock) -> None:
        self._reader, self._clock = reader, clock

    async def page(self, after: str | None, limit: int) -> Page[str]:
        found = await self._reader.do(lambda db: _after(db, after, limit + 1))
        return Page.of(found, limit, self._clock.now(), str)


def _after(db: Connection, after: str | None, limit: int) -> list[str]:
    found: list[str] = []
    place = b"" if after is None else f"{after}/\U0010ffff".encode()  # past every collection of that namespace
    while len(found) < limit and (collection := db.execute(_NEXT, (place,)).get) is not None:
        if name := namespace_of(text(collection)):
            found.append(name)
        place = collection
    return found
