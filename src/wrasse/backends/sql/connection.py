"""A connection to a database, used by one thread, each call for a bounded time.

The drivers block, so their calls run in a thread. If a call takes too long its socket is shut down, which wakes the
thread with an error: no thread stays blocked, and no late answer counts as that of a later query. After any error the
connection is closed, and the next call opens another.

Only this file knows the exceptions of SQLAlchemy and its drivers. Of a server's message only the first line is shown:
later ones may quote rows and parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from wrasse.backends.sql.address import SqlAddress
from wrasse.backends.sql.dialect import Params, dialect_of
from wrasse.errors import ConfigError, StoreBroken, StoreFull, StoreUnavailable, WrasseError

if TYPE_CHECKING:
    from sqlalchemy import Connection

T = TypeVar("T")
STREAM_ROWS = 5_000
_SHUT_MAX = 5.0  # seconds for a thread to notice that its socket was shut down
_RIGHTS = ("42501", "28000", "28P01", "3D000", "1044", "1045", "1049", "1142", "1143", "1227")
_QUERY = ("42", "0A", "1054", "1064", "1146", "1052", "1305")
_TIMEOUT = ("57014", "25P03", "1969", "3024")
_FULL = ("53100", "1021", "1114")
_ODD_VALUE = ("22", "1292", "1366")
_RETRY = "check that the server is up; nothing was changed, and it is tried again"


class SqlThread:
    """The one thread of a catalog or of sightings."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._closed = False

    async def run(self, call: Callable[[], T], connection: SqlConnection, limit: float) -> T:
        """Runs a call there, to its end even if its caller was cancelled."""
        if self._closed:
            raise closed(connection.address.shown)
        future = asyncio.wrap_future(self._pool.submit(call))
        cancelled: asyncio.CancelledError | None = None
        late = False
        while not future.done():
            try:
                await asyncio.wait({future}, timeout=_SHUT_MAX if late or cancelled else limit)
            except asyncio.CancelledError as why:
                cancelled = why
            if not future.done():
                connection.shut()
                late = True
        if cancelled is not None:
            future.exception()
            raise cancelled
        if late and future.exception() is not None:
            raise too_slow(connection.address.shown, limit) from future.exception()
        return future.result()

    async def close(self) -> None:
        """Ends the thread."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._pool.shutdown)


class SqlConnection:
    """One connection, opened when it is first needed. All methods but `shut` are for the thread."""

    def __init__(self, address: SqlAddress, *, writes: bool = False) -> None:
        self.address = address
        self.dialect = dialect_of(address.kind)
        self.opened = 0  # the number of connections so far: another number means another session
        self._writes = writes
        self.was_shut = False  # whether the last connection was shut down during a call
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The connection, opened if needed."""
        if self._connection is None:
            self._connection = _connect(self.address, self._writes)
            self.opened += 1
            self.was_shut = False
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as known."""
        return self._connection is not None

    def guarded(self, call: Callable[[], T]) -> T:
        """The call's result; an error closes the connection, and is mapped to ours."""
        try:
            return call()
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                said = ours(error, self.address.shown)
                if said is not error:
                    raise said from error
            raise

    def rows(self, sql: str, values: Params | None = None) -> Sequence[Sequence[object]]:
        """All rows of a small answer."""
        return self.connection.exec_driver_sql(sql, values).fetchall()

    def run(self, sql: str, values: Params | None = None) -> int:
        """Runs a statement; returns the number of changed rows."""
        return self.connection.exec_driver_sql(sql, values).rowcount

    def stream(self, sql: str, values: Params | None = None) -> Iterator[Sequence[Sequence[object]]]:
        """The rows of a large answer, in blocks of some thousand."""
        options = {"stream_results": True, "max_row_buffer": STREAM_ROWS}
        result = self.connection.exec_driver_sql(sql, values, execution_options=options)
        try:
            yield from result.partitions(STREAM_ROWS)
        finally:
            result.close()

    def names(self, sql: str) -> Sequence[tuple[str, object]]:
        """Names of the columns of a SELECT, lower-cased, each with the driver's type code."""
        result = self.connection.exec_driver_sql(f"SELECT * FROM ({self.dialect.escaped(sql)}\n) s LIMIT 0")
        try:
            assert result.cursor is not None, "a SELECT has columns"
            return [(str(each[0]).lower(), each[1]) for each in result.cursor.description]
        finally:
            result.close()

    def end(self) -> None:
        """Rolls the transaction back, unless it was committed."""
        if self._connection is not None:
            self._connection.rollback()

    def close(self) -> None:
        """Closes the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # It may be broken, and is closed anyway: errors here add nothing.
            with suppress(*_broken()):
                connection.invalidate()
            with suppress(*_broken()):
                connection.close()

    def shut(self) -> None:
        """Wakes the thread that waits for the server. From any thread."""
        connection = self._connection
        self.was_shut = True
        if connection is not None:
            with suppress(*_broken()):
                self.dialect.shut(connection.connection.driver_connection)


def _broken() -> tuple[type[Exception], ...]:
    """The exceptions of a connection that is closed already."""
    from sqlalchemy.exc import SQLAlchemyError

    return (SQLAlchemyError, OSError, ValueError, AttributeError)


def _connect(address: SqlAddress, writes: bool) -> Connection:
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError
        from sqlalchemy.pool import NullPool
    except ModuleNotFoundError as missing:
        raise ConfigError(f"{address.shown} needs the package {missing.name}", do=address.extra) from missing
    dialect = dialect_of(address.kind)
    try:
        engine = create_engine(address.url, poolclass=NullPool, connect_args=dict(dialect.connect_args))
        connection = engine.connect()
        return connection if writes else dialect.prepared(connection)
    except ModuleNotFoundError as missing:
        raise ConfigError(f"{address.shown} needs the package {missing.name}", do=address.extra) from missing
    except (ArgumentError, ValueError):
        raise ConfigError(
            f"the URL of {address.shown} cannot be parsed", do="see SQLAlchemy's documentation of URLs"
        ) from None


def ours(error: Exception, where: str) -> Exception:
    """Our error for one of SQLAlchemy's or of a driver's; other exceptions are returned unchanged."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    if isinstance(error, WrasseError):
        return error
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    of_driver = type(original).__module__.split(".")[0] in ("psycopg", "pymysql")
    return _said(original, where) if of_driver or isinstance(error, SQLAlchemyError) else error


def _said(error: BaseException, where: str) -> WrasseError:
    code, line = _code(error), _first_line(error)
    if code.startswith(_TIMEOUT):
        return StoreUnavailable(
            f"{where} stopped a query that took too long", do="see `wrasse doctor`: a query may need an index"
        )
    if code in _RIGHTS:
        return ConfigError(f"{where} refuses this user: {line}", do="check the URL, and GRANT SELECT to its user")
    if code.startswith(_QUERY):
        return ConfigError(f"{where} refuses a query: {line}", do="try the query in a shell of that database")
    if code in _FULL:
        return StoreFull(f"there is no room left in {where}", do="free some space; nothing was changed")
    if code.startswith(_ODD_VALUE) or type(error).__name__ == "DataError":
        return StoreBroken(
            f"{where} sent a value that cannot be read (error {code or type(error).__name__})",
            do="look for invalid times, prefixes that are not numbers, and keys that are not texts",
        )
    return StoreUnavailable(f"{where} failed: {line}", do=_RETRY)


def _code(error: BaseException) -> str:
    """The SQLSTATE of PostgreSQL, or MySQL's number."""
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return state
    first = error.args[0] if error.args else None
    return str(first) if isinstance(first, int) else ""


def _first_line(error: BaseException) -> str:
    text = str(error.args[-1] if error.args else error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def too_slow(where: str, seconds: float) -> StoreUnavailable:
    """The time limit of a call has passed."""
    return StoreUnavailable(f"{where} did not answer in {seconds:.0f} s", do=_RETRY)


def closed(where: str) -> StoreUnavailable:
    """A call after close."""
    return StoreUnavailable(f"the connection to {where} is closed", do="open it again")
