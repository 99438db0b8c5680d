"""Rows of a user's query as references. Pure, and strict: a reference that was passed over is an archive deleted.

The source is a table or a SELECT with a column `key` and, where there is more to say, `prefix` (everything below the
key), `owner`, `rule`, and `ended_at` and `started_at` (ISO times or Unix seconds). A NULL key refers to nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from wrasse.errors import ConfigError, StoreBroken
from wrasse.ports.catalog import Reference
from wrasse.ports.reference_times import REFERENCE_TIME, reference_time

Row = tuple[object, object, object, object, object, object]

_TABLE = re.compile(r"[A-Za-z_]\w*")
_OPTIONAL = {"prefix": "0", "owner": "''", "rule": "NULL", "ended_at": "NULL", "started_at": "NULL"}
_FORMS = {"key": "a text", "prefix": "0 or 1", "ended_at": REFERENCE_TIME, "started_at": REFERENCE_TIME}


@dataclass(frozen=True, slots=True)
class Source:
    """Where references come from: a SELECT, how a person calls it, and in which database it is."""

    sql: str
    rule: str
    where: str

    @classmethod
    def of(cls, text: str, where: str, rule: str = "query") -> Source:
        """The source that a table's name or a SELECT stands for."""
        text = text.strip().rstrip(";")
        if _TABLE.fullmatch(text):
            return cls(f'SELECT * FROM "{text}"', f"table {text}", where)
        return cls(text, rule, where)

    def columns(self, names: frozenset[str]) -> str:
        """What to select of a source with these columns: the six of a row."""
        if "key" not in names:
            raise ConfigError(
                f"the {self.rule} of the catalog {self.where} has no column 'key'",
                do="write a SELECT that names one: SELECT archive AS key FROM ...",
            )
        return ", ".join(["key", *(name if name in names else _OPTIONAL[name] for name in _OPTIONAL)])

    def all_columns(self, names: frozenset[str]) -> str:
        """The SELECT with every column of a row, under its name, from a source that has these."""
        self.columns(names)
        plain = {**_OPTIONAL, "rule": "'" + self.rule.replace("'", "''") + "'"}
        shown = ", ".join(name if name in names else f"{plain[name]} AS {name}" for name in ("key", *_OPTIONAL))
        return f"SELECT {shown} FROM ({self.sql}\n)"

    def reference(self, row: Row) -> Reference:
        """The reference in a row."""
        key, prefix, owner, rule, ended_at, started_at = row
        if isinstance(key, bytes):
            key = key.decode("utf-8", "surrogateescape")
        if not isinstance(key, str):
            raise self._odd("key", key)
        if prefix not in (0, 1, None):
            raise self._odd("prefix", prefix)
        return Reference(
            key=key,
            prefix=bool(prefix),
            owner="" if owner is None else str(owner),
            rule=self.rule if rule is None else str(rule),
            ended_at=self._instant("ended_at", ended_at),
            started_at=self._instant("started_at", started_at),
        )

    def _instant(self, column: str, value: object) -> datetime | None:
        try:
            return None if value is None else reference_time(value)
        except ValueError:
            raise self._odd(column, value) from None

    def _odd(self, column: str, value: object) -> StoreBroken:
        return StoreBroken(
            f"the column {column!r} of the {self.rule} of the catalog {self.where} holds {value!r:.80}",
            do=f"make it {_FORMS[column]}",
        )
