"""A batch: the entries of one archive while they are collected, and its bytes.

It is full at `batch_size` entries, at `batch_bytes` bytes of lines, or at midnight UTC by the time of its entries, so
that an archive contains one day; and it is due `batch_timeout` after its first entry by the backend's clock. Lines are
compressed as they arrive, so that an open batch needs about as much memory as its archive. Pure: no clock, no I/O;
`compress` and `seal` take long, and may run in a thread.

`ArchiveFacts` is the metadata that an archive is written with. It allows to verify a chain from the objects alone: each
archive starts where the previous one ended, and `passed` counts every entry that its stream ever had up to its last, so
that entries trimmed before they were archived show as a gap.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from wrasse.archives.codec import Compression, Compressor, compressor_for, is_marked, lines_of
from wrasse.archives.naming import day_of
from wrasse.errors import StoreBroken
from wrasse.ports.streams import EntryChunk, EntryId


@dataclass(frozen=True, slots=True)
class ArchiveFacts:
    """The facts of one archive. `passed` is None where the backend could not count; `sha256` is that of the lines."""

    start: EntryId
    first: EntryId
    last: EntryId
    count: int
    marked: int
    raw_bytes: int
    sha256: str
    passed: int | None
    writer: str = ""
    incomplete: bool = False  # of a work queue: entries may have been removed before they were read, uncounted


def facts_of(
    sealed: Sealed, start: EntryId, passed: int | None, writer: str, *, incomplete: bool = False
) -> ArchiveFacts:
    """The facts of a batch that begins after `start`, with `passed` entries before it."""
    return ArchiveFacts(
        start,
        sealed.first,
        sealed.last,
        sealed.count,
        sealed.marked,
        sealed.raw_bytes,
        sealed.sha256,
        None if passed is None else passed + sealed.count,
        writer,
        incomplete,
    )


def to_metadata(facts: ArchiveFacts) -> Mapping[str, str]:
    """The facts as object metadata."""
    return {
        "start": str(facts.start),
        "first": str(facts.first),
        "last": str(facts.last),
        "count": str(facts.count),
        "marked": str(facts.marked),
        "raw-bytes": str(facts.raw_bytes),
        "sha256": facts.sha256,
        "writer": facts.writer,
        **({} if facts.passed is None else {"passed": str(facts.passed)}),
        **({"incomplete": "true"} if facts.incomplete else {}),
    }


def from_metadata(metadata: Mapping[str, str]) -> ArchiveFacts | None:
    """Parses the facts; None if a store or a copy lost them; StoreBroken if they are invalid."""
    if "last" not in metadata:
        return None
    try:
        return ArchiveFacts(
            EntryId.parse(metadata["start"]),
            EntryId.parse(metadata["first"]),
            EntryId.parse(metadata["last"]),
            int(metadata["count"]),
            int(metadata["marked"]),
            int(metadata["raw-bytes"]),
            metadata["sha256"],
            int(metadata["passed"]) if "passed" in metadata else None,
            metadata.get("writer", ""),
            metadata.get("incomplete") == "true",
        )
    except (KeyError, ValueError) as why:
        raise StoreBroken("an archive with invalid metadata", do="see `wrasse archives verify`") from why


PIECE_BYTES = 256 << 10  # compressed at once
COMPRESSOR_BYTES = 256 << 10  # memory of a compressor


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is complete."""

    size: int = 1_000
    bytes: int = 16 << 20
    timeout: timedelta = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A complete batch: the bytes of its archive, and their facts."""

    data: bytes
    first: EntryId
    last: EntryId
    count: int
    marked: int
    raw_bytes: int
    sha256: str


class ArchiveBatch:
    """The entries after a given entry of a stream, as far as collected."""

    __slots__ = (
        "_codec", "_compress", "_hash", "_limits", "_parts", "_stored", "_waiting", "complete", "count", "first",
        "last", "marked", "raw", "waiting",
    )  # fmt: skip

    def __init__(self, limits: BatchLimits, codec: Compression = Compression.GZIP) -> None:
        assert limits.size >= 1, "an archive holds an entry"
        self._limits = limits
        self._codec = codec
        self._compress: Compressor | None = None
        self._hash = hashlib.sha256()
        self._parts: list[bytes] = []
        self._stored = 0  # bytes of the parts and of the compressor
        self._waiting: list[bytes] = []  # lines that wait to be compressed
        self.waiting = 0
        self.first: EntryId | None = None
        self.last: EntryId | None = None
        self.count = 0
        self.marked = 0
        self.raw = 0
        self.complete = False

    @property
    def held(self) -> int:
        """Bytes of memory."""
        return self.waiting + self._stored

    @property
    def room(self) -> int:
        """How many more entries fit."""
        return 0 if self.complete else self._limits.size - self.count

    def extend(self, chunk: EntryChunk) -> int:
        """Takes entries, in order, until it is complete; returns how many it took."""
        fits = self._fitting(chunk)
        data, marked = lines_of(chunk, fits)
        if self.raw + len(data) > self._limits.bytes:
            data, fits, marked = self._cut(data)
        if fits:
            first, last = chunk.id(0), chunk.id(fits - 1)
            assert self.last is None or first > self.last, "a stream is read in order"
            self.first, self.last = self.first or first, last
            self.count += fits
            self.marked += marked
            self.raw += len(data)
            self.waiting += len(data)
            self._waiting.append(data)
        full = self.count >= self._limits.size or self.raw >= self._limits.bytes
        self.complete = self.complete or fits < len(chunk) or full
        return fits

    def due(self, at: datetime) -> bool:
        """Whether it must be written now, by the backend's clock."""
        return self.first is not None and (
            self.complete
            or at - self.first.at >= self._limits.timeout
            or at.date() > day_of(self.first)  # later entries belong to another archive
        )

    def piece(self) -> list[bytes]:
        """Removes and returns the uncompressed lines, for `compress`."""
        waiting, self._waiting, self.waiting = self._waiting, [], 0
        return waiting

    def compress(self, piece: list[bytes]) -> None:
        """Compresses a piece; pieces in order, one at a time; `extend` may run concurrently."""
        if self._compress is None:
            self._compress = compressor_for(self._codec)
            self._stored += COMPRESSOR_BYTES
        for data in piece:
            self._hash.update(data)
            pressed = self._compress.compress(data)
            if pressed:
                self._parts.append(pressed)
                self._stored += len(pressed)

    def seal(self) -> Sealed:
        """Completes the batch; nothing can be added afterwards."""
        assert self.first is not None, "an archive holds an entry"
        assert self.last is not None, "an archive holds an entry"
        self.compress(self.piece())
        assert self._compress is not None, "after compress there is a compressor"
        self._parts.append(self._compress.flush())
        data = b"".join(self._parts)
        self._parts, self._compress, self._stored = [], None, 0
        self.complete = True
        return Sealed(data, self.first, self.last, self.count, self.marked, self.raw, self._hash.hexdigest())

    def _fitting(self, chunk: EntryChunk) -> int:
        """How many entries fit by number and day."""
        most = min(len(chunk), self.room)
        if not most:
            return 0
        day = day_of(self.first or chunk.id(0))
        if day_of(chunk.id(most - 1)) == day:
            return most
        return bisect_left(range(most), True, key=lambda place: day_of(chunk.id(place)) > day)

    def _cut(self, data: bytes) -> tuple[bytes, int, int]:
        """As many lines as fit, and at least one in an empty batch."""
        size = fits = marked = 0
        for line in data.splitlines(keepends=True):
            if (self.count or fits) and self.raw + size + len(line) > self._limits.bytes:
                break
            size, fits, marked = size + len(line), fits + 1, marked + is_marked(line)
        return data[:size], fits, marked
