"""The stored form of leases and keys, the rules for changing them at a given store time, and the refusals. Pure.

A `KeyRecord` is everything about a key: its lease, its version, its current state object. It changes by one conditional
write. State objects are written once, under unique names, and are ignored until the record names them: a commit is
atomic, and a late writer changes nothing that is read. A `Lease` is part of the record; the holder presents it with
each call. Refusals are a closed set of codes, the same in Python, in the CLI and over HTTP.

A lease ends at `expires_at`, whether or not its record was cleared. Another acquirer waits `margin` longer, because its
estimate of the store's clock may be wrong; the holder stops that much earlier. After a lease that expired the key stays
closed for `delay`, so that requests of a paused holder can arrive before the next lease begins. Fencing tokens only
grow: each acquire adds one, a released record keeps its last token, and a key without a record starts at the store's
unix milliseconds, above every token of a deleted record.

These are structs and not dataclasses, because every operation copies some of them: a tenth of its cost otherwise. They
cannot be part of a reference cycle, so they are exempt from garbage collection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from wrasse.bounded import UNREADABLE
from wrasse.clock import EPOCH, from_micros, to_micros
from wrasse.errors import StoreBroken, WrasseError
from wrasse.ports.records import Record

DROPPED_MAX = 4
RECHECK_AFTER = timedelta(hours=1)
"""A holder may write an object this long after its lease ended; then the key is checked again."""
_MILLISECOND = timedelta(milliseconds=1)
_ENCODER = msgspec.json.Encoder()


class Refusal(StrEnum):
    """Why an operation was refused. Nothing was changed."""

    WAITING = "waiting"  # another holder has the key
    ALREADY_EXISTS = "already_exists"  # the key exists, and the caller required a new one
    LEASE_REQUIRED = "lease_required"  # the caller does not hold the key
    LEASE_EXPIRED = "lease_expired"  # the caller held the lease, but it has ended
    FENCING_MISMATCH = "fencing_mismatch"  # the token is not that of the lease
    MISSING_TRANSACTION = "missing_txn"
    TRANSACTION_MISMATCH = "txn_mismatch"  # the lease belongs to another transaction
    TRANSACTION_ROLLED_BACK = "txn_rolled_back"  # decided otherwise before this commit
    TRANSACTION_COMMITTED = "txn_conflict"  # decided for a commit before this rollback, or this further change
    TRANSACTION_PENDING = "txn_pending"  # nothing is decided yet
    TRANSACTION_UNKNOWN = "txn_not_found"  # it does not exist, or its decision has expired
    VERSION_CONFLICT = "version_conflict"
    ETAG_MISMATCH = "etag_mismatch"
    ATTACHMENT_NOT_FOUND = "attachment_not_found"
    SHA256_MISMATCH = "expected_sha256_mismatch"  # the bytes do not match the expected checksum
    BYTES_MISMATCH = "expected_bytes_mismatch"


_DO = {
    Refusal.WAITING: "wait for it, or see who has it with `wrasse leases show`",
    Refusal.ALREADY_EXISTS: "acquire it without if_not_exists",
    Refusal.LEASE_REQUIRED: "acquire the key first",
    Refusal.LEASE_EXPIRED: "acquire the key again and read its state anew; what was staged is gone",
    Refusal.FENCING_MISMATCH: "send the token that the acquire gave",
    Refusal.MISSING_TRANSACTION: "send the transaction that the acquire gave",
    Refusal.TRANSACTION_MISMATCH: "send the transaction that the acquire gave",
    Refusal.TRANSACTION_ROLLED_BACK: "acquire the keys again and repeat the whole transaction",
    Refusal.TRANSACTION_COMMITTED: "what was staged is committed; begin another transaction for anything further",
    Refusal.TRANSACTION_PENDING: "decide it, or wait until its leases end",
    Refusal.TRANSACTION_UNKNOWN: "check the id; decisions are remembered for 24 hours",
    Refusal.VERSION_CONFLICT: "read the state anew and decide again",
    Refusal.ETAG_MISMATCH: "read the state anew and decide again",
    Refusal.ATTACHMENT_NOT_FOUND: "see which there are with `wrasse leases attachments`",
    Refusal.SHA256_MISMATCH: "send the bytes again; nothing was staged",
    Refusal.BYTES_MISMATCH: "send the bytes again; nothing was staged",
}


class KeyRefused(WrasseError):
    """A refused operation on a key. `version` and `etag` are the key's current ones, where relevant; `wait` is the
    number of seconds after which a retry is useful."""

    def __init__(self, code: Refusal, message: str, *, version: int = 0, etag: str = "", wait: float = 0.0) -> None:
        super().__init__(message, do=_DO[code])
        self.code, self.version, self.etag, self.wait = code, version, etag, wait

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.code, self.message, self.version, self.etag, self.wait))


def _rebuild(code: Refusal, message: str, version: int, etag: str, wait: float) -> KeyRefused:
    return KeyRefused(code, message, version=version, etag=etag, wait=wait)


class Lease(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A lease: holder, fencing token, expiry, transaction. `explicit`: the caller named the transaction, so that it may
    have other keys. `key` and `namespace`: set where a holder presents the lease."""

    id: str
    owner: str
    token: int
    expires_at: datetime = msgspec.field(name="until")
    transaction: str
    explicit: bool = False
    key: str = ""  # neither is stored
    namespace: str = ""


def presented_lease(namespace: str, key: str, id: str, token: int, transaction: str) -> Lease:
    """The lease as a holder presents it."""
    return Lease(id, "", token, EPOCH, transaction, False, key, namespace)


def public(namespace: str, key: str) -> Lease:
    """A key as it is read without a lease: only committed data."""
    return presented_lease(namespace, key, "", 0, "")


class StateObject(msgspec.Struct, frozen=True, gc=False):
    """A state object: its name, the store's version, its etag and size."""

    name: str
    version: str
    etag: str
    size: int


class Attachment(msgspec.Struct, frozen=True, gc=False):
    """A file beside the state, in an object of its own. Its id stays when its bytes are replaced."""

    id: str
    name: str
    object: StateObject
    sha256: str
    content_type: str
    created_at: datetime
    updated_at: datetime


class Over(msgspec.Struct, frozen=True, gc=False):
    """What the holder saw before its last change: the version, and the etag of the state or an empty text."""

    version: int
    etag: str


class Staged(msgspec.Struct, frozen=True, gc=False):
    """What a commit of this lease will change. `state` is None after a removal, and for a change that keeps the state
    (`same`). `attachments` is the complete new list; None: unchanged. `over`: what this lease had staged before its
    last change of the state."""

    transaction: str
    version: int
    state: StateObject | None = None
    same: bool = False
    hidden: bool | None = None
    attachments: tuple[Attachment, ...] | None = None
    over: Over | msgspec.UnsetType = msgspec.UNSET  # omitted where there is none, as records without this field are


class KeyRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Everything about one key. `token` is the highest ever granted. `recheck_at`: when to check again for objects that
    the holder of an expired lease may have written late. `dropped`: tokens of the last leases that expired with
    something staged, so that a late commit is refused; `forgotten`: the highest token that is no longer listed there.
    `leaving`: objects that the last change no longer names; they remain if the process died before deleting them, and
    the next release deletes them with its own."""

    token: int
    lease: Lease | None = msgspec.field(default=None, name="grant")
    version: int = 0
    state: StateObject | None = None
    staged: Staged | None = None
    hidden: bool = False
    updated_at: datetime = EPOCH
    recheck_at: datetime | None = msgspec.field(default=None, name="look_at")
    dropped: tuple[int, ...] = ()
    forgotten: int = 0
    attachments: tuple[Attachment, ...] = ()
    leaving: tuple[StateObject, ...] = ()
    stored: str = ""  # the store's version, which a change must name; empty: not stored yet

    @property
    def granted(self) -> Lease:
        """The lease of a key that is leased."""
        assert self.lease is not None, "the key is leased"
        return self.lease

    @property
    def etag(self) -> str:
        """Of the committed state; empty if there is none."""
        return "" if self.state is None else self.state.etag

    def seen_by_holder(self) -> Over:
        """Version and etag, including what is staged."""
        staged = self.staged
        if staged is None or staged.same:
            return Over(self.version if staged is None else staged.version, self.etag)
        return Over(staged.version, "" if staged.state is None else staged.state.etag)

    def has_dropped(self, token: int) -> bool:
        """Whether what this token staged was discarded, or may have been: in doubt a commit is refused."""
        return token in self.dropped or 0 < token <= self.forgotten

    def objects(self) -> list[StateObject]:
        """Every object that is committed or staged, each once."""
        staged = self.staged
        if staged is None and not self.attachments:
            return [] if self.state is None else [self.state]
        found = [self.state, None if staged is None else staged.state]
        found += [each.object for each in self.attachments]
        if staged is not None and staged.attachments is not None:
            found += [each.object for each in staged.attachments]
        return list({each.name: each for each in found if each is not None}.values())

    def names(self, name: str) -> bool:
        """Whether this object is committed or staged."""
        return any(each.name == name for each in self.objects())

    def superseded_by(self, after: KeyRecord) -> list[StateObject]:
        """Objects that this record names and `after` does not: unreferenced once `after` is written."""
        kept = {each.name for each in after.objects()}
        return [each for each in self.objects() if each.name not in kept]


@dataclass(frozen=True, slots=True)
class KeyCodec:
    """The stored form of a key's record, and whether its lease is in the due index."""

    encode: Callable[[KeyRecord], bytes]
    decode: Callable[[bytes], KeyRecord]
    indexed: bool = True


class _Bare(msgspec.Struct, frozen=True, gc=False):
    owner: str  # empty: no lease
    token: int
    until: int  # microseconds since 1970
    grant: str  # the id of the lease; empty where an earlier version of wrasse renewed it


_DECODER = msgspec.json.Decoder(KeyRecord)
_BARE_DECODER = msgspec.json.Decoder(_Bare)


def _encode_bare(record: KeyRecord) -> bytes:
    lease = record.lease
    if lease is None:
        return _ENCODER.encode(_Bare("", record.token, 0, ""))
    return _ENCODER.encode(_Bare(lease.owner, lease.token, to_micros(lease.expires_at), lease.id))


def _decode_bare(value: bytes) -> KeyRecord:
    bare = _BARE_DECODER.decode(value)
    expires_at = from_micros(bare.until)
    return KeyRecord(bare.token, Lease(bare.grant, bare.owner, bare.token, expires_at, "") if bare.owner else None)


KEYS = KeyCodec(lambda record: _ENCODER.encode(replace(record, stored="")), _DECODER.decode)
BARE = KeyCodec(_encode_bare, _decode_bare, indexed=False)
"""The engine's own leases: neither state nor transaction."""


def decode(record: Record, codec: KeyCodec = KEYS) -> KeyRecord:
    """Decodes a key's record."""
    try:
        return replace(codec.decode(record.value), stored=record.version)
    except UNREADABLE as error:
        raise StoreBroken(
            f"the record of the key {record.key!r} is not one that wrasse wrote",
            do="find what else writes there, then delete the record; its next lease starts with a higher token",
        ) from error


def decode_listed(record: Record) -> KeyRecord | None:
    """Decodes a key's record for listings and sweeps; None for one that cannot be decoded, which they skip."""
    try:
        return decode(record)
    except StoreBroken:
        return None


def first_token(at: datetime) -> int:
    """The token of a key that has no record: above any that a deleted record can have granted."""
    return (at - EPOCH) // _MILLISECOND


@dataclass(frozen=True, slots=True)
class Terms:
    """Tolerances for clock differences."""

    margin: timedelta = timedelta(0)
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """The parameters of an acquire. `id` names the new lease: a retry with the same id gets the same lease."""

    owner: str
    ttl: timedelta
    id: str
    transaction: str
    explicit: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class Busy:
    """Another holder has the key, until then at most."""

    until: datetime


def over(lease: Lease, at: datetime, terms: Terms) -> bool:
    """Whether another acquirer may take the key."""
    return at >= lease.expires_at + terms.margin + terms.delay


def acquire(record: KeyRecord | None, request: AcquireRequest, at: datetime, terms: Terms) -> KeyRecord | Busy:
    """The record with the requested lease, replacing one that has expired. The same record: the lease was granted
    already, and the reply to that acquire was lost."""
    lease = None if record is None else record.lease
    if lease is not None and lease.id == request.id and at < lease.expires_at:
        assert record is not None, "a lease is part of a record"
        return record
    if record is not None and request.if_not_exists:
        raise KeyRefused(Refusal.ALREADY_EXISTS, "the key exists already")
    if lease is not None and not over(lease, at, terms):
        return Busy(lease.expires_at + terms.margin + terms.delay)
    token = first_token(at) if record is None else record.token + 1
    before = KeyRecord(token) if record is None else record
    if lease is not None:
        before = cleared(before, at, at + RECHECK_AFTER)
    granted = Lease(request.id, request.owner, token, at + request.ttl, request.transaction, request.explicit)
    return replace(before, token=token, lease=granted, updated_at=at)


def check_holder(record: KeyRecord | None, lease: Lease, at: datetime, terms: Terms) -> Lease:
    """The current lease, if the caller holds it; refuses in the order that clients expect."""
    current = None if record is None else record.lease
    version, etag = (0, "") if record is None else (record.version, record.etag)

    def refuse(code: Refusal, message: str) -> KeyRefused:
        return KeyRefused(code, f"{message} ({lease.key!r})", version=version, etag=etag)

    if current is None or current.id != lease.id:
        raise refuse(Refusal.LEASE_REQUIRED, "the caller does not hold the key")
    if at >= current.expires_at - terms.margin:
        raise refuse(Refusal.LEASE_EXPIRED, "the lease has ended")
    if current.token != lease.token:
        raise refuse(Refusal.FENCING_MISMATCH, f"the token {lease.token} is not that of the lease")
    if current.transaction != lease.transaction:
        if not lease.transaction:
            raise refuse(Refusal.MISSING_TRANSACTION, "the call names no transaction")
        raise refuse(Refusal.TRANSACTION_MISMATCH, "the lease belongs to another transaction")
    return current


def check_expected(record: KeyRecord, if_version: int | None, if_etag: str | None) -> None:
    """Refuses a change based on another version. What this lease has staged counts as seen."""
    seen = record.seen_by_holder()
    version, etag = seen.version, seen.etag
    if if_version is not None and if_version != version:
        raise KeyRefused(Refusal.VERSION_CONFLICT, f"the version is {version}, not {if_version}", version=version)
    if if_etag is not None and if_etag.strip('"') != etag:
        raise KeyRefused(Refusal.ETAG_MISMATCH, "the state is another one", version=version, etag=etag)


def renewed(record: KeyRecord, ttl: timedelta, at: datetime) -> KeyRecord:
    """The record with its lease extended to `ttl` from now."""
    return replace(record, lease=replace(record.granted, expires_at=at + ttl), updated_at=at)


def staged_update(record: KeyRecord, state: StateObject, at: datetime) -> KeyRecord:
    """The record with this state staged. All updates under one lease make one version."""
    staged = replace(_begun(record), state=state, same=False, over=_over(record))
    return replace(record, staged=staged, updated_at=at)


def staged_removal(record: KeyRecord, at: datetime) -> KeyRecord | None:
    """The record with the removal of its state staged; None if it has no state. Each removal is a new version."""
    before = record.staged
    there = record.state if before is None or before.same else before.state
    if there is None:
        return None
    version = (record.version if before is None else before.version) + 1
    staged = replace(_begun(record), version=version, state=None, same=False, over=_over(record))
    return replace(record, staged=staged, updated_at=at)


def staged_hidden(record: KeyRecord, hidden: bool, at: datetime) -> KeyRecord:
    """The record with this attribute staged."""
    return replace(record, staged=replace(_begun(record), hidden=hidden), updated_at=at)


def staged_attachments(record: KeyRecord, attachments: tuple[Attachment, ...], at: datetime) -> KeyRecord:
    """The record with exactly these attachments staged."""
    return replace(record, staged=replace(_begun(record), attachments=attachments), updated_at=at)


def _over(record: KeyRecord) -> Over | msgspec.UnsetType:
    return msgspec.UNSET if record.staged is None else record.seen_by_holder()


def _begun(record: KeyRecord) -> Staged:
    """What is staged already, or an empty change: all changes under one lease make one version."""
    return record.staged or Staged(record.granted.transaction, record.version + 1, same=True)


def committed(record: KeyRecord, at: datetime) -> KeyRecord:
    """The record after a commit of what is staged and the release of its lease."""
    staged = record.staged
    if staged is None:
        return released(record, at)
    return replace(
        record,
        lease=None,
        staged=None,
        updated_at=at,
        recheck_at=_look_left(record, at),
        version=staged.version,
        state=record.state if staged.same else staged.state,
        hidden=record.hidden if staged.hidden is None else staged.hidden,
        attachments=record.attachments if staged.attachments is None else staged.attachments,
    )


def released(record: KeyRecord, at: datetime) -> KeyRecord:
    """The record after the release of its lease, with what was staged discarded."""
    return replace(record, lease=None, staged=None, updated_at=at, recheck_at=_look_left(record, at))


def cleared(record: KeyRecord, at: datetime, recheck_at: datetime | None) -> KeyRecord:
    """The record without its expired lease and without what was staged under it."""
    dropped, forgotten = record.dropped, record.forgotten
    if record.lease is not None and record.staged is not None:
        dropped = (record.lease.token, *dropped)
        forgotten = max(forgotten, *dropped[DROPPED_MAX:], 0)
    return replace(
        record,
        lease=None,
        staged=None,
        updated_at=at,
        recheck_at=recheck_at,
        dropped=dropped[:DROPPED_MAX],
        forgotten=forgotten,
    )


def _look_left(record: KeyRecord, at: datetime) -> datetime | None:
    """The pending second check; none once its time has come, because the remaining index entry stands for it."""
    return record.recheck_at if record.recheck_at is not None and at < record.recheck_at else None
