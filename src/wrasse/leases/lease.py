"""Leases on keys, as they are stored, and what may be done with one at a moment of the store's clock. Pure.

A `KeyRecord` is everything about a key: its lease, its version, which state object counts. It changes by one
conditional write. State objects are written once, under a name of their own, and mean nothing until the record names
them: a commit cannot be torn, and a late writer changes nothing that is read. A `Lease` stands in the record, and is
what its holder shows with each call.

A lease is over at `expires_at`, whether or not its record was cleared. A contender waits `margin` longer, because its
idea of the store's clock may be off; a holder stops that much earlier. After a lease that ended by itself the key stays
closed for `delay`, so that requests of a paused holder can arrive before the next one begins. Fencing tokens only grow:
each acquire adds one, a released record keeps its last, and a key without a record starts at the store's unix
milliseconds, above every token that a deleted record gave out.

These are structs and not dataclasses: every operation copies some of them, which is a tenth of what it costs otherwise.
None of them can be part of a ring, so Python's collector need not look at them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from wrasse.bounded import UNREADABLE
from wrasse.clock import EPOCH, from_micros, to_micros
from wrasse.errors import StoreBroken
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.ports.records import Record

DROPPED_MAX = 4
LOOK_AGAIN = timedelta(hours=1)  # how late a holder whose lease has ended may still write an object
_MILLISECOND = timedelta(milliseconds=1)


class Lease(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Who holds a key, under which fencing token, until when, and in which transaction. `explicit`: the caller named
    the transaction, so that it may have other keys. `key` and `namespace`: of what, where a holder shows it."""

    id: str
    owner: str
    token: int
    expires_at: datetime = msgspec.field(name="until")
    transaction: str
    explicit: bool = False
    key: str = ""  # neither is stored
    namespace: str = ""


def shown(namespace: str, key: str, id: str, token: int, transaction: str) -> Lease:
    """What a holder shows of its lease."""
    return Lease(id, "", token, EPOCH, transaction, False, key, namespace)


def public(namespace: str, key: str) -> Lease:
    """A key as it is read without a lease: only what is committed."""
    return shown(namespace, key, "", 0, "")


class StateObject(msgspec.Struct, frozen=True, gc=False):
    """One state object: its name, the version its store gave it, its etag, how long it is."""

    name: str
    version: str
    etag: str
    size: int


class Attachment(msgspec.Struct, frozen=True, gc=False):
    """A file that rides along with the state, in an object of its own. Its id stays when its bytes are replaced."""

    id: str
    name: str
    object: StateObject
    sha256: str
    content_type: str
    created_at: datetime
    updated_at: datetime


class Over(msgspec.Struct, frozen=True, gc=False):
    """What the holder saw before its last change: the version, and the etag of the state or nothing."""

    version: int
    etag: str


class Staged(msgspec.Struct, frozen=True, gc=False):
    """What a commit of this lease would make of the key. `state` is None after a removal, and for one that leaves the
    state alone (`same`). `attachments` are all that there will be; None: as they are. `over`: what this lease had
    staged before its last change of the state, if it had."""

    transaction: str
    version: int
    state: StateObject | None = None
    same: bool = False
    hidden: bool | None = None
    attachments: tuple[Attachment, ...] | None = None
    over: Over | msgspec.UnsetType = msgspec.UNSET  # not written where there is none, as before there was this field


class KeyRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Everything about one key. `token` is the highest that was ever given. `look_at`: when to look once more for
    objects that a holder whose lease ended by itself may have written late. `dropped`: the tokens of the last
    leases that ended with something staged, so that a commit which comes too late is told so; `forgotten`: the highest
    token of those that no longer stand there. `leaving`: objects that the last change no longer names; they may be
    there still if whoever made it died, and the next one takes them away with its own."""

    token: int
    lease: Lease | None = msgspec.field(default=None, name="grant")
    version: int = 0
    state: StateObject | None = None
    staged: Staged | None = None
    hidden: bool = False
    updated_at: datetime = EPOCH
    look_at: datetime | None = None
    dropped: tuple[int, ...] = ()
    forgotten: int = 0
    attachments: tuple[Attachment, ...] = ()
    leaving: tuple[StateObject, ...] = ()
    stored: str = ""  # the version in the store that a change of this record must name; empty: there is none yet

    @property
    def held(self) -> Lease:
        """The lease of a key that is held."""
        assert self.lease is not None, "the key is held"
        return self.lease

    @property
    def etag(self) -> str:
        """Of the committed state; empty if there is none."""
        return "" if self.state is None else self.state.etag

    def seen_by_holder(self) -> Over:
        """Version and etag, what is staged included."""
        staged = self.staged
        if staged is None or staged.same:
            return Over(self.version if staged is None else staged.version, self.etag)
        return Over(staged.version, "" if staged.state is None else staged.state.etag)

    def has_dropped(self, token: int) -> bool:
        """Whether what the lease with this token staged was thrown away, or may have been: rather a commit is doubted
        than one that never was believed."""
        return token in self.dropped or 0 < token <= self.forgotten

    def objects(self) -> list[StateObject]:
        """Every object that counts, or would after a commit; one of both is there once."""
        staged = self.staged
        if staged is None and not self.attachments:
            return [] if self.state is None else [self.state]
        found = [self.state, None if staged is None else staged.state]
        found += [each.object for each in self.attachments]
        if staged is not None and staged.attachments is not None:
            found += [each.object for each in staged.attachments]
        return list({each.name: each for each in found if each is not None}.values())

    def names(self, name: str) -> bool:
        """Whether this object counts, or would after a commit."""
        return any(each.name == name for each in self.objects())

    def superseded_by(self, after: KeyRecord) -> list[StateObject]:
        """Objects that this record names and `after` does not: once that is written, nobody needs them."""
        kept = {each.name for each in after.objects()}
        return [each for each in self.objects() if each.name not in kept]


@dataclass(frozen=True, slots=True)
class KeyCodec:
    """How a key's record is stored, and whether its lease is in the due index."""

    encode: Callable[[KeyRecord], bytes]
    decode: Callable[[bytes], KeyRecord]
    indexed: bool = True


class _Bare(msgspec.Struct, frozen=True, gc=False):
    owner: str  # empty: not held
    token: int
    until: int  # microseconds since 1970
    grant: str  # the id of the lease; empty where an earlier release renewed it


_DECODER = msgspec.json.Decoder(KeyRecord)
_BARE_DECODER = msgspec.json.Decoder(_Bare)
_ENCODER = msgspec.json.Encoder()


def _encode_bare(record: KeyRecord) -> bytes:
    lease = record.lease
    if lease is None:
        return _ENCODER.encode(_Bare("", record.token, 0, ""))
    return _ENCODER.encode(_Bare(lease.owner, lease.token, to_micros(lease.expires_at), lease.id))


def _decode_bare(value: bytes) -> KeyRecord:
    bare = _BARE_DECODER.decode(value)
    until = from_micros(bare.until)
    return KeyRecord(bare.token, Lease(bare.grant, bare.owner, bare.token, until, "") if bare.owner else None)


KEYS = KeyCodec(lambda record: _ENCODER.encode(replace(record, stored="")), _DECODER.decode)
BARE = KeyCodec(_encode_bare, _decode_bare, indexed=False)
"""The engine's own leases: neither state nor transaction."""


def decode(record: Record, codec: KeyCodec = KEYS) -> KeyRecord:
    """What a key's record says."""
    try:
        return replace(codec.decode(record.value), stored=record.version)
    except UNREADABLE as error:
        raise StoreBroken(
            f"the record of the key {record.key!r} is not one that wrasse wrote",
            do="see who else writes there, then delete the record; its next lease starts with a higher token",
        ) from error


def decode_listed(record: Record) -> KeyRecord | None:
    """What a key's record says, for listings and sweeps, which go past one that cannot be read: then None."""
    try:
        return decode(record)
    except StoreBroken:
        return None


def first_token(at: datetime) -> int:
    """The token of a key that has no record: above any that a deleted record can have given out."""
    return (at - EPOCH) // _MILLISECOND


@dataclass(frozen=True, slots=True)
class Terms:
    """How careful to be about clocks."""

    margin: timedelta = timedelta(0)
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """What an acquire asks for. `id` names the lease to be: asking again with the same one gives the same lease."""

    owner: str
    ttl: timedelta
    id: str
    transaction: str
    explicit: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else holds it, until then at most."""

    until: datetime


def over(lease: Lease, at: datetime, terms: Terms) -> bool:
    """Whether a contender may take the key."""
    return at >= lease.expires_at + terms.margin + terms.delay


def acquire(record: KeyRecord | None, asked: AcquireRequest, at: datetime, terms: Terms) -> KeyRecord | Busy:
    """The key with the lease that was asked for, in place of one that has ended. The same record: the lease was granted
    already, and the reply to that acquire got lost."""
    lease = None if record is None else record.lease
    if lease is not None and lease.id == asked.id and at < lease.expires_at:
        assert record is not None, "a lease stands in a record"
        return record
    if record is not None and asked.if_not_exists:
        raise KeyRefused(Refusal.ALREADY_EXISTS, "the key exists already")
    if lease is not None and not over(lease, at, terms):
        return Busy(lease.expires_at + terms.margin + terms.delay)
    token = first_token(at) if record is None else record.token + 1
    before = KeyRecord(token) if record is None else record
    if lease is not None:
        before = cleared(before, at, at + LOOK_AGAIN)
    granted = Lease(asked.id, asked.owner, token, at + asked.ttl, asked.transaction, asked.explicit)
    return replace(before, token=token, lease=granted, updated_at=at)


def check_held(record: KeyRecord | None, held: Lease, at: datetime, terms: Terms) -> Lease:
    """The lease that the caller holds; refuses in the order that clients know."""
    lease = None if record is None else record.lease
    version, etag = (0, "") if record is None else (record.version, record.etag)

    def refuse(code: Refusal, message: str) -> KeyRefused:
        return KeyRefused(code, f"{message} ({held.key!r})", version=version, etag=etag)

    if lease is None or lease.id != held.id:
        raise refuse(Refusal.LEASE_REQUIRED, "the caller does not hold the key")
    if at >= lease.expires_at - terms.margin:
        raise refuse(Refusal.LEASE_EXPIRED, "the lease has ended")
    if lease.token != held.token:
        raise refuse(Refusal.FENCING_MISMATCH, f"the token {held.token} is not that of the lease")
    if lease.transaction != held.transaction:
        if not held.transaction:
            raise refuse(Refusal.MISSING_TRANSACTION, "the call names no transaction")
        raise refuse(Refusal.TRANSACTION_MISMATCH, "the lease belongs to another transaction")
    return lease


def check_expected(record: KeyRecord, if_version: int | None, if_etag: str | None) -> None:
    """Refuses a change whose caller saw another version. What this lease has staged counts as seen."""
    seen = record.seen_by_holder()
    version, etag = seen.version, seen.etag
    if if_version is not None and if_version != version:
        raise KeyRefused(Refusal.VERSION_CONFLICT, f"the version is {version}, not {if_version}", version=version)
    if if_etag is not None and if_etag.strip('"') != etag:
        raise KeyRefused(Refusal.ETAG_MISMATCH, "the state is another one", version=version, etag=etag)


def renewed(record: KeyRecord, ttl: timedelta, at: datetime) -> KeyRecord:
    """The key with its lease `ttl` from now."""
    return replace(record, lease=replace(record.held, expires_at=at + ttl), updated_at=at)


def staged_update(record: KeyRecord, state: StateObject, at: datetime) -> KeyRecord:
    """The key with this state staged. All updates of one lease make one version."""
    staged = replace(_begun(record), state=state, same=False, over=_over(record))
    return replace(record, staged=staged, updated_at=at)


def staged_removal(record: KeyRecord, at: datetime) -> KeyRecord | None:
    """The key with its removal staged; None if there is nothing to remove. Each removal is a version of its own."""
    before = record.staged
    there = record.state if before is None or before.same else before.state
    if there is None:
        return None
    version = (record.version if before is None else before.version) + 1
    staged = replace(_begun(record), version=version, state=None, same=False, over=_over(record))
    return replace(record, staged=staged, updated_at=at)


def staged_hidden(record: KeyRecord, hidden: bool, at: datetime) -> KeyRecord:
    """The key with this attribute staged."""
    return replace(record, staged=replace(_begun(record), hidden=hidden), updated_at=at)


def staged_attachments(record: KeyRecord, attachments: tuple[Attachment, ...], at: datetime) -> KeyRecord:
    """The key with these attachments staged, and no others."""
    return replace(record, staged=replace(_begun(record), attachments=attachments), updated_at=at)


def _over(record: KeyRecord) -> Over | msgspec.UnsetType:
    return msgspec.UNSET if record.staged is None else record.seen_by_holder()


def _begun(record: KeyRecord) -> Staged:
    """What is staged already, or the first that changes nothing yet: all of one lease make one version."""
    return record.staged or Staged(record.held.transaction, record.version + 1, same=True)


def committed(record: KeyRecord, at: datetime) -> KeyRecord:
    """The key after a commit of what is staged, its lease given back."""
    staged = record.staged
    if staged is None:
        return released(record, at)
    return replace(
        record,
        lease=None,
        staged=None,
        updated_at=at,
        look_at=_look_left(record, at),
        version=staged.version,
        state=record.state if staged.same else staged.state,
        hidden=record.hidden if staged.hidden is None else staged.hidden,
        attachments=record.attachments if staged.attachments is None else staged.attachments,
    )


def released(record: KeyRecord, at: datetime) -> KeyRecord:
    """The key after its lease was given back and what was staged thrown away."""
    return replace(record, lease=None, staged=None, updated_at=at, look_at=_look_left(record, at))


def cleared(record: KeyRecord, at: datetime, look_at: datetime | None) -> KeyRecord:
    """The key without its lease and without what was staged under it."""
    dropped, forgotten = record.dropped, record.forgotten
    if record.lease is not None and record.staged is not None:
        dropped = (record.lease.token, *dropped)
        forgotten = max(forgotten, *dropped[DROPPED_MAX:], 0)
    return replace(
        record,
        lease=None,
        staged=None,
        updated_at=at,
        look_at=look_at,
        dropped=dropped[:DROPPED_MAX],
        forgotten=forgotten,
    )


def _look_left(record: KeyRecord, at: datetime) -> datetime | None:
    """Once the time for a second look has come, the index entry that is left behind stands for it."""
    return record.look_at if record.look_at is not None and at < record.look_at else None
