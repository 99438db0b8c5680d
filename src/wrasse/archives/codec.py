"""The bytes of archives: one entry per line, byte for byte, and the compression of the whole. Pure.

The key determines the compression, not the settings: `.jsonl.gz`, `.jsonl.zst`, or `.jsonl` for none. An archive whose
key was fixed before the settings changed is written and read in the form that its key names.

An envelope is kept as stored, with `stream_id` appended as its last field. Any other entry (no valid envelope, a raw
newline, a `stream_id` of its own, additional fields) is archived whole: a line that begins with `stream_id` and has the
bytes in base64 under `raw`, fields that are text under `text`, and other fields in base64 under `fields` (older
archives have all of them there). Every line is valid JSON and ends in a newline; different entries have different
lines.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from types import ModuleType
from typing import Any, Protocol, cast

import msgspec

from wrasse.bounded import UNREADABLE
from wrasse.errors import ConfigError, StoreBroken
from wrasse.ports.streams import Entry, EntryChunk, EntryId
from wrasse.streams.envelope import are_envelopes, decode

GZIP_WINDOW = 31  # as zlib names the format: a window of 32 KiB and a gzip frame
GZIP_LEVEL = 3
ZSTD_LEVEL = 1
_DECOMPRESSED_MAX = 1 << 20  # bytes per decompressed chunk
# zstd has no limit on its output, so its input is fed in small chunks, which decompress to some MiB at most. Input in
# one chunk with damaged bytes is lost with them.
_ZSTD_FED = 256

# The largest entry that a client can read, and so the largest that can be archived: 256 MiB (a reply of Redis; 64 MiB
# on NATS). A line has it in base64. The writer accepts nothing larger, the reader refuses nothing smaller.
ENTRY_BYTES_MAX = 256 << 20  # bytes of one entry that is archived and read back
LINE_BYTES_MAX = ENTRY_BYTES_MAX * 4 // 3 + (4 << 20)  # bytes of one line of an archive

_MARK = b',"stream_id":"'
_END = b'"}\n'
_RAW = b'{"stream_id":"'
_BRACE = ord("}")
_ID_END = 1 << 64  # above both numbers of any id, which have 64 bits in Redis
_ESCAPES = 64  # bytes by which a field as text may exceed its base64 form, so that LINE_BYTES_MAX is kept


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


def compression_of_suffix(suffix: str) -> Compression:
    """The compression that keys with this suffix name."""
    return next(codec for codec, each in _SUFFIXES.items() if each == suffix)


def compression_of_key(key: str) -> Compression:
    """The compression that this key names."""
    return next((codec for codec, suffix in _SUFFIXES.items() if suffix and key.endswith(suffix)), Compression.NONE)


class Compressor(Protocol):
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


def compressor_for(codec: Compression) -> Compressor:
    """A compressor for one archive."""
    if codec is Compression.NONE:
        return _Plain()
    if codec is Compression.ZSTD:
        return cast(Compressor, _zstandard().ZstdCompressor(level=ZSTD_LEVEL).compressobj())
    try:
        fast = importlib.import_module("isal.isal_zlib")  # optional; needs a tenth of zlib's time
    except ImportError:
        return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WINDOW)
    return cast(Compressor, fast.compressobj(1, fast.DEFLATED, GZIP_WINDOW))


def check_compression(codec: Compression) -> None:
    """Refuses a compression that this installation cannot write, before anything is read."""
    if codec is Compression.ZSTD:
        _zstandard()


class Damaged(Exception):
    """The bytes of an archive are invalid."""


class Decompressor:
    """A streaming decompressor of one archive. Raises Damaged."""

    def __init__(self, codec: Compression) -> None:
        self._codec = codec
        # Both have the same methods, but no common type.
        self._object: Any = None
        if codec is Compression.ZSTD:
            self._object = _zstandard().ZstdDecompressor().decompressobj()
        elif codec is Compression.GZIP:
            self._object = zlib.decompressobj(GZIP_WINDOW)

    def decompress(self, data: bytes) -> Iterator[bytes]:
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
                piece = self._object.decompress(data, _DECOMPRESSED_MAX)
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


class _OwnId(msgspec.Struct):
    """Whether an object has a `stream_id` of its own."""

    stream_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Whole(msgspec.Struct, forbid_unknown_fields=True):
    """An entry that is archived whole."""

    stream_id: str
    subject: str
    raw: bytes
    fields: dict[str, bytes] | msgspec.UnsetType = msgspec.UNSET
    text: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


_OWN_ID = msgspec.json.Decoder(_OwnId)
_WHOLE = msgspec.json.Decoder(_Whole)
_ENCODE = msgspec.json.Encoder().encode


def lines_of(chunk: EntryChunk, count: int) -> tuple[bytes, int]:
    """The lines of the first entries, concatenated, and how many of them are archived whole."""
    bodies = chunk.bodies[:count]
    if not chunk.beside and _all_keep_their_form(bodies):
        parts: list[bytes] = []
        add = parts.extend
        for body, id in zip(bodies, chunk.ids, strict=False):
            add((body[:-1], _MARK, id, _END))
        return b"".join(parts), 0
    lines = [*map(line_of, chunk.entries(count))]
    return b"".join(lines), sum(map(is_marked, lines))


def _all_keep_their_form(bodies: Sequence[bytes]) -> bool:
    """Whether `keeps_its_form` is true for each, checked for all of them at once; False: check each."""
    every = b"".join(bodies)
    # Without escapes, a key named `stream_id` contains this text; and bytes below 128 are valid text.
    if b"\n" in every or b"\r" in every or b"\\" in every or b"stream_id" in every or not every.isascii():
        return False
    return are_envelopes(bodies) and not [body for body in bodies if body[-1] != _BRACE]


def line_of(entry: Entry) -> bytes:
    """The line of an entry."""
    if keeps_its_form(entry):
        return b'%b,"stream_id":"%d-%d"}\n' % (entry.body[:-1], entry.id.ms, entry.id.seq)
    text, fields = _sorted_out(entry.fields or {})
    whole = _Whole(str(entry.id), entry.subject, entry.body, fields or msgspec.UNSET, text or msgspec.UNSET)
    return _ENCODE(whole) + b"\n"


def _sorted_out(fields: Mapping[str, bytes]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Fields that are text; and the others, or those that are longer as JSON than in base64."""
    text, other = {}, {}
    for name, value in fields.items():
        try:
            decoded = value.decode()
        except UnicodeDecodeError:
            other[name] = value
            continue
        if len(_ENCODE(decoded)) <= len(value) * 4 // 3 + _ESCAPES:
            text[name] = decoded
        else:
            other[name] = value
    return text, other


def keeps_its_form(entry: Entry) -> bool:
    """Whether an entry is an envelope that can be kept as stored; others are archived whole."""
    body = entry.body
    if entry.fields or not body.endswith(b"}") or b"\n" in body or b"\r" in body:
        return False
    try:
        decode(body)
        body.decode()  # msgspec does not check unknown fields, and every line must be text
        # A key may be written with escapes; only then, or if the word occurs, a second check is needed.
        if b"stream_id" in body or b"\\u" in body:
            return _OWN_ID.decode(body).stream_id is msgspec.UNSET
    except (StoreBroken, *UNREADABLE):
        return False
    return True


def entry_of(line: bytes, subject: str) -> Entry:
    """The entry of a line, without its newline; StoreBroken if it is invalid."""
    try:
        if line.startswith(_RAW):
            whole = _WHOLE.decode(line)
            fields = {} if whole.fields is msgspec.UNSET else whole.fields
            fields |= {} if whole.text is msgspec.UNSET else {name: each.encode() for name, each in whole.text.items()}
            return Entry(_id(whole.stream_id), whole.subject, whole.raw, fields or None)
        head, mark, tail = line.rpartition(_MARK)
        if not mark or not tail.endswith(b'"}'):
            raise ValueError("no stream_id at its end")
        _OWN_ID.decode(line)
        line.decode()  # msgspec does not check unknown fields
        return Entry(_id(tail[:-2].decode("ascii")), subject, head + b"}")
    except UNREADABLE as why:
        # The bytes are not repeated: they may be confidential.
        raise StoreBroken("a line that is not of an archive", do="see `wrasse archives verify`") from why


def _id(text: str) -> EntryId:
    id = EntryId.parse(text)
    if not (0 <= id.ms < _ID_END and 0 <= id.seq < _ID_END):
        raise ValueError("a stream_id out of range")
    return id


def is_marked(line: bytes) -> bool:
    """Whether the entry of this line was archived whole."""
    return line.startswith(_RAW)
