"""Catalog: the references to objects, which say that an object is needed.

Promise. A snapshot is one consistent view of all references, in the byte order of their keys, with the database's
clock. `referenced` asks again, now, on the primary: it is the last check before something is deleted. An error is never
an empty answer, and a stream that ends early is an error.

Costs. A snapshot streams: one round trip per page and constant memory. referenced: one round trip per batch, by index.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from wrasse.clock import EPOCH
from wrasse.ports.guard import Guard
from wrasse.ports.page import Page


@dataclass(frozen=True, slots=True)
class Reference:
    """One row that names an object, or with `prefix` everything below it. A reference with `ended_at` protects
    nothing after its grace: the row was soft-deleted then. `started_at` says that an operation on the row began then
    and has not ended: for as long as a writer may take, the reference counts as one that has not ended either."""

    key: str
    prefix: bool = False
    owner: str = ""
    rule: str = ""  # which query or column it came from; shown by explain
    ended_at: datetime | None = None
    started_at: datetime | None = None

    @property
    def strength(self) -> tuple[bool, datetime, datetime]:
        """Of two references the one that protects longer is the greater: one that has not ended before one with an
        operation under way, and that before the last to end."""
        return self.ended_at is None, self.started_at or EPOCH, self.ended_at or EPOCH


@dataclass(frozen=True, slots=True)
class Query:
    """Where references are read: a SELECT with a column `key` and, where there is more to say, `prefix`, `owner`,
    `rule`, `ended_at` and `started_at`; or the name of a table with these columns. `rule` is what it is called where
    its rows do not say."""

    rule: str
    sql: str


class CatalogSnapshot(Protocol):
    """One consistent view of all references."""

    @property
    def at(self) -> datetime:
        """The database's clock when the view was opened."""
        ...

    async def page(self, after: str | None, limit: int) -> Page[Reference]:
        """References in the byte order of their keys."""
        ...


class Catalog(Protocol):
    """The references of one root."""

    def snapshot(self) -> AbstractAsyncContextManager[CatalogSnapshot]:
        """Opens one consistent view; it lasts until the context ends."""
        ...

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        """For each key the reference that protects it now, if any: one that names it, or one with `prefix` that it
        starts with. With `below`, also one whose own key starts with it: each key is then a directory, `a/b/`, and
        what protects anything in it protects all of it. Of several: one that has not ended, else one with
        `started_at`, else the one that ended last."""
        ...

    def leader(self, name: str) -> Guard | None:
        """A guard that lets only one process run, the leader under this name, on the connection that `referenced` asks
        on: they are lost together. None where the database has no locks of sessions."""
        ...
