"""SQLite through SQLAlchemy, for URLs that ask for it by `sqlite+pysqlite:`; `sqlite:` has a catalog of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, cast

from wrasse.backends.sql.dialect import Statement, after_directory, column
from wrasse.clock import SystemClock
from wrasse.errors import Refused

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from wrasse.backends.sql.link import Link
    from wrasse.backends.sql.rows import Source

KEYS_MAX = 500  # in one statement
_RANGES_MAX = 100


class Sqlite:
    """The dialect."""

    connect_args: Mapping[str, object] = {"timeout": 10.0, "check_same_thread": False}

    def prepared(self, connection: Connection) -> Connection:
        """Read-only."""
        connection.exec_driver_sql("PRAGMA query_only = 1")
        connection.rollback()
        return connection

    def escaped(self, sql: str) -> str:
        return sql

    def begin(self, link: Link, seconds: float) -> datetime:
        if link.rows("PRAGMA encoding")[0][0] != "UTF-8":
            raise Refused(
                f"{link.address.shown} is not in UTF-8, so its keys have another order",
                do="name a copy of it in UTF-8, as `.dump` makes one",
            )
        link.run("BEGIN")
        link.rows("SELECT count(*) FROM sqlite_schema")  # the first read fixes the view
        return SystemClock().now()  # there is no server: the machine's clock is the database's

    def plain(self, source: Source, names: Sequence[tuple[str, object]]) -> str:
        here = frozenset(name for name, _ in names)
        if "key" not in here:
            raise source.missing_key()
        rule = "'" + source.rule.replace("'", "''") + "'"
        return (
            f'SELECT "key", {column("prefix", here, "0")} AS "prefix", {column("owner", here, "NULL")} AS "owner", '
            f'coalesce({column("rule", here, "NULL")}, {rule}) AS "rule", '
            f'{column("ended_at", here, "NULL")} AS "ended_at", {column("started_at", here, "NULL")} AS "started_at" '
            f'FROM ({source.sql}\n) s WHERE "key" IS NOT NULL'
        )

    def ordered(self, plain: str, key: str) -> Statement:
        # Without a condition at the start, so that a key of another type than text is seen, and refused.
        where = '"key" >= :key' if key else "length(:key) = 0"
        return f'SELECT * FROM ({plain}) r WHERE {where} ORDER BY "key" COLLATE BINARY, 2, 3, 4, 5, 6', {"key": key}

    def counted(self, plain: str) -> Statement:
        return f"SELECT count(*) FROM ({plain}) r WHERE :every", {"every": 1}

    def named(self, plain: str, keys: Sequence[str]) -> Iterator[Statement]:
        for start in range(0, len(keys), KEYS_MAX):
            some = keys[start : start + KEYS_MAX]
            where = ", ".join(f":k{n}" for n in range(len(some)))
            yield f'SELECT * FROM ({plain}) r WHERE "key" IN ({where})', {f"k{n}": key for n, key in enumerate(some)}

    def below(self, plain: str, directories: Sequence[str], indexed: bool) -> Iterator[Statement]:
        for start in range(0, len(directories), _RANGES_MAX):
            some = directories[start : start + _RANGES_MAX]
            where = " OR ".join(f'"key" > :low{n} AND "key" < :high{n}' for n in range(len(some)))
            low = {f"low{n}": each for n, each in enumerate(some)}
            high = {f"high{n}": after_directory(each) for n, each in enumerate(some)}
            yield f"SELECT * FROM ({plain}) r WHERE {where}", {**low, **high}

    def scans(self, link: Link, statement: Statement) -> bool:
        sql, values = statement
        return any("SCAN" in str(row[3]) for row in link.rows(f"EXPLAIN QUERY PLAN {sql}", values))

    def shut(self, driver: object) -> None:
        cast(sqlite3.Connection, driver).interrupt()
