"""Rows of a user's query as references. Pure, and strict: a reference that is missed means a deleted archive.

A source is a table or a SELECT with a column `key` and, optionally, `prefix` (everything below the key), `owner`,
`rule`, and `ended_at` and `started_at` (times or Unix seconds). A NULL key refers to nothing. A time without a zone is
UTC: sessions are set to it.

Times are strict too: one that is read too early ends a reference that still counts. So a time before 1980 is refused,
because it means something else: 0 that the row was never deleted, and 20260214 the 14th of February.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from wrasse.clock import EPOCH
from wrasse.errors import ConfigError, StoreBroken
from wrasse.ports.catalog import Query, Reference

REFERENCE_TIME = "an ISO time, Unix seconds, or NULL; and NULL where 0 or an early date stands for none"
_SECONDS = re.compile(r"-?\d{1,11}(\.\d+)?")
_SECONDS_MAX = 100_000_000_000  # more than this are milliseconds
_EARLIEST = datetime(1980, 1, 1, tzinfo=UTC)
COLUMNS = ("key", "prefix", "owner", "rule", "ended_at", "started_at")
_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")
_FORMS = {"key": "a text", "prefix": "0 or 1", "ended_at": REFERENCE_TIME, "started_at": REFERENCE_TIME}


def reference_time(value: object) -> datetime:
    """The instant, in UTC where it names no zone; ValueError if it is no time or too early to be one."""
    instant = _instant(value)
    if instant < _EARLIEST:
        raise ValueError(value)
    return instant


def _instant(value: object) -> datetime:
    match value:
        case datetime():
            return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        case date():
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        case int() | float() | Decimal() if abs(float(value)) < _SECONDS_MAX:
            return EPOCH + timedelta(seconds=float(value))
        case str() if _SECONDS.fullmatch(value):
            return _instant(float(value))
        case str():
            return _instant(datetime.fromisoformat(value))
        case _:
            raise ValueError(value)


@dataclass(frozen=True, slots=True)
class Source:
    """Where references come from: a SELECT, its name in messages, and its database."""

    sql: str
    rule: str
    where: str

    @classmethod
    def of(cls, query: Query, where: str) -> Source:
        """The source that a table's name or a SELECT stands for."""
        text = query.sql.strip().rstrip(";").rstrip()
        if _TABLE.fullmatch(text):
            quoted = ".".join(f'"{part}"' for part in text.split("."))
            rule = f"table {text}" if query.rule.startswith("query") else query.rule
            return cls(f"SELECT * FROM {quoted}", rule, where)
        return cls(text, query.rule, where)

    def columns(self, names: frozenset[str], defaults: Mapping[str, str]) -> str:
        """The select list for a source with these columns, in the order of COLUMNS."""
        if "key" not in names:
            raise self.missing_key()
        return ", ".join(f'"{name}"' if name in names else f'{defaults[name]} AS "{name}"' for name in COLUMNS)

    def missing_key(self) -> ConfigError:
        """The error for a source without a column `key`."""
        return ConfigError(
            f"the {self.rule} of {self.where} has no column 'key'",
            do='write a SELECT that names one: SELECT archive AS "key" FROM ...',
        )

    def wrong_key(self, kind: str) -> ConfigError:
        """The error for a column `key` that is not text."""
        return ConfigError(
            f"the column 'key' of the {self.rule} of {self.where} is {kind}, not a text",
            do='turn it into the whole key, as the store has it: SELECT CAST(... AS TEXT) AS "key"',
        )

    def reference(self, row: Sequence[object]) -> Reference:
        """The reference in a row of the six columns."""
        key, prefix, owner, rule, ended_at, started_at = row
        if type(key) is not str:
            raise self._odd("key", key)
        if prefix not in (0, 1, None):
            raise self._odd("prefix", prefix)
        return Reference(
            key,
            bool(prefix),
            "" if owner is None else str(owner),
            self.rule if rule is None else str(rule),
            None if ended_at is None else self._instant("ended_at", ended_at),
            None if started_at is None else self._instant("started_at", started_at),
        )

    def _instant(self, column: str, value: object) -> datetime:
        try:
            return reference_time(value)
        except ValueError:
            raise self._odd(column, value) from None

    def _odd(self, column: str, value: object) -> StoreBroken:
        # A key is never shown: errors reach logs.
        shown = f"a {type(value).__name__}" if column == "key" else f"{value!r:.80}"
        return StoreBroken(
            f"the column {column!r} of the {self.rule} of {self.where} holds {shown}", do=f"make it {_FORMS[column]}"
        )
