"""PostgreSQL: keys by their bytes with collation "C", look-ups by arrays, one view per transaction.

An index on the key makes a look-up cheap; for "everything below a directory" it must be sorted by bytes, too:
CREATE INDEX ON workspaces (archive_key COLLATE "C"). Without one, a look-up reads the table once for a whole batch.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, cast

from wrasse.backends.sql.dialect import Params, Statement, after_directory, column
from wrasse.errors import Refused

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from wrasse.backends.sql.link import Link
    from wrasse.ports.reference_rows import Source

_TEXTS = {25: "text", 1043: "varchar", 1042: "char", 19: "name", 705: "unknown", 2950: "uuid"}
_OTHERS = {16: "a boolean", 17: "bytea", 20: "a number", 21: "a number", 23: "a number", 1700: "a number",
           114: "json", 3802: "json", 1082: "a date", 1114: "a time", 1184: "a time"}  # fmt: skip
_OWN_TYPES = 16_384  # types of extensions, citext for one, begin here
_BEGIN = """SELECT clock_timestamp(), pg_is_in_recovery(), current_setting('server_encoding'),
    set_config('TimeZone', 'UTC', true), set_config('statement_timeout', %(limit)s, true),
    set_config('idle_in_transaction_session_timeout', '0', true), set_config('DateStyle', 'ISO', true),
    set_config('jit', 'off', true)"""


class _Driver(Protocol):
    def fileno(self) -> int: ...


def array(texts: Sequence[str]) -> str:
    """The literal of an array of texts. The driver makes the same, text by text, in ten times the time."""
    inner = '","'.join(texts)
    if "\\" in inner or inner.count('"') != 2 * (len(texts) - 1):
        inner = '","'.join(text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return f'{{"{inner}"}}' if texts else "{}"


class Postgres:
    """The dialect."""

    # No statement is prepared: behind a pooler the next transaction may be another server's.
    connect_args: Mapping[str, object] = {
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
        """Read-only, and one view per transaction: of two statements the second must not see a reference move away
        that the first has not seen arrive."""
        return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def escaped(self, sql: str) -> str:
        return sql.replace("%", "%%")

    def begin(self, link: Link, seconds: float) -> datetime:
        ((at, replica, encoding, *_),) = link.rows(_BEGIN, {"limit": str(round(seconds * 1000))})
        if replica:
            raise Refused(
                f"{link.address.shown} is a replica: what it does not know yet looks like an orphan",
                do="name the primary; with several hosts: ?target_session_attrs=read-write",
            )
        if encoding != "UTF8":
            raise Refused(
                f"{link.address.shown} is in {encoding}, so its keys have another order than those of a store",
                do="name a database in UTF8",
            )
        assert isinstance(at, datetime), "clock_timestamp is a time"
        return at

    def plain(self, source: Source, names: Sequence[tuple[str, object]]) -> str:
        here = frozenset(name for name, _ in names)
        if "key" not in here:
            raise source.missing_key()
        kind = cast(int, next(kind for name, kind in names if name == "key"))
        if kind not in _TEXTS and kind < _OWN_TYPES:
            raise source.wrong_key(_OTHERS.get(kind, f"of type {kind}"))
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

    def counted(self, plain: str) -> Statement:
        # With a parameter, since only then `%%` is read as `%`.
        return f"SELECT count(*) FROM ({plain}) r WHERE %(all)s", {"all": True}

    def named(self, plain: str, keys: Sequence[str]) -> Iterator[Statement]:
        # By bytes, as the look below a directory, so that one index serves both.
        yield f'SELECT * FROM ({plain}) r WHERE "key" COLLATE "C" = ANY(%(keys)s::text[])', {"keys": array(keys)}

    def below(self, plain: str, directories: Sequence[str], indexed: bool) -> Iterator[Statement]:
        ranges: Params = {"low": array(directories), "high": array([after_directory(each) for each in directories])}
        if indexed:
            yield (
                "SELECT r.* FROM unnest(%(low)s::text[], %(high)s::text[]) AS d(low, high) CROSS JOIN LATERAL "
                f'(SELECT * FROM ({plain}) p WHERE "key" COLLATE "C" > d.low AND "key" COLLATE "C" < d.high) r',
                ranges,
            )
            return
        # One pass over the table for all of them: which range a key may be in is found by bisection.
        yield (
            f'SELECT * FROM ({plain}) r WHERE "key" COLLATE "C" < '
            '(%(high)s::text[])[width_bucket("key" COLLATE "C", %(low)s::text[])]',
            ranges,
        )

    def scans(self, link: Link, statement: Statement) -> bool:
        sql, values = statement
        return any("Seq Scan" in str(row[0]) for row in link.rows(f"EXPLAIN {sql}", values))

    def shut(self, driver: object) -> None:
        copy = socket.socket(fileno=os.dup(cast(_Driver, driver).fileno()))
        try:
            copy.shutdown(socket.SHUT_RDWR)
        finally:
            copy.close()
