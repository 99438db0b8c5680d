"""One entry as one line of an archive, and back, byte for byte.

An envelope is kept as it was stored, with `stream_id` as one more field at its end. Whatever cannot be kept so (no
valid envelope, a raw newline, a `stream_id` of its own, fields beside the body) is archived whole: a line that begins
with `stream_id` and holds the bytes in base64 under `raw`, fields that are text under `text`, and those that are not in
base64 under `fields` (before there was `text`, all of them). Every line is valid JSON and ends in a newline; no two
entries have one line. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from wrasse.bounded import UNREADABLE
from wrasse.errors import StoreBroken
from wrasse.ports.entry_chunks import EntryChunk
from wrasse.ports.streams import Entry, EntryId
from wrasse.streams.envelope import are_envelopes, decode

# What a client reads of a stream at once, and so the largest entry that can be archived: 256 MiB (a reply of Redis; 64
# MiB on NATS). A line holds it in base64. The writer takes nothing larger, the reader refuses nothing smaller.
ENTRY_BYTES_MAX = 256 << 20  # bytes of one entry that is archived and read back
LINE_BYTES_MAX = ENTRY_BYTES_MAX * 4 // 3 + (4 << 20)  # bytes of one line of an archive

_MARK = b',"stream_id":"'
_END = b'"}\n'
_RAW = b'{"stream_id":"'
_BRACE = ord("}")
_ID_END = 1 << 64  # beyond both numbers of any id: Redis has 64 bits for each
_ESCAPES = 64  # bytes that a field may take as text beyond what base64 of it takes: LINE_BYTES_MAX must hold


class _Keys(msgspec.Struct):
    """Whether an object has a `stream_id` of its own."""

    stream_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Whole(msgspec.Struct, forbid_unknown_fields=True):
    """An entry that is archived whole."""

    stream_id: str
    subject: str
    raw: bytes
    fields: dict[str, bytes] | msgspec.UnsetType = msgspec.UNSET
    text: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


_KEYS = msgspec.json.Decoder(_Keys)
_WHOLE = msgspec.json.Decoder(_Whole)
_ENCODE = msgspec.json.Encoder().encode


def packed(chunk: EntryChunk, count: int) -> tuple[bytes, int]:
    """The lines of the first entries, end to end, and how many of them are archived whole."""
    bodies = chunk.bodies[:count]
    if not chunk.beside and _all_keep_their_form(bodies):
        parts: list[bytes] = []
        put = parts.extend
        for body, id in zip(bodies, chunk.ids, strict=False):
            put((body[:-1], _MARK, id, _END))
        return b"".join(parts), 0
    lines = [*map(line_of, chunk.entries(count))]
    return b"".join(lines), sum(map(is_marked, lines))


def _all_keep_their_form(bodies: Sequence[bytes]) -> bool:
    """Whether `keeps_its_form` holds for each, asked of all of them at once where that can be; False: ask for each."""
    every = b"".join(bodies)
    # Without an escape, a key named `stream_id` is spelled so; and bytes below 128 are text.
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
    """Fields that are text, and those that are not, or would take more room as JSON than in base64."""
    text, other = {}, {}
    for name, value in fields.items():
        try:
            said = value.decode()
        except UnicodeDecodeError:
            other[name] = value
            continue
        if len(_ENCODE(said)) <= len(value) * 4 // 3 + _ESCAPES:
            text[name] = said
        else:
            other[name] = value
    return text, other


def keeps_its_form(entry: Entry) -> bool:
    """Whether an entry is an envelope that can be kept as it is; anything else is archived whole."""
    body = entry.body
    if entry.fields or not body.endswith(b"}") or b"\n" in body or b"\r" in body:
        return False
    try:
        decode(body)
        body.decode()  # unknown fields are not looked into above, and every line must be text
        # A key may also be spelled with escapes; only then, or where the word is there, is a second look needed.
        if b"stream_id" in body or b"\\u" in body:
            return _KEYS.decode(body).stream_id is msgspec.UNSET
    except (StoreBroken, *UNREADABLE):
        return False
    return True


def entry_of(line: bytes, subject: str) -> Entry:
    """The entry of a line, without its newline; StoreBroken if it is none of ours."""
    try:
        if line.startswith(_RAW):
            whole = _WHOLE.decode(line)
            fields = {} if whole.fields is msgspec.UNSET else whole.fields
            fields |= {} if whole.text is msgspec.UNSET else {name: each.encode() for name, each in whole.text.items()}
            return Entry(_id(whole.stream_id), whole.subject, whole.raw, fields or None)
        head, mark, tail = line.rpartition(_MARK)
        if not mark or not tail.endswith(b'"}'):
            raise ValueError("no stream_id at its end")
        _KEYS.decode(line)
        line.decode()  # unknown fields are not looked into above
        return Entry(_id(tail[:-2].decode("ascii")), subject, head + b"}")
    except UNREADABLE as why:
        # What the bytes are is not repeated: they are somebody's payload.
        raise StoreBroken("a line that is not of an archive", do="see `wrasse archives verify`") from why


def _id(text: str) -> EntryId:
    id = EntryId.parse(text)
    if not (0 <= id.ms < _ID_END and 0 <= id.seq < _ID_END):
        raise ValueError("a stream_id out of range")
    return id


def is_marked(line: bytes) -> bool:
    """Whether the entry of this line was archived whole."""
    return line.startswith(_RAW)
