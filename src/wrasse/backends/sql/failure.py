"""What went wrong in a database, in our words. The only place that knows the exceptions of SQLAlchemy and its drivers.

A message of the server is shown by its first line alone: what follows may quote rows and parameters.
"""

from __future__ import annotations

from wrasse.errors import ConfigError, StoreBroken, StoreFull, StoreUnavailable, WrasseError

_RIGHTS = ("42501", "28000", "28P01", "3D000", "1044", "1045", "1049", "1142", "1143", "1227")
_QUERY = ("42", "0A", "1054", "1064", "1146", "1052", "1305")
_TIMEOUT = ("57014", "25P03", "1969", "3024")
_FULL = ("53100", "1021", "1114")
_ODD_VALUE = ("22", "1292", "1366")
_RETRY = "check that the server is up; nothing was changed, and it is tried again"


def ours(error: Exception, where: str) -> Exception:
    """Our error for one of SQLAlchemy's or of a driver's; what is no error of the database stays what it is."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    if isinstance(error, WrasseError):
        return error
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if isinstance(error, SQLAlchemyError) or _of_driver(original):
        return _said(original, where)
    return error


def _of_driver(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in ("psycopg", "pymysql", "sqlite3")


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
            f"{where} gave a value that cannot be read (error {code or type(error).__name__})",
            do="look for odd times, prefixes that are no number, and keys that are no text",
        )
    if "no such table" in line or "no such column" in line or "syntax error" in line:
        return ConfigError(f"{where} refuses a query: {line}", do="try the query in a shell of that database")
    return StoreUnavailable(f"{where} did not answer as it should: {line}", do=_RETRY)


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
    """The time a call may take is over."""
    return StoreUnavailable(f"{where} did not answer in {seconds:.0f} s", do=_RETRY)


def closed(where: str) -> StoreUnavailable:
    """Somebody asks after close."""
    return StoreUnavailable(f"the connection to {where} is closed", do="open it again")
