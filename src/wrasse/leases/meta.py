"""The record of a key: its lease, its version, and which state object counts. Pure.

Everything about a key changes by one conditional write of this record. State objects are written once, under a name of
their own, and mean nothing until the record names them: a commit cannot be torn, and whoever comes late changes
nothing that anybody reads.

These are structs and not dataclasses: every operation copies some of them, which is a tenth of what it costs otherwise.
None of them can be part of a ring, so Python's collector need not look at them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from wrasse.bounded import UNREADABLE
from wrasse.clock import EPOCH
from wrasse.errors import StoreBroken
from wrasse.ports.records import Record

DROPPED_MAX = 4
_MILLISECOND = timedelta(milliseconds=1)


class Grant(msgspec.Struct, frozen=True, gc=False):
    """A lease as it was granted: who, under which token, until when, and the transaction it belongs to. `explicit`:
    the caller named the transaction, so that it may have other keys."""

    id: str
    owner: str
    token: int
    until: datetime
    transaction: str
    explicit: bool = False


class State(msgspec.Struct, frozen=True, gc=False):
    """One state object: its name, the version its store gave it, its etag, how long it is."""

    name: str
    version: str
    etag: str
    size: int


class Attachment(msgspec.Struct, frozen=True, gc=False):
    """A file that rides along with the state, in an object of its own. Its id stays when its bytes are replaced."""

    id: str
    name: str
    object: State
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
    state: State | None = None
    same: bool = False
    hidden: bool | None = None
    attachments: tuple[Attachment, ...] | None = None
    over: Over | msgspec.UnsetType = msgspec.UNSET  # not written where there is none, as before there was this field


class Meta(msgspec.Struct, frozen=True, gc=False):
    """Everything about one key. `token` is the highest that was ever given. `look_at`: when to look once more for
    objects that a holder whose lease ended by itself may have written late. `dropped`: the tokens of the last
    leases that ended with something staged, so that a commit which comes too late is told so; `forgotten`: the highest
    token of those that no longer stand there. `leaving`: objects that the last change no longer names; they may be
    there still if whoever made it died, and the next one takes them away with its own."""

    token: int
    grant: Grant | None = None
    version: int = 0
    state: State | None = None
    staged: Staged | None = None
    hidden: bool = False
    updated_at: datetime = EPOCH
    look_at: datetime | None = None
    dropped: tuple[int, ...] = ()
    forgotten: int = 0
    attachments: tuple[Attachment, ...] = ()
    leaving: tuple[State, ...] = ()

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

    def objects(self) -> list[State]:
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

    def superseded_by(self, after: Meta) -> list[State]:
        """Objects that this record names and `after` does not: once that is written, nobody needs them."""
        kept = {each.name for each in after.objects()}
        return [each for each in self.objects() if each.name not in kept]


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A key's record as it was last seen: what it says, and the version a change must name."""

    meta: Meta
    version: str


_DECODER = msgspec.json.Decoder(Meta)
_ENCODER = msgspec.json.Encoder()


def encode(meta: Meta) -> bytes:
    """The bytes of a key's record."""
    return _ENCODER.encode(meta)


def decode(record: Record) -> Kept:
    """What a key's record says."""
    try:
        return Kept(_DECODER.decode(record.value), record.version)
    except UNREADABLE as error:
        raise StoreBroken(
            f"the record of the key {record.key!r} is not one that wrasse wrote",
            do="see who else writes there, then delete the record; its next lease starts with a higher token",
        ) from error


def decode_listed(record: Record) -> Kept | None:
    """What a key's record says, for listings and sweeps, which go past one that cannot be read: then None."""
    try:
        return decode(record)
    except StoreBroken:
        return None


def first_token(at: datetime) -> int:
    """The token of a key that has no record: above any that a deleted record can have given out."""
    return (at - EPOCH) // _MILLISECOND


def committed(meta: Meta, at: datetime) -> Meta:
    """The key after a commit of what is staged, its lease given back."""
    staged = meta.staged
    if staged is None:
        return released(meta, at)
    return replace(
        meta,
        grant=None,
        staged=None,
        updated_at=at,
        look_at=_look_left(meta, at),
        version=staged.version,
        state=meta.state if staged.same else staged.state,
        hidden=meta.hidden if staged.hidden is None else staged.hidden,
        attachments=meta.attachments if staged.attachments is None else staged.attachments,
    )


def released(meta: Meta, at: datetime) -> Meta:
    """The key after its lease was given back and what was staged thrown away."""
    return replace(meta, grant=None, staged=None, updated_at=at, look_at=_look_left(meta, at))


def cleared(meta: Meta, at: datetime, look_at: datetime | None) -> Meta:
    """The key without its lease and without what was staged under it."""
    dropped, forgotten = meta.dropped, meta.forgotten
    if meta.grant is not None and meta.staged is not None:
        dropped = (meta.grant.token, *dropped)
        forgotten = max(forgotten, *dropped[DROPPED_MAX:], 0)
    return replace(
        meta,
        grant=None,
        staged=None,
        updated_at=at,
        look_at=look_at,
        dropped=dropped[:DROPPED_MAX],
        forgotten=forgotten,
    )


def _look_left(meta: Meta, at: datetime) -> datetime | None:
    """Once the time for a second look has come, the index entry that is left behind stands for it."""
    return meta.look_at if meta.look_at is not None and at < meta.look_at else None
