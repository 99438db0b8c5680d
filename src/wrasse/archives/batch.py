"""A batch: the entries of one archive while they are collected, and its bytes.

It is full at `batch_size` entries, at `batch_bytes` bytes of lines, or at midnight UTC by the time of its entries, so
that an archive holds one day; and it is due `batch_timeout` after its first entry by the backend's clock. Entries are
compressed as they come, so that an open batch costs about what its archive will cost, and a small one what its lines
cost. Pure: no clock, no I/O.
"""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, cast

from wrasse.archives.lines import is_marked, line_of
from wrasse.archives.naming import day_of, instant_of
from wrasse.ports.streams import Entry, EntryId

GZIP = 31  # as zlib names the format: a window of 32 KiB and a gzip frame
LEVEL = 3
PIECE_BYTES = 64 << 10  # compressed at once
COMPRESSOR_BYTES = 256 << 10  # what a compressor keeps for itself


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is complete."""

    size: int = 1_000
    bytes: int = 16 << 20
    timeout: timedelta = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A batch that is complete: the bytes of its archive, and what is known about them."""

    data: bytes
    first: EntryId
    last: EntryId
    count: int
    marked: int
    raw_bytes: int
    sha256: str


class _Compress(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _compressor() -> _Compress:
    """isal needs a tenth of zlib's time, where it is installed."""
    try:
        fast = importlib.import_module("isal.isal_zlib")
    except ImportError:
        return zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    return cast(_Compress, fast.compressobj(1, fast.DEFLATED, GZIP))


class Batch:
    """The entries that follow one entry of a stream, as far as they are collected."""

    __slots__ = (
        "_compress", "_hash", "_limits", "_parts", "_piece", "_waiting", "complete", "count", "first", "held", "last",
        "marked", "raw",
    )  # fmt: skip

    def __init__(self, limits: BatchLimits) -> None:
        assert limits.size >= 1, "an archive holds an entry"
        self._limits = limits
        self._compress: _Compress | None = None
        self._piece: list[bytes] = []  # lines that wait to be compressed
        self._waiting = 0
        self._hash = hashlib.sha256()
        self._parts: list[bytes] = []
        self.first: EntryId | None = None
        self.last: EntryId | None = None
        self.count = 0
        self.marked = 0
        self.raw = 0
        self.held = 0  # bytes of memory
        self.complete = False

    def extend(self, entries: Sequence[Entry]) -> int:
        """Takes entries, in order, until it is complete; gives how many it took."""
        before = self.count
        for entry in entries:
            if not self._fits(entry):
                self.complete = True
                break
            line = line_of(entry)
            if self.count and self.raw + len(line) > self._limits.bytes:
                self.complete = True
                break
            assert self.last is None or entry.id > self.last, "a stream is read in order"
            self.first = self.first or entry.id
            self.last = entry.id
            self.count += 1
            self.marked += is_marked(line)
            self._take(line)
        self.complete = self.complete or self.count >= self._limits.size or self.raw >= self._limits.bytes
        return self.count - before

    def due(self, at: datetime) -> bool:
        """Whether it is to be written now, by the backend's clock."""
        return self.first is not None and (
            self.complete
            or at - instant_of(self.first) >= self._limits.timeout
            or at.date() > day_of(self.first)  # whatever comes from now on belongs to another archive
        )

    def seal(self) -> Sealed:
        """Its bytes. Nothing can be added afterwards."""
        assert self.first is not None, "an archive holds an entry"
        assert self.last is not None, "an archive holds an entry"
        self._parts += [self._press(), self._compress.flush() if self._compress is not None else b""]
        data = b"".join(self._parts)
        self._parts, self._compress, self.held = [], None, 0
        self.complete = True
        return Sealed(data, self.first, self.last, self.count, self.marked, self.raw, self._hash.hexdigest())

    def _fits(self, entry: Entry) -> bool:
        if self.complete or self.count >= self._limits.size:
            return False
        return self.first is None or day_of(entry.id) == day_of(self.first)

    def _take(self, line: bytes) -> None:
        self.raw += len(line)
        self.held += len(line)
        self._waiting += len(line)
        self._piece.append(line)
        if self._waiting >= PIECE_BYTES:
            self._parts.append(self._press())

    def _press(self) -> bytes:
        """Compresses what waits."""
        data = b"".join(self._piece)
        self._hash.update(data)
        if self._compress is None:
            self._compress = _compressor()
            self.held += COMPRESSOR_BYTES
        pressed = self._compress.compress(data)
        self.held += len(pressed) - len(data)
        self._piece, self._waiting = [], 0
        return pressed
