"""The envelope: the content of an entry, byte for byte as the origin writes it.

Compact JSON in this order: `message_id` (ULID, 26 characters), `subject`, `timestamp` (milliseconds by the publisher's
clock), `trace_id` (absent if there is none), `payload` (standard base64, padded). Unknown fields are ignored, so that
envelopes can get new fields. The payload is opaque; the limit applies to its raw size.

Envelopes of other programs are parsed more liberally: `message_id` is any text of 1 to ID_CHARS_MAX characters or a
whole number, `timestamp` also ISO 8601 or unix seconds with a fraction, and a `payload` that is not base64 is used
directly: a text as its UTF-8 bytes, any other JSON value as its JSON.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import msgspec

from wrasse import bounded
from wrasse.bounded import UNREADABLE
from wrasse.clock import EPOCH
from wrasse.errors import StoreBroken, TooLarge

PAYLOAD_BYTES_MAX = 1 << 20
ID_CHARS_MAX = 255  # characters of a message_id


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message with its publisher's data."""

    message_id: str
    subject: str
    timestamp: int
    payload: bytes
    trace_id: str | None = None


class _Wire(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    message_id: Annotated[str, msgspec.Meta(min_length=1, max_length=ID_CHARS_MAX)]
    subject: str
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=bounded.MS_MAX)]
    trace_id: str | None = None
    payload: bytes


_encode = msgspec.json.Encoder().encode
_DECODER = msgspec.json.Decoder(_Wire)


def encode(envelope: Envelope) -> bytes:
    """Encodes an envelope."""
    return sealed(envelope.message_id, envelope.subject, envelope.timestamp, envelope.payload, envelope.trace_id)


def sealed(message_id: str, subject: str, timestamp: int, payload: bytes, trace_id: str | None) -> bytes:
    """The bytes of an envelope, without creating an Envelope first."""
    return _encode(
        _Wire(message_id=message_id, subject=subject, timestamp=timestamp, trace_id=trace_id, payload=payload)
    )


def decode(body: bytes) -> Envelope:
    """Decodes an envelope; StoreBroken if the bytes are not one."""
    try:
        wire = _DECODER.decode(body)
    except UNREADABLE:
        return _liberal(body)
    return Envelope(wire.message_id, wire.subject, wire.timestamp, wire.payload, wire.trace_id)


def _liberal(body: bytes) -> Envelope:
    """Parses another program's envelope, field by field."""
    name = ""
    try:
        bounded.check_nesting(body)
        # A payload may be any JSON, including null; null in another field means that it is absent.
        fields = {each: raw for each, raw in _RAW.decode(body).items() if each == "payload" or bytes(raw) != b"null"}
        read = {}
        for name, convert in _READERS.items():
            if name in fields:
                read[name] = convert(msgspec.json.decode(fields[name]))
            elif name != "trace_id":
                raise ValueError("it is missing")
        name = "payload"
        payload = _payload(fields["payload"])
    except UNREADABLE as why:
        # The error names the field only: the bytes may be confidential.
        where = f": field {name}: {bounded.why(why)}" if name else ""
        raise StoreBroken(f"an entry that is not an envelope{where}", do="check the program that wrote it") from why
    return Envelope(read["message_id"], read["subject"], read["timestamp"], payload, read.get("trace_id"))


def _message_id(value: object) -> str:
    found = bounded.text(value)
    if not 1 <= len(found) <= ID_CHARS_MAX:
        raise ValueError(f"it has {len(found)} characters, not 1 to {ID_CHARS_MAX}")
    return found


def _timestamp(value: object) -> int:
    """Milliseconds. A whole number is milliseconds, whatever its size, as in the origin."""
    if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
        return bounded.integer(value, 0, bounded.MS_MAX)
    return bounded.integer((bounded.instant(value) - EPOCH) // timedelta(milliseconds=1), 0, bounded.MS_MAX)


def _payload(raw: msgspec.Raw) -> bytes:
    value = msgspec.json.decode(raw)
    if not isinstance(value, str):
        return bytes(raw)
    try:
        return bounded.from_base64(value)
    except ValueError:
        return value.encode()


_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_READERS: Mapping[str, Callable[[object], Any]] = {
    "message_id": _message_id,
    "subject": bounded.text,
    "timestamp": _timestamp,
    "trace_id": bounded.text,
    "payload": lambda value: value,
}


def are_envelopes(bodies: Iterable[bytes]) -> bool:
    """Whether `decode` accepts every one of them; fast for large numbers, keeps nothing."""
    try:
        deque(map(_DECODER.decode, bodies), maxlen=0)
    except UNREADABLE:
        return False
    return True


def check_payload(payload: bytes, subject: str, payload_max: int = PAYLOAD_BYTES_MAX) -> None:
    """Refuses a payload beyond the limit, before anything is sent."""
    if len(payload) > payload_max:
        raise TooLarge(
            f"a payload of {len(payload)} bytes for {subject!r}, and at most {payload_max} are allowed",
            do="put the data elsewhere and send its name",
        )
