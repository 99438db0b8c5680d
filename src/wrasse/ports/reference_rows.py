"""Rows of a user's query as references. Pure, and strict: a reference that was passed over is an archive deleted.

A source is a table or a SELECT with a column `key` and, where there is more to say, `prefix` (everything below the
key), `owner`, `rule`, and `ended_at` and `started_at` (times or Unix seconds). A NULL key refers to nothing. A time
without a zone is UTC: sessions are set to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from wrasse.errors import ConfigError, StoreBroken
from wrasse.ports.catalog import Query, Reference
from wrasse.ports.reference_times import REFERENCE_TIME, reference_time

COLUMNS = ("key", "prefix", "owner", "rule", "ended_at", "started_at")
_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")
_FORMS = {"key": "a text", "prefix": "0 or 1", "ended_at": REFERENCE_TIME, "started_at": REFERENCE_TIME}


@dataclass(frozen=True, slots=True)
class Source:
    """Where references come from: a SELECT, how a person calls it, and in which database it is."""

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
        """What to select of a source with these columns, in the order of a row and under their names."""
        if "key" not in names:
            raise self.missing_key()
        return ", ".join(f'"{name}"' if name in names else f'{defaults[name]} AS "{name}"' for name in COLUMNS)

    def missing_key(self) -> ConfigError:
        """It has no column `key`."""
        return ConfigError(
            f"the {self.rule} of {self.where} has no column 'key'",
            do='write a SELECT that names one: SELECT archive AS "key" FROM ...',
        )

    def wrong_key(self, kind: str) -> ConfigError:
        """Its column `key` is no text."""
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
