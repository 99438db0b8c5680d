"""What differs between databases: how a view is opened, how keys are sorted by their bytes, how many are looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from wrasse.backends.sql.address import POSTGRES

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from wrasse.backends.sql.link import Link
    from wrasse.ports.reference_rows import Source

Params = dict[str, object]
Statement = tuple[str, Params]


class Dialect(Protocol):
    """One kind of database. Statements select the six columns of a row, in their order."""

    @property
    def connect_args(self) -> Mapping[str, object]:
        """What the driver is told when it connects."""
        ...

    def prepared(self, connection: Connection) -> Connection:
        """A new connection, set for reading."""
        ...

    def escaped(self, sql: str) -> str:
        """A user's SQL as the driver must have it: some look for parameters in everything they get."""
        ...

    def begin(self, link: Link, seconds: float) -> datetime:
        """Opens one consistent view that cannot write, refuses a server that lags behind another, limits statements to
        so many seconds, and gives the server's time."""
        ...

    def plain(self, source: Source, names: Sequence[tuple[str, object]]) -> str:
        """A SELECT of the six columns from a source that has these, with types that go together in a UNION."""
        ...

    def ordered(self, plain: str, key: str) -> Statement:
        """Everything from this key on, in the byte order of keys."""
        ...

    def counted(self, plain: str) -> Statement:
        """How many rows there are."""
        ...

    def named(self, plain: str, keys: Sequence[str]) -> Iterator[Statement]:
        """Every row with one of these keys, and perhaps others."""
        ...

    def below(self, plain: str, directories: Sequence[str], indexed: bool) -> Iterator[Statement]:
        """Every row below one of these directories, which are in order and contain none another, and perhaps others.
        `indexed` says whether an index can be used for that."""
        ...

    def scans(self, link: Link, statement: Statement) -> bool:
        """Whether the statement would read a whole table."""
        ...

    def shut(self, driver: object) -> None:
        """Wakes whoever waits for the server."""
        ...


def dialect_of(kind: str) -> Dialect:
    """The dialect of a kind of database."""
    if kind == POSTGRES:
        from wrasse.backends.sql.postgres import Postgres

        return Postgres()
    from wrasse.backends.sql.mysql import MySql

    return MySql()


def column(name: str, names: frozenset[str], default: str) -> str:
    """A column under its name, or what stands for it where there is none."""
    return f'"{name}"' if name in names else default


def after_directory(directory: str) -> str:
    """The first key after everything below a directory: `0` is the byte after the slash."""
    return directory[:-1] + "0"
