"""Bodies and answers on the wire: strict structs in, plain structs out, whole seconds, zero values left out."""

from __future__ import annotations

import msgspec

from wrasse.leases.lease import KeyRecord


class AcquireBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/acquire. `block_seconds`: -1 does not wait, 0 waits until the client goes away."""

    namespace: str = ""
    key: str = ""
    owner: str = ""
    ttl_seconds: int = 0
    block_seconds: int = 0
    if_not_exists: bool = False
    txn_id: str = ""
    lease_id: str = ""  # beyond lockd: the same id asked again gives the same lease


class KeepaliveBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/keepalive."""

    namespace: str = ""
    key: str = ""
    lease_id: str = ""
    ttl_seconds: int = 0
    txn_id: str = ""


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/release."""

    namespace: str = ""
    key: str = ""
    lease_id: str = ""
    txn_id: str = ""
    rollback: bool = False


class MetadataBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/metadata."""

    query_hidden: bool | None = None


class NamespaceBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/namespace. Queries are not part of this server; what was set is given back."""

    namespace: str = ""
    query: QueryEngines | None = None


class QueryEngines(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which engines a query would use."""

    preferred_engine: str = ""
    fallback_engine: str = ""


class Acquired(msgspec.Struct, omit_defaults=True):
    """The answer to an acquire."""

    namespace: str
    lease_id: str
    txn_id: str
    key: str
    owner: str
    expires_at_unix: int
    version: int | None
    state_etag: str = ""
    fencing_token: int | None = None
    correlation_id: str = ""


class Renewed(msgspec.Struct):
    """The answer to a keepalive."""

    expires_at_unix: int


class Metadata(msgspec.Struct, omit_defaults=True):
    """The attributes of a key."""

    query_hidden: bool = False


class Updated(msgspec.Struct):
    """The answer to an update."""

    new_version: int
    new_state_etag: str
    bytes: int
    metadata: Metadata


class Removed(msgspec.Struct, omit_defaults=True):
    """The answer to a remove."""

    removed: bool | None
    new_version: int = 0


class MetadataChanged(msgspec.Struct):
    """The answer to a change of attributes."""

    namespace: str
    key: str
    version: int
    metadata: Metadata


class Released(msgspec.Struct):
    """The answer to a release."""

    released: bool


class Described(msgspec.Struct, omit_defaults=True):
    """The answer to describe."""

    namespace: str
    key: str
    owner: str = ""
    lease_id: str = ""
    expires_at_unix: int = 0
    version: int | None = None
    state_etag: str = ""
    updated_at_unix: int = 0
    metadata: Metadata | None = None


class KeyList(msgspec.Struct, omit_defaults=True):
    """The answer to a listing of keys, which lockd does not have."""

    namespace: str
    keys: tuple[str, ...] | None
    next_cursor: str = ""


class NamespaceAnswer(msgspec.Struct):
    """The answer to GET and POST /v1/namespace."""

    namespace: str
    query: QueryEngines


class Failure(msgspec.Struct, omit_defaults=True):
    """Every error."""

    error: str
    detail: str
    current_version: int = 0
    current_etag: str = ""
    retry_after_seconds: int = 0


def acquired(leased: KeyRecord, typed: str, correlation: str) -> Acquired:
    """The answer to an acquire; the key comes back as the client typed it."""
    grant = leased.held
    return Acquired(
        namespace=grant.namespace,
        lease_id=grant.id,
        txn_id=grant.transaction,
        key=typed,
        owner=grant.owner,
        expires_at_unix=int(grant.until.timestamp()),
        version=leased.version,
        state_etag=leased.etag,
        fencing_token=grant.token,
        correlation_id=correlation,
    )


def described(namespace: str, key: str, meta: KeyRecord | None, *, over: bool) -> Described:
    """The answer to describe; a key nobody knows has version 0, and a lease that has ended is none."""
    if meta is None:
        return Described(namespace, key, version=0, metadata=Metadata())
    grant = None if over else meta.lease
    return Described(
        namespace,
        key,
        owner="" if grant is None else grant.owner,
        lease_id="" if grant is None else grant.id,
        expires_at_unix=0 if grant is None else int(grant.until.timestamp()),
        version=meta.version,
        state_etag=meta.etag,
        updated_at_unix=int(meta.updated_at.timestamp()),
        metadata=Metadata(meta.hidden),
    )
