"""The `workspaces` preset: the references of a table with `id`, `archive_key`, `op_id` and `deleted_at`. Pure.

A row protects the directory of its `archive_key`, and `<prefix><id>/<op_id>/` in every state, until it is soft-deleted
and no operation runs on it any more. The queries are plain SQL that every database understands.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from wrasse.errors import ConfigError
from wrasse.ports.catalog import Query

_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


@dataclass(frozen=True, slots=True)
class Workspaces:
    """The table: its name, the prefix of its keys, and which of the optional columns it has."""

    table: str = "workspaces"
    prefix: str = "archives/"
    columns: Collection[str] = ()

    def __post_init__(self) -> None:
        if not _TABLE.fullmatch(self.table):
            raise ConfigError(f"{self.table!r} is not a valid table name", do="write workspaces, or schema.workspaces")
        if "'" in self.prefix or "\\" in self.prefix:
            raise ConfigError(f"the prefix {self.prefix!r} cannot be used in a query", do="use plain characters")


def workspaces_queries(of: Workspaces, *, concat: str = "{} || {} || {} || {} || {}") -> tuple[Query, ...]:
    """The queries of the preset. `concat` joins five texts in the database; in MySQL: CONCAT({}, {}, {}, {}, {})."""
    started = "NULL"
    if "op_started_at" in of.columns:
        running = " AND operation <> 'NONE'" if "operation" in of.columns else ""
        started = f"CASE WHEN deleted_at IS NOT NULL{running} THEN op_started_at END"
    rest = f"deleted_at AS ended_at, {started} AS started_at FROM {of.table}"
    directory = concat.format(f"'{of.prefix}'", "id", "'/'", "op_id", "'/'")
    return (
        Query(
            "archive_key",
            f"SELECT archive_key AS \"key\", 0 AS prefix, id AS owner, 'archive_key' AS rule, {rest} "
            "WHERE archive_key IS NOT NULL AND archive_key <> ''",
        ),
        Query(
            "op_id",
            f"SELECT {directory} AS \"key\", 1 AS prefix, id AS owner, 'op_id' AS rule, {rest} "
            "WHERE op_id IS NOT NULL AND op_id <> ''",
        ),
    )
