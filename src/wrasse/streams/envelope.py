"""The envelope: what an entry of ours carries, byte for byte as the origin writes it.

Compact JSON in this order: `message_id` (ULID, 26 characters), `subject`, `timestamp` (milliseconds by the publisher's
clock), `trace_id` (absent when there is none), `payload` (standard base64, padded). Fields that we do not know are
allowed and ignored: envelopes grow by addition. The payload is opaque; its raw size is what is limited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from wrasse.errors import StoreBroken, TooLarge

PAYLOAD_BYTES_MAX = 1 << 20
_ID_CHARS = 26
_LATEST = 253_402_300_799_999  # the last millisecond of the year 9999: what comes later is no time


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message with what its publisher said about it."""

    message_id: str
    subject: str
    timestamp: int
    payload: bytes
    trace_id: str | None = None


class _Wire(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    message_id: Annotated[str, msgspec.Meta(min_length=_ID_CHARS, max_length=_ID_CHARS)]
    subject: str
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=_LATEST)]
    trace_id: str | None = None
    payload: bytes


_encode = msgspec.json.Encoder().encode
_DECODER = msgspec.json.Decoder(_Wire)


def encode(envelope: Envelope) -> bytes:
    """The bytes of an envelope."""
    return sealed(envelope.message_id, envelope.subject, envelope.timestamp, envelope.payload, envelope.trace_id)


def sealed(message_id: str, subject: str, timestamp: int, payload: bytes, trace_id: str | None) -> bytes:
    """The bytes of an envelope with these contents, which nobody needs as a value before."""
    return _encode(
        _Wire(message_id=message_id, subject=subject, timestamp=timestamp, trace_id=trace_id, payload=payload)
    )


def decode(body: bytes) -> Envelope:
    """The envelope in these bytes; StoreBroken if they are none."""
    try:
        wire = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as why:
        # What the bytes are is not repeated: they are somebody's payload.
        raise StoreBroken("an entry that is not an envelope", do="look at the program that wrote it") from why
    return Envelope(wire.message_id, wire.subject, wire.timestamp, wire.payload, wire.trace_id)


def are_envelopes(bodies: Iterable[bytes]) -> bool:
    """Whether `decode` would take every one of them; made for very many, of which nothing is kept."""
    try:
        deque(map(_DECODER.decode, bodies), maxlen=0)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def check_payload(payload: bytes, subject: str, payload_max: int = PAYLOAD_BYTES_MAX) -> None:
    """Refuses a payload beyond the limit, before anything is sent."""
    if len(payload) > payload_max:
        raise TooLarge(
            f"a payload of {len(payload)} bytes for {subject!r}, and at most {payload_max} are allowed",
            do="put the data elsewhere and send its name",
        )
