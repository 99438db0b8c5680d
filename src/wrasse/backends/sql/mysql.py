"""MySQL and MariaDB: keys sorted as binary, look-ups by lists and LIKE.

Their collations call different keys equal and sort by letters, so rows are asked for generously and compared byte by
byte here. Sessions are in UTC and speak ANSI SQL: "key" is a name, || joins texts.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from wrasse.backends.sql.dialect import Statement, column
from wrasse.errors import Refused

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from wrasse.backends.sql.link import Link
    from wrasse.ports.reference_rows import Source

KEYS_MAX = 1_000  # in one statement
_RANGES_MAX = 100
_NUMBERS = frozenset({0, 1, 2, 3, 4, 5, 8, 9, 13, 16, 246})  # of the types that the protocol has
_BINARY = 'CAST(CONVERT("key" USING utf8mb4) AS BINARY)'


class MySql:
    """The dialect."""

    connect_args: Mapping[str, object] = {"connect_timeout": 10, "read_timeout": 900, "charset": "utf8mb4"}

    def prepared(self, connection: Connection) -> Connection:
        """In UTC and in ANSI SQL; transactions are begun by hand."""
        for statement in (
            "SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES,PIPES_AS_CONCAT')",
            "SET SESSION time_zone = '+00:00'",
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        ):
            connection.exec_driver_sql(statement)
        connection.rollback()
        return connection

    def escaped(self, sql: str) -> str:
        return sql.replace("%", "%%")

    def begin(self, link: Link, seconds: float) -> datetime:
        ((replica, version),) = link.rows("SELECT @@global.read_only, VERSION()")
        link.end()
        if replica:
            raise Refused(
                f"{link.address.shown} is read-only, as replicas are: what it does not know yet looks like an orphan",
                do="name the primary",
            )
        link.run(_limit(str(version), seconds))
        link.run("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        ((at,),) = link.rows("SELECT UTC_TIMESTAMP(6)")
        assert isinstance(at, datetime), "UTC_TIMESTAMP is a time"
        return at.replace(tzinfo=UTC)

    def plain(self, source: Source, names: Sequence[tuple[str, object]]) -> str:
        here = frozenset(name for name, _ in names)
        if "key" not in here:
            raise source.missing_key()
        kind = next(kind for name, kind in names if name == "key")
        if kind in _NUMBERS:
            raise source.wrong_key("a number")
        rule = "'" + source.rule.replace("\\", "\\\\").replace("'", "''").replace("%", "%%") + "'"
        return (
            f'SELECT "key", {column("prefix", here, "0")} AS "prefix", '
            f'CAST({column("owner", here, "NULL")} AS CHAR) AS "owner", '
            f'COALESCE({column("rule", here, "NULL")}, {rule}) AS "rule", '
            f'CAST({column("ended_at", here, "NULL")} AS CHAR) AS "ended_at", '
            f'CAST({column("started_at", here, "NULL")} AS CHAR) AS "started_at" '
            f'FROM ({self.escaped(source.sql)}\n) s WHERE "key" IS NOT NULL'
        )

    def ordered(self, plain: str, key: str) -> Statement:
        where = f"{_BINARY} >= CAST(%(key)s AS BINARY)"
        return f"SELECT * FROM ({plain}) r WHERE {where} ORDER BY {_BINARY}, 2, 3, 4, 5, 6", {"key": key}

    def counted(self, plain: str) -> Statement:
        return f"SELECT count(*) FROM ({plain}) r WHERE %(all)s", {"all": True}

    def named(self, plain: str, keys: Sequence[str]) -> Iterator[Statement]:
        for start in range(0, len(keys), KEYS_MAX):
            yield f'SELECT * FROM ({plain}) r WHERE "key" IN %(keys)s', {"keys": list(keys[start : start + KEYS_MAX])}

    def below(self, plain: str, directories: Sequence[str], indexed: bool) -> Iterator[Statement]:
        for start in range(0, len(directories), _RANGES_MAX):
            some = directories[start : start + _RANGES_MAX]
            where = " OR ".join(f""""key" LIKE %(like{n})s ESCAPE '!'""" for n in range(len(some)))
            yield (
                f"SELECT * FROM ({plain}) r WHERE {where}",
                {f"like{n}": _escaped(each) + "%" for n, each in enumerate(some)},
            )

    def scans(self, link: Link, statement: Statement) -> bool:
        sql, values = statement
        result = link.connection.exec_driver_sql(f"EXPLAIN {sql}", values)
        return any(row["type"] == "ALL" and row["table"] is not None for row in result.mappings())

    def shut(self, driver: object) -> None:
        inner = getattr(driver, "_sock", None)
        if inner is not None:
            cast(socket.socket, inner).shutdown(socket.SHUT_RDWR)


def _limit(version: str, seconds: float) -> str:
    """How a session says after how long a statement is to be stopped: each of the two has a word of its own."""
    if "MariaDB" in version:
        return f"SET SESSION max_statement_time = {seconds:g}"
    return f"SET SESSION max_execution_time = {seconds * 1_000:.0f}"


def _escaped(text: str) -> str:
    for each in "!%_":
        text = text.replace(each, f"!{each}")
    return text
