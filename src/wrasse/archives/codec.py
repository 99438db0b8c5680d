"""How archives are compressed, and which key says so: `.jsonl.gz`, `.jsonl.zst`, or `.jsonl` as it is.

The key decides, not the settings: an archive whose key was fixed before the settings changed is written, and read for
ever, in the form that its key names. Pure.
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
_UNPACKED_MAX = 1 << 20  # bytes given at once
# zstd has no bound on what it gives, so it gets little at a time: the most that any bytes unpack to is some MiB. What
# it gets together with damaged bytes is lost with them.
_ZSTD_FED = 256


class Compression(StrEnum):
    """A form of archives."""

    GZIP = "gzip"
    ZSTD = "zstd"
    NONE = "none"

    @property
    def suffix(self) -> str:
        """What a key ends in."""
        return _SUFFIXES[self]


_SUFFIXES = {Compression.GZIP: ".gz", Compression.ZSTD: ".zst", Compression.NONE: ""}


def codec_of(suffix: str) -> Compression:
    """The form that the end of a key names."""
    return next(codec for codec, known in _SUFFIXES.items() if known == suffix)


def codec_in(key: str) -> Compression:
    """The form of whatever has this key."""
    return next((codec for codec, suffix in _SUFFIXES.items() if suffix and key.endswith(suffix)), Compression.NONE)


class Press(Protocol):
    """Takes bytes and gives fewer."""

    def compress(self, data: bytes, /) -> bytes:
        """Whatever can be given already."""
        ...

    def flush(self) -> bytes:
        """The rest."""
        ...


class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def press(codec: Compression) -> Press:
    """Something that compresses one archive."""
    if codec is Compression.NONE:
        return _Plain()
    if codec is Compression.ZSTD:
        return cast(Press, _zstandard().ZstdCompressor(level=ZSTD_LEVEL).compressobj())
    try:
        fast = importlib.import_module("isal.isal_zlib")  # needs a tenth of zlib's time, where it is installed
    except ImportError:
        return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WINDOW)
    return cast(Press, fast.compressobj(1, fast.DEFLATED, GZIP_WINDOW))


def check_codec(codec: Compression) -> None:
    """Refuses a form that this installation cannot write, before anything is read."""
    if codec is Compression.ZSTD:
        _zstandard()


class Damaged(Exception):
    """The bytes of an archive are none of its form."""


class Unpress:
    """Takes the bytes of one archive and gives those of its lines. Raises Damaged."""

    def __init__(self, codec: Compression) -> None:
        self._codec = codec
        # The two have one face, but no common type.
        self._object: Any = None
        if codec is Compression.ZSTD:
            self._object = _zstandard().ZstdDecompressor().decompressobj()
        elif codec is Compression.GZIP:
            self._object = zlib.decompressobj(GZIP_WINDOW)

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """The bytes of lines in some more bytes of the archive, a bounded piece at a time."""
        if self._codec is Compression.NONE:
            yield data
        elif self._codec is Compression.ZSTD:
            yield from self._zstd(data)
        else:
            yield from self._gzip(data)

    @property
    def ended(self) -> bool:
        """Whether the archive ended where it should."""
        return self._object is None or (self._object.eof and not self._object.unused_data)

    def _gzip(self, data: bytes) -> Iterator[bytes]:
        while data:
            before = self._object.copy()
            try:
                piece = self._object.decompress(data, _UNPACKED_MAX)
            except zlib.error as why:
                yield from _up_to_damage(before, data)
                raise Damaged("its bytes are damaged") from why
            yield piece
            data = self._object.unconsumed_tail

    def _zstd(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_FED):
            try:
                yield self._object.decompress(data[start : start + _ZSTD_FED])
            except _zstandard().ZstdError as why:
                raise Damaged("its bytes are damaged") from why


def _up_to_damage(gzip: Any, data: bytes) -> Iterator[bytes]:
    """What gzip gives before it meets the damage: an error loses all that one call would have given."""
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
