"""Pins: keys to keep regardless of the database, from a file that is read in every scan.

One key per line; one that ends in `/` is a directory. Empty lines and lines that begin with # are ignored. A file that
cannot be read is an error: without it, pinned objects would count as orphans.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from wrasse.errors import StoreBroken, TooLarge
from wrasse.ports.catalog import Catalog, CatalogSnapshot, Reference
from wrasse.ports.guard import Guard
from wrasse.ports.objects import raw_key
from wrasse.ports.page import Page

PINS_MAX = 100_000


class PinnedCatalog:
    """A catalog combined with the pins of a file."""

    def __init__(self, catalog: Catalog, path: Path) -> None:
        self._catalog = catalog
        self._path = path

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[PinnedSnapshot]:
        """One view of both."""
        async with self._catalog.snapshot() as snapshot:
            yield PinnedSnapshot(snapshot, await asyncio.to_thread(read_pins, self._path))

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        """Whether a pin or a row protects each key now."""
        pins = await asyncio.to_thread(read_pins, self._path)
        found = await self._catalog.referenced(keys, below=below)
        return [_pinned(key, pins, below) or row for key, row in zip(keys, found, strict=True)]

    def leader(self, name: str) -> Guard | None:
        """The guard of the database."""
        return self._catalog.leader(name)


class PinnedSnapshot:
    """Rows and pins in one order."""

    def __init__(self, snapshot: CatalogSnapshot, pins: Sequence[Reference]) -> None:
        self._snapshot = snapshot
        self._pins = pins

    @property
    def at(self) -> datetime:
        """The database's clock."""
        return self._snapshot.at

    async def page(self, after: str | None, limit: int) -> Page[Reference]:
        """References in the byte order of their keys. A cursor is the number of pins returned, and the cursor of the
        rows: a page has all rows of one underlying page, and the pins that sort before its last row."""
        start, cursor = _parsed(after)
        page = await self._snapshot.page(cursor, limit)
        end = raw_key(page.items[-1].key) if page.more else None
        upto = start
        while upto < len(self._pins) and (end is None or raw_key(self._pins[upto].key) <= end):
            upto += 1
        rows = tuple(heapq.merge(page.items, self._pins[start:upto], key=lambda each: raw_key(each.key)))
        # Only the last cursor can be resumed from: snapshots are read in whole pages.
        last = f"{upto}:{page.cursors[-1] if page.cursors else ''}"
        return Page(rows, tuple(last for _ in rows), page.at, page.more)


def read_pins(path: Path) -> list[Reference]:
    """The pins of a file, in order."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as why:
        raise StoreBroken(
            f"the file of pins {path} cannot be read: {why.strerror}", do="put it back, or remove pins_file"
        ) from None
    keys = sorted({line.rstrip(b"\r") for line in lines if line.strip() and not line.startswith(b"#")})
    if len(keys) > PINS_MAX:
        raise TooLarge(f"{len(keys)} pins in {path}", do=f"a file holds at most {PINS_MAX}; use a table")
    texts = [key.decode("utf-8", "surrogateescape") for key in keys]
    return [Reference(key, prefix=key.endswith("/"), rule=f"pin in {path.name}") for key in texts]


def _pinned(key: str, pins: Sequence[Reference], below: bool) -> Reference | None:
    return next(
        (
            pin
            for pin in pins
            if pin.key == key or (pin.prefix and key.startswith(pin.key)) or (below and pin.key.startswith(key))
        ),
        None,
    )


def _parsed(after: str | None) -> tuple[int, str | None]:
    if after is None:
        return 0, None
    number, _, cursor = after.partition(":")
    return int(number), cursor or None
