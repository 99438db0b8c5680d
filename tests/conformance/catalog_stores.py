"""The catalogs under test, each behind the same small face. All knowledge of a backend is in this file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import apsw

from wrasse.backends.memory.catalog import MemoryCatalog
from wrasse.backends.sqlite.catalog import SqliteCatalog
from wrasse.clock import ManualClock
from wrasse.ports.catalog import Catalog, Reference

CATALOG_BACKENDS = ("memory", "sqlite")
_TABLE = """
    CREATE TABLE refs (key TEXT NOT NULL, prefix INTEGER, owner TEXT, rule TEXT, ended_at TEXT, started_at TEXT);
    CREATE INDEX refs_by_key ON refs (key);
"""


class CatalogStore:
    """One catalog, and the user who refers to archives in it."""

    def __init__(self, name: str, place: Path) -> None:
        self.clock = ManualClock()
        self._memory = MemoryCatalog(self.clock)
        self._user: apsw.Connection | None = None
        self.catalog: Catalog = self._memory
        if name == "sqlite":
            self._user = apsw.Connection(str(place / "app.db"))
            self._user.pragma("journal_mode", "wal")
            self._user.execute(_TABLE)
            self.catalog = SqliteCatalog(place / "app.db", "refs", self.clock)

    def add(self, references: Sequence[Reference]) -> None:
        """The user refers to these."""
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
        if self._user is None:
            self._memory.remove(*references)
            return
        for each in references:
            self._user.execute("DELETE FROM refs WHERE key = ?", (each.key,))

    def close(self) -> None:
        """Disconnects the user."""
        if self._user is not None:
            self._user.close()


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
