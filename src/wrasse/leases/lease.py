"""Lease and `holder`, the one rule about expiry. Pure.

A lease says that one owner holds one key until a moment. Past `until` it is over, whether or not anybody has taken it
away: there is no other test for expiry in the product. Its token only grows, for ever: each acquire adds one, a
released record keeps its last, and a key that was never held starts at the store's unix milliseconds, so that even a
key whose record was deleted long ago goes on above every token it ever gave out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import UNREADABLE
from wrasse.clock import EPOCH, from_micros, to_micros
from wrasse.errors import StoreBroken
from wrasse.ports.records import Record

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Lease:
    """One key, its owner, the fencing token, and until when. `version` is the record's; an empty owner is nobody."""

    key: str
    owner: str
    token: int
    until: datetime
    version: str


def holder(lease: Lease, at: datetime, margin: timedelta = timedelta(0)) -> str | None:
    """Who holds the lease at this moment of the store's clock. A contender whose clock may be off adds a margin."""
    return lease.owner if lease.owner and at < lease.until + margin else None


def next_token(lease: Lease | None, at: datetime) -> int:
    """The token of the next grant, after this lease or, where there is no record, of a new key."""
    return (at - EPOCH) // _MILLISECOND if lease is None else lease.token + 1


@dataclass(frozen=True, slots=True)
class Stored:
    """What a lease's record holds. `grant` names the acquire, so that an owner whose reply was lost knows its own."""

    owner: str
    token: int
    until: int  # microseconds since 1970
    grant: str


_DECODER = msgspec.json.Decoder(Stored)


def encode(lease: Lease, grant: str) -> bytes:
    """The bytes of a lease's record."""
    return msgspec.json.encode(Stored(lease.owner, lease.token, to_micros(lease.until), grant))


def decode(record: Record) -> tuple[Lease, str]:
    """The lease in a record, and the grant that wrote it."""
    try:
        stored = _DECODER.decode(record.value)
        until = from_micros(stored.until)
    except UNREADABLE as error:
        raise StoreBroken(
            f"the record of the lease {record.key!r} is not one that wrasse wrote",
            do="see who else writes there, then delete the record; its next lease starts with a higher token",
        ) from error
    return Lease(record.key, stored.owner, stored.token, until, record.version), stored.grant
