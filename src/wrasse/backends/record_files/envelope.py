"""The content of a record's file or object: its value, version and due time, and its last writes. Pure.

The value is stored as it is if it is JSON that the file returns byte for byte, so that people and other tools can read
it; else in base64. The last NONCES_KEPT writes, each with the version it made, answer retries after a lost reply. They
outlive the record: the directory keeps them in its tombstones, and on S3 a deleted record stays for a while, marked
`gone`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from wrasse.bounded import UNREADABLE, why
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import NONCES_KEPT

Write = tuple[str | None, str | None]  # its nonce, and the version it made: None for a delete


class _RecordFile(msgspec.Struct, omit_defaults=True):
    version: str
    due_at: datetime | None = None
    writes: list[Write] = []
    whole: bool = False
    gone: bool = False
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    base64: bytes | msgspec.UnsetType = msgspec.UNSET


CORRUPT = "damaged"
_decode = msgspec.json.Decoder(_RecordFile).decode


@dataclass(frozen=True, slots=True)
class LastWrites:
    """The last writes to one key, oldest first. `whole` while none has been dropped."""

    kept: tuple[Write, ...] = ()
    whole: bool = True

    def and_then(self, nonce: str | None, version: str | None) -> LastWrites:
        """One more write."""
        return LastWrites((*self.kept, (nonce, version))[-NONCES_KEPT:], self.whole and len(self.kept) < NONCES_KEPT)

    def answer(self, nonce: str | None, at: str | None, current: str | None) -> tuple[Outcome, str | None] | None:
        """The answer to a write that expects version `at` (None: no record) and finds `current`, with the version made;
        None if the write is to be made now."""
        if nonce is not None:
            for known, version in self.kept:
                if known == nonce:
                    return Outcome.DONE, version
        if at == current:
            return None
        # A write without a nonce is never retried. With one, it may have been made, and dropped since.
        certain = nonce is None or self.whole or (at is not None and any(version == at for _, version in self.kept))
        return (Outcome.CONFLICT if certain else Outcome.UNKNOWN), None


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The content of a record's file."""

    value: bytes
    version: str
    due_at: datetime | None
    writes: LastWrites
    gone: bool = False  # deleted: only its writes count


def pack(kept: StoredRecord) -> bytes:
    """The bytes of the file."""
    file = _RecordFile(kept.version, kept.due_at, list(kept.writes.kept), kept.writes.whole, kept.gone)
    if _stands_as_it_is(kept.value):
        file.value = msgspec.Raw(kept.value)
    else:
        file.base64 = kept.value
    return msgspec.json.encode(file)


def listed(packed: bytes) -> StoredRecord:
    """The record in these bytes for a listing, which skips a corrupt one: its value is then the raw bytes, which the
    reader of the value finds invalid, under a version that no write matches."""
    try:
        return unpack(packed)
    except ValueError:
        return StoredRecord(packed, CORRUPT, None, LastWrites(whole=False))


def unpack(packed: bytes) -> StoredRecord:
    """The record in these bytes; ValueError if wrasse did not write them."""
    try:
        file = _decode(packed)
    except UNREADABLE as error:
        raise ValueError(why(error)) from error
    if isinstance(file.value, msgspec.Raw):
        value = bytes(file.value)
    elif isinstance(file.base64, bytes):
        value = file.base64
    else:
        raise ValueError("neither value nor base64")
    return StoredRecord(value, file.version, file.due_at, LastWrites(tuple(file.writes), file.whole), file.gone)


def _stands_as_it_is(value: bytes) -> bool:
    if value != value.strip(b" \t\r\n"):
        return False  # spaces around a value would be lost
    try:
        msgspec.json.decode(value)
        value.decode()
    except UNREADABLE:
        return False
    return True
