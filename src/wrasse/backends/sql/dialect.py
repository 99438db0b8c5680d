"""Differences between databases: opening a view, sorting keys by their bytes, looking keys up.

PostgreSQL: keys by their bytes with collation "C", lookups by arrays, one view per transaction. An index on the key
makes a lookup cheap; for "everything below a directory" it must be sorted by bytes, too: CREATE INDEX ON workspaces
(archive_key COLLATE "C"). Without one, a lookup reads the table once per batch.

MySQL and MariaDB: keys sorted as binary, lookups by lists and LIKE. Their collations treat different keys as equal and
sort by letters, so more rows than needed are selected and compared byte by byte here. Sessions are in UTC and use ANSI
SQL: "key" is a name, || joins texts.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from wrasse.backends.sql.address import POSTGRES
from wrasse.errors import Refused

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from wrasse.backends.sql.connection import SqlConnection
    from wrasse.ports.rules.reference_rows import Source

Params = dict[str, object]
Statement = tuple[str, Params]
KEYS_MAX = 1_000  # in one statement of MySQL
_POSTGRES_TEXTS = {25: "text", 1043: "varchar", 1042: "char", 19: "name", 705: "unknown", 2950: "uuid"}
_POSTGRES_OTHERS = {16: "a boolean", 17: "bytea", 20: "a number", 21: "a number", 23: "a number", 1700: "a number",
           114: "json", 3802: "json", 1082: "a date", 1114: "a time", 1184: "a time"}  # fmt: skip
_POSTGRES_OWN_TYPES = 16_384  # types of extensions, such as citext, begin here
_POSTGRES_BEGIN = """SELECT clock_timestamp(), pg_is_in_recovery(), current_setting('server_encoding'),
    set_config('TimeZone', 'UTC', true), set_config('statement_timeout', %(limit)s, true),
    set_config('idle_in_transaction_session_timeout', '0', true), set_config('DateStyle', 'ISO', true),
    set_config('jit', 'off', true)"""
_RANGES_MAX = 100
_MYSQL_NUMBERS = frozenset({0, 1, 2, 3, 4, 5, 8, 9, 13, 16, 246})  # numeric type codes of the protocol
_MYSQL_KEY = 'CAST(CONVERT("key" USING utf8mb4) AS BINARY)'


class Dialect(ABC):
    """One kind of database. Statements select the six columns of a row, in their order."""

    connect_args: ClassVar[Mapping[str, object]]  # arguments of the driver when it connects

    @abstractmethod
    def prepared(self, connection: Connection) -> Connection:
        """A new connection, set up for reading."""

    @abstractmethod
    def begin(self, connection: SqlConnection, seconds: float) -> datetime:
        """Opens one consistent read-only view, refuses a replica, limits statements to `seconds`, and returns the
        server's time."""

    @abstractmethod
    def plain(self, source: Source, names: Sequence[tuple[str, object]]) -> str:
        """A SELECT of the six columns from a source with these columns, with types that match in a UNION."""

    @abstractmethod
    def ordered(self, plain: str, key: str) -> Statement:
        """All rows from this key on, in the byte order of keys."""

    @abstractmethod
    def named(self, plain: str, keys: Sequence[str]) -> Iterator[Statement]:
        """All rows with one of these keys, and possibly others."""

    @abstractmethod
    def below(self, plain: str, directories: Sequence[str], indexed: bool) -> Iterator[Statement]:
        """All rows below one of these directories, which are in order and not nested, and possibly others. `indexed`:
        an index can be used."""

    @abstractmethod
    def scans(self, connection: SqlConnection, statement: Statement) -> bool:
        """Whether the statement would read a whole table."""

    @abstractmethod
    def shut(self, driver: object) -> None:
        """Wakes the thread that waits for the server."""

    def escaped(self, sql: str) -> str:
        """A user's SQL in the form the drivers need: they look for parameters in every text."""
        return sql.replace("%", "%%")

    def counted(self, plain: str) -> Statement:
        """The number of rows."""
        # With a parameter, since only then the driver reads `%%` as `%`.
        return f"SELECT count(*) FROM ({plain}) r WHERE %(all)s", {"all": True}


class _Driver(Protocol):
    def fileno(self) -> int: ...


def array(texts: Sequence[str]) -> str:
    """The literal of an array of texts. The driver makes the same, text by text, in ten times the time."""
    inner = '","'.join(texts)
    if "\\" in inner or inner.count('"') != 2 * (len(texts) - 1):
        inner = '","'.join(text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return f'{{"{inner}"}}' if texts else "{}"


class Postgres(Dialect):
    """PostgreSQL."""

    # No statement is prepared: behind a pooler the next transaction may use another server session.
    connect_args: ClassVar[Mapping[str, object]] = {
        "connect_timeout": 10,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
        "application_name": "wrasse",
        "client_encoding": "utf8",
        "prepare_threshold": None,
    }

    def prepared(self, connection: Connection) -> Connection:
        """Read-only, and one view per transaction: of two statements the second must not miss a reference that moved
        after the first one ran."""
        return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def begin(self, connection: SqlConnection, seconds: float) -> datetime:
        ((at, replica, encoding, *_),) = connection.rows(_POSTGRES_BEGIN, {"limit": str(round(seconds * 1000))})
        if replica:
            raise Refused(
                f"{connection.address.shown} is a replica: references that it has not received yet look like orphans",
                do="name the primary; with several hosts: ?target_session_attrs=read-write",
            )
        if encoding != "UTF8":
            raise Refused(
                f"{connection.address.shown} is in {encoding}, so its keys have another order than those of a store",
                do="name a database in UTF8",
            )
        assert isinstance(at, datetime), "clock_timestamp is a time"
        return at

    def plain(self, source: Source, names: Sequence[tuple[str, object]]) -> str:
        here = frozenset(name for name, _ in names)
        if "key" not in here:
            raise source.missing_key()
        kind = cast(int, next(kind for name, kind in names if name == "key"))
        if kind not in _POSTGRES_TEXTS and kind < _POSTGRES_OWN_TYPES:
            raise source.wrong_key(_POSTGRES_OTHERS.get(kind, f"of type {kind}"))
        rule = "'" + source.rule.replace("'", "''").replace("%", "%%") + "'"
        return (
            f'SELECT "key"::text AS "key", {column("prefix", here, "0")}::int AS "prefix", '
            f'{column("owner", here, "NULL")}::text AS "owner", coalesce({column("rule", here, "NULL")}::text, {rule}) '
            f'AS "rule", {column("ended_at", here, "NULL")}::text AS "ended_at", '
            f'{column("started_at", here, "NULL")}::text AS "started_at" '
            f'FROM ({self.escaped(source.sql)}\n) s WHERE "key" IS NOT NULL'
        )

    def ordered(self, plain: str, key: str) -> Statement:
        where = '"key" COLLATE "C" >= %(key)s'
        return f'SELECT * FROM ({plain}) r WHERE {where} ORDER BY "key" COLLATE "C", 2, 3, 4, 5, 6', {"key": key}

    def named(self, plain: str, keys: Sequence[str]) -> Iterator[Statement]:
        # By bytes, like the lookup below a directory, so that one index serves both.
        yield f'SELECT * FROM ({plain}) r WHERE "key" COLLATE "C" = ANY(%(keys)s::text[])', {"keys": array(keys)}

    def below(self, plain: str, directories: Sequence[str], indexed: bool) -> Iterator[Statement]:
        # The first key after everything below a directory: `0` is the byte after the slash.
        ranges: Params = {"low": array(directories), "high": array([f"{each[:-1]}0" for each in directories])}
        if indexed:
            yield (
                "SELECT r.* FROM unnest(%(low)s::text[], %(high)s::text[]) AS d(low, high) CROSS JOIN LATERAL "
                f'(SELECT * FROM ({plain}) p WHERE "key" COLLATE "C" > d.low AND "key" COLLATE "C" < d.high) r',
                ranges,
            )
            return
        # One pass over the table for all of them: the range that a key may be in is found by bisection.
        yield (
            f'SELECT * FROM ({plain}) r WHERE "key" COLLATE "C" < '
            '(%(high)s::text[])[width_bucket("key" COLLATE "C", %(low)s::text[])]',
            ranges,
        )

    def scans(self, connection: SqlConnection, statement: Statement) -> bool:
        sql, values = statement
        return any("Seq Scan" in str(row[0]) for row in connection.rows(f"EXPLAIN {sql}", values))

    def shut(self, driver: object) -> None:
        copy = socket.socket(fileno=os.dup(cast(_Driver, driver).fileno()))
        try:
            copy.shutdown(socket.SHUT_RDWR)
        finally:
            copy.close()


class MySql(Dialect):
    """MySQL and MariaDB."""

    connect_args: ClassVar[Mapping[str, object]] = {"connect_timeout": 10, "read_timeout": 900, "charset": "utf8mb4"}

    def prepared(self, connection: Connection) -> Connection:
        """In UTC and in ANSI SQL; transactions are begun explicitly."""
        for statement in (
            "SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES,PIPES_AS_CONCAT')",
            "SET SESSION time_zone = '+00:00'",
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        ):
            connection.exec_driver_sql(statement)
        connection.rollback()
        return connection

    def begin(self, connection: SqlConnection, seconds: float) -> datetime:
        ((replica, version),) = connection.rows("SELECT @@global.read_only, VERSION()")
        connection.end()
        if replica:
            raise Refused(
                f"{connection.address.shown} is read-only, as replicas are: "
                "references that it has not received yet look like orphans",
                do="name the primary",
            )
        connection.run(_limit(str(version), seconds))
        connection.run("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        ((at,),) = connection.rows("SELECT UTC_TIMESTAMP(6)")
        assert isinstance(at, datetime), "UTC_TIMESTAMP is a time"
        return at.replace(tzinfo=UTC)

    def plain(self, source: Source, names: Sequence[tuple[str, object]]) -> str:
        here = frozenset(name for name, _ in names)
        if "key" not in here:
            raise source.missing_key()
        kind = next(kind for name, kind in names if name == "key")
        if kind in _MYSQL_NUMBERS:
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
        where = f"{_MYSQL_KEY} >= CAST(%(key)s AS BINARY)"
        return f"SELECT * FROM ({plain}) r WHERE {where} ORDER BY {_MYSQL_KEY}, 2, 3, 4, 5, 6", {"key": key}

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

    def scans(self, connection: SqlConnection, statement: Statement) -> bool:
        sql, values = statement
        result = connection.connection.exec_driver_sql(f"EXPLAIN {sql}", values)
        return any(row["type"] == "ALL" and row["table"] is not None for row in result.mappings())

    def shut(self, driver: object) -> None:
        inner = getattr(driver, "_sock", None)
        if inner is not None:
            cast(socket.socket, inner).shutdown(socket.SHUT_RDWR)


def _limit(version: str, seconds: float) -> str:
    """The statement that limits the time of statements: MySQL and MariaDB have different variables."""
    if "MariaDB" in version:
        return f"SET SESSION max_statement_time = {seconds:g}"
    return f"SET SESSION max_execution_time = {seconds * 1_000:.0f}"


def _escaped(text: str) -> str:
    for each in "!%_":
        text = text.replace(each, f"!{each}")
    return text


def dialect_of(kind: str) -> Dialect:
    """The dialect of a kind of database."""
    return Postgres() if kind == POSTGRES else MySql()


def column(name: str, names: frozenset[str], default: str) -> str:
    """A column by its name, or its default if the source has none."""
    return f'"{name}"' if name in names else default
