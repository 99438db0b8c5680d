"""The catalogs under test, each behind the same small face. All knowledge of a backend is in this file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import apsw
import pytest

from conformance.sql_catalogs import SqlUser
from servers.mariadb import NAMED
from wrasse.backends.memory.catalog import MemoryCatalog
from wrasse.backends.sqlite.catalog import SqliteCatalog
from wrasse.clock import ManualClock, SystemClock
from wrasse.ports.catalog import Catalog, Reference

_MYSQL = [pytest.param(name, marks=pytest.mark.full) for name in ("mysql", "mysql without an index") if NAMED]
CATALOG_BACKENDS = ("memory", "sqlite", "postgres", "postgres without an index", *_MYSQL)
_TABLE = """
    CREATE TABLE refs (key TEXT NOT NULL, prefix INTEGER, owner TEXT, rule TEXT, ended_at TEXT, started_at TEXT);
    CREATE INDEX refs_by_key ON refs (key);
"""


class CatalogStore:
    """One catalog, and the user who refers to archives in it."""

    def __init__(self, name: str, place: Path, server: Callable[[str], str]) -> None:
        self.clock = ManualClock()
        self._memory = MemoryCatalog(self.clock)
        self._user: apsw.Connection | None = None
        self._sql: SqlUser | None = None
        self.catalog: Catalog = self._memory
        if name not in ("memory", "sqlite"):
            self._sql = SqlUser(server(name.split()[0]), indexed="without" not in name)
            self.catalog = self._sql.catalog
        if name == "sqlite":
            self._user = apsw.Connection(str(place / "app.db"))
            self._user.pragma("journal_mode", "wal")
            self._user.execute(_TABLE)
            self.catalog = SqliteCatalog(place / "app.db", "refs", self.clock)

    def add(self, references: Sequence[Reference]) -> None:
        """The user refers to these."""
        if self._sql is not None:
            self._sql.add(references)
            return
        if self._user is None:
            self._memory.add(*references)
            return
        with self._user:
            self._user.executemany(
                "INSERT INTO refs VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (each.key, each.prefix, each.owner, each.rule, _text(each.ended_at), _text(each.started_at))
                    for each in references
                ],
            )

    def remove(self, *references: Reference) -> None:
        """The user does so no longer."""
        if self._sql is not None:
            self._sql.remove(*references)
            return
        if self._user is None:
            self._memory.remove(*references)
            return
        for each in references:
            self._user.execute("DELETE FROM refs WHERE key = ?", (each.key,))

    def is_now(self, at: datetime) -> bool:
        """Whether that is the time of the database."""
        if self._sql is None:
            return at == self.clock.now()
        return abs(at - SystemClock().now()) < timedelta(minutes=5)

    async def close(self) -> None:
        """Disconnects the user, and the catalog."""
        if self._sql is not None:
            await self._sql.catalog.close()
            self._sql.close()
        if self._user is not None:
            self._user.close()


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
