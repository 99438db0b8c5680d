"""Compression of archives, and the key suffix for it: `.jsonl.gz`, `.jsonl.zst`, or `.jsonl` for none.

The key determines the compression, not the settings: an archive whose key was fixed before the settings changed is
written and read in the form that its key names. Pure.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from types import ModuleType
from typing import Any, Protocol, cast

from wrasse.errors import ConfigError

GZIP_WINDOW = 31  # as zlib names the format: a window of 32 KiB and a gzip frame
GZIP_LEVEL = 3
ZSTD_LEVEL = 1
_UNPACKED_MAX = 1 << 20  # bytes per chunk
# zstd has no limit on its output, so its input is fed in small chunks, which decompress to some MiB at most. Input in
# one chunk with damaged bytes is lost with them.
_ZSTD_FED = 256


class Compression(StrEnum):
    """A form of compression."""

    GZIP = "gzip"
    ZSTD = "zstd"
    NONE = "none"

    @property
    def suffix(self) -> str:
        """The suffix of keys."""
        return _SUFFIXES[self]


_SUFFIXES = {Compression.GZIP: ".gz", Compression.ZSTD: ".zst", Compression.NONE: ""}


def codec_of(suffix: str) -> Compression:
    """The compression of a suffix."""
    return next(codec for codec, each in _SUFFIXES.items() if each == suffix)


def codec_in(key: str) -> Compression:
    """The compression of a key."""
    return next((codec for codec, suffix in _SUFFIXES.items() if suffix and key.endswith(suffix)), Compression.NONE)


class Press(Protocol):
    """A streaming compressor."""

    def compress(self, data: bytes, /) -> bytes:
        """The output available so far."""
        ...

    def flush(self) -> bytes:
        """The rest of the output."""
        ...


class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def press(codec: Compression) -> Press:
    """A compressor for one archive."""
    if codec is Compression.NONE:
        return _Plain()
    if codec is Compression.ZSTD:
        return cast(Press, _zstandard().ZstdCompressor(level=ZSTD_LEVEL).compressobj())
    try:
        fast = importlib.import_module("isal.isal_zlib")  # optional; needs a tenth of zlib's time
    except ImportError:
        return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WINDOW)
    return cast(Press, fast.compressobj(1, fast.DEFLATED, GZIP_WINDOW))


def check_codec(codec: Compression) -> None:
    """Refuses a compression that this installation cannot write, before anything is read."""
    if codec is Compression.ZSTD:
        _zstandard()


class Damaged(Exception):
    """The bytes of an archive are invalid."""


class Unpress:
    """A streaming decompressor of one archive. Raises Damaged."""

    def __init__(self, codec: Compression) -> None:
        self._codec = codec
        # Both have the same methods, but no common type.
        self._object: Any = None
        if codec is Compression.ZSTD:
            self._object = _zstandard().ZstdDecompressor().decompressobj()
        elif codec is Compression.GZIP:
            self._object = zlib.decompressobj(GZIP_WINDOW)

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """The bytes of lines in a further chunk of the archive, in bounded chunks."""
        if self._codec is Compression.NONE:
            yield data
        elif self._codec is Compression.ZSTD:
            yield from self._zstd(data)
        else:
            yield from self._gzip(data)

    @property
    def ended(self) -> bool:
        """Whether the archive ended correctly."""
        return self._object is None or (self._object.eof and not self._object.unused_data)

    def _gzip(self, data: bytes) -> Iterator[bytes]:
        while data:
            before = self._object.copy()
            try:
                piece = self._object.decompress(data, _UNPACKED_MAX)
            except zlib.error as why:
                yield from _up_to_error(before, data)
                raise Damaged("its bytes are damaged") from why
            yield piece
            data = self._object.unconsumed_tail

    def _zstd(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_FED):
            try:
                yield self._object.decompress(data[start : start + _ZSTD_FED])
            except _zstandard().ZstdError as why:
                raise Damaged("its bytes are damaged") from why


def _up_to_error(gzip: Any, data: bytes) -> Iterator[bytes]:
    """The output of gzip up to the damage: an error discards all output of that one call."""
    with suppress(zlib.error):
        for n in range(len(data)):
            yield gzip.decompress(data[n : n + 1])


def _zstandard() -> ModuleType:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise ConfigError(
            "archives compressed by zstd need a package that is not installed",
            do="pip install 'wrasse[zstd]', or use compression: gzip",
        ) from None
