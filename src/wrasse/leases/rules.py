"""What may be done with a key at this moment of the store's clock. Pure: every rule about leases on keys is here.

A lease is over at `until`, whether or not anybody has cleared it. A contender waits `margin` longer, because its idea
of the store's clock may be off; a holder stops that much earlier. After a lease that ended by itself the key stays
closed for `delay`, so that what a paused holder still has on its way can arrive before somebody else begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from wrasse.leases.meta import Attachment, Grant, Meta, Over, Staged, State, cleared, first_token
from wrasse.leases.refusal import KeyRefused, Refusal

LOOK_AGAIN = timedelta(hours=1)  # how late a holder whose lease has ended may still write an object


@dataclass(frozen=True, slots=True)
class Terms:
    """How careful to be about clocks."""

    margin: timedelta = timedelta(0)
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Held:
    """What a holder shows: the key, its lease, the token, the transaction."""

    key: str
    id: str
    token: int
    transaction: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What an acquire asks for. `id` names the lease to be: asking again with the same one gives the same lease."""

    owner: str
    ttl: timedelta
    id: str
    transaction: str
    explicit: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """The key as the acquire leaves it, and the lease that it ended on the way, if one was in the way."""

    meta: Meta
    ended: Grant | None = None


@dataclass(frozen=True, slots=True)
class Mine:
    """The lease was granted already: the reply to that acquire got lost."""

    meta: Meta


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else holds it, until then at most."""

    until: datetime


def over(grant: Grant, at: datetime, terms: Terms) -> bool:
    """Whether a contender may take the key."""
    return at >= grant.until + terms.margin + terms.delay


def acquire(meta: Meta | None, asked: Asked, at: datetime, terms: Terms) -> Granted | Mine | Busy:
    """What becomes of an acquire."""
    if meta is not None and meta.grant is not None and meta.grant.id == asked.id and at < meta.grant.until:
        return Mine(meta)
    if meta is not None and asked.if_not_exists:
        raise KeyRefused(Refusal.ALREADY_EXISTS, "the key exists already")
    ended = None if meta is None else meta.grant
    if ended is not None and not over(ended, at, terms):
        return Busy(ended.until + terms.margin + terms.delay)
    token = first_token(at) if meta is None else meta.token + 1
    grant = Grant(asked.id, asked.owner, token, at + asked.ttl, asked.transaction, asked.explicit)
    kept = Meta(token) if meta is None else meta
    if ended is not None:
        kept = cleared(kept, at, at + LOOK_AGAIN)
    return Granted(replace(kept, token=token, grant=grant, updated_at=at), ended)


def check_held(meta: Meta | None, held: Held, at: datetime, terms: Terms) -> Grant:
    """The lease that the caller holds; refuses in the order that clients know."""
    grant = None if meta is None else meta.grant
    version, etag = (0, "") if meta is None else (meta.version, meta.etag)

    def refuse(code: Refusal, message: str) -> KeyRefused:
        return KeyRefused(code, f"{message} ({held.key!r})", version=version, etag=etag)

    if grant is None or grant.id != held.id:
        raise refuse(Refusal.LEASE_REQUIRED, "the caller does not hold the key")
    if at >= grant.until - terms.margin:
        raise refuse(Refusal.LEASE_EXPIRED, "the lease has ended")
    if grant.token != held.token:
        raise refuse(Refusal.FENCING_MISMATCH, f"the token {held.token} is not that of the lease")
    if not held.transaction:
        raise refuse(Refusal.MISSING_TRANSACTION, "the call names no transaction")
    if grant.transaction != held.transaction:
        raise refuse(Refusal.TRANSACTION_MISMATCH, "the lease belongs to another transaction")
    return grant


def check_expected(meta: Meta, if_version: int | None, if_etag: str | None) -> None:
    """Refuses a change whose caller saw another version. What this lease has staged counts as seen."""
    seen = meta.seen_by_holder()
    version, etag = seen.version, seen.etag
    if if_version is not None and if_version != version:
        raise KeyRefused(Refusal.VERSION_CONFLICT, f"the version is {version}, not {if_version}", version=version)
    if if_etag is not None and if_etag.strip('"') != etag:
        raise KeyRefused(Refusal.ETAG_MISMATCH, "the state is another one", version=version, etag=etag)


def renewed(meta: Meta, ttl: timedelta, at: datetime) -> Meta:
    """The key with its lease `ttl` from now."""
    assert meta.grant is not None, "only a held key is renewed"
    return replace(meta, grant=replace(meta.grant, until=at + ttl), updated_at=at)


def staged_update(meta: Meta, state: State, at: datetime) -> Meta:
    """The key with this state staged. All updates of one lease make one version."""
    assert meta.grant is not None, "only a holder stages"
    staged = replace(_begun(meta, meta.grant), state=state, same=False, over=_over(meta))
    return replace(meta, staged=staged, updated_at=at)


def staged_removal(meta: Meta, at: datetime) -> Meta | None:
    """The key with its removal staged; None if there is nothing to remove. Each removal is a version of its own."""
    assert meta.grant is not None, "only a holder stages"
    before = meta.staged
    there = meta.state if before is None or before.same else before.state
    if there is None:
        return None
    version = (meta.version if before is None else before.version) + 1
    staged = replace(_begun(meta, meta.grant), version=version, state=None, same=False, over=_over(meta))
    return replace(meta, staged=staged, updated_at=at)


def staged_hidden(meta: Meta, hidden: bool, at: datetime) -> Meta:
    """The key with this attribute staged."""
    assert meta.grant is not None, "only a holder stages"
    return replace(meta, staged=replace(_begun(meta, meta.grant), hidden=hidden), updated_at=at)


def staged_attachments(meta: Meta, attachments: tuple[Attachment, ...], at: datetime) -> Meta:
    """The key with these attachments staged, and no others."""
    assert meta.grant is not None, "only a holder stages"
    return replace(meta, staged=replace(_begun(meta, meta.grant), attachments=attachments), updated_at=at)


def _over(meta: Meta) -> Over | msgspec.UnsetType:
    return msgspec.UNSET if meta.staged is None else meta.seen_by_holder()


def _begun(meta: Meta, grant: Grant) -> Staged:
    """What is staged already, or the first that changes nothing yet: all of one lease make one version."""
    return meta.staged if meta.staged is not None else Staged(grant.transaction, meta.version + 1, same=True)
