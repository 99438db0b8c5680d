"""Catalogs in databases that SQLAlchemy reads, and the user who refers to archives in them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime

from sqlalchemy import Connection, create_engine, text

from servers.mariadb import database
from wrasse.backends.sql.catalog import SqlCatalog
from wrasse.ports.catalog import Query, Reference

_TABLE = (
    "CREATE TABLE {name} ({key} TEXT NOT NULL, prefix {flag}, owner TEXT, rule TEXT, ended_at {at}, started_at {at})"
)
_INSERT = "INSERT INTO {name} VALUES (:key, :prefix, :owner, :rule, :ended_at, :started_at)"
_KINDS = {
    "postgresql": {"key": "key", "flag": "boolean", "at": "timestamptz", "indexed": 'key COLLATE "C"'},
    "mysql": {"key": "`key`", "flag": "boolean", "at": "datetime(6)", "indexed": "`key`(200)"},
}
_NUMBERS = itertools.count(1)


class SqlUser:
    """A table of references, and a catalog of it. The table has no index, so that both ways of asking are tested."""

    def __init__(self, url: str, *, indexed: bool) -> None:
        self.name = f"refs_{next(_NUMBERS)}"
        kind = url.partition(":")[0].partition("+")[0]
        self._kind, words = kind, _KINDS[kind]
        self._database: AbstractContextManager[str] | None = None
        if kind == "mysql":
            self._database = database(url)
            url = self._database.__enter__()
        plain = url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")
        self._user: Connection = create_engine(plain).connect()
        self._run(f"DROP TABLE IF EXISTS {self.name}")
        self._run(_TABLE.format(name=self.name, **words))
        if indexed:
            self._run(f"CREATE INDEX {self.name}_key ON {self.name} ({words['indexed']})")
        self.catalog = SqlCatalog.open(url, [Query("refs", f"SELECT * FROM {self.name}")])

    def add(self, references: Sequence[Reference]) -> None:
        """The user refers to these."""
        rows = [
            {
                "key": each.key,
                "prefix": each.prefix,
                "owner": each.owner,
                "rule": each.rule,
                "ended_at": self._time(each.ended_at),
                "started_at": self._time(each.started_at),
            }
            for each in references
        ]
        self._user.execute(text(_INSERT.format(name=self.name)), rows)
        self._user.commit()

    def remove(self, *references: Reference) -> None:
        """The user does so no longer."""
        for each in references:
            column = _KINDS[self._kind]["key"]
            self._user.execute(text(f"DELETE FROM {self.name} WHERE {column} = :key"), {"key": each.key})
        self._user.commit()

    def close(self) -> None:
        """Disconnects the user."""
        self._user.close()
        self._user.engine.dispose()
        if self._database is not None:
            self._database.__exit__(None, None, None)

    def _run(self, sql: str) -> None:
        self._user.execute(text(sql))
        self._user.commit()

    def _time(self, instant: datetime | None) -> object:
        if instant is None or self._kind == "postgresql":
            return instant
        return instant.astimezone(UTC).replace(tzinfo=None)
