"""Bodies of requests and answers of the lease API: strict structs in, plain structs out; seconds are whole.

Zero values are omitted, and unknown fields ignored where lockd does so. Every error has one status and code, and a text
of our own.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import msgspec
from aiohttp import web

from wrasse.errors import ConfigError, StoreUnavailable, TooLarge, UsageError
from wrasse.leases.attachments import AttachmentTooLarge
from wrasse.leases.lease import KeyRecord, KeyRefused, Refusal
from wrasse.leases.leases import TooShort
from wrasse.leases.names import BadName

_STATUS = {
    Refusal.WAITING: 409,
    Refusal.ALREADY_EXISTS: 409,
    Refusal.LEASE_REQUIRED: 403,
    Refusal.LEASE_EXPIRED: 403,
    Refusal.FENCING_MISMATCH: 403,
    Refusal.MISSING_TRANSACTION: 400,
    Refusal.TRANSACTION_MISMATCH: 409,
    Refusal.TRANSACTION_ROLLED_BACK: 409,
    Refusal.TRANSACTION_COMMITTED: 409,
    Refusal.TRANSACTION_PENDING: 409,
    Refusal.TRANSACTION_UNKNOWN: 404,
    Refusal.VERSION_CONFLICT: 409,
    Refusal.ETAG_MISMATCH: 409,
    Refusal.ATTACHMENT_NOT_FOUND: 404,
    Refusal.SHA256_MISMATCH: 409,
    Refusal.BYTES_MISMATCH: 409,
}


_UNROUTED = {
    400: ("invalid_request", "the request is not valid HTTP: a line or header is too long or malformed"),
    404: ("not_found", "there is no such call: see /v1/openapi.json"),
    405: ("method_not_allowed", "this call takes another method: see /v1/openapi.json"),
    413: ("body_too_large", "the body is too long"),
    417: ("invalid_request", "the header Expect names something that this server does not support"),
}


Unnamed = Callable[[web.Request], Awaitable[web.StreamResponse]]
Named = Callable[[web.Request, str], Awaitable[web.StreamResponse]]
"""A handler that gets the name of its request, which its answer has as X-Correlation-Id."""
Wrap = Callable[[Named], Unnamed]
"""Makes handlers for aiohttp; maps errors to answers."""
_TYPED = {"Content-Type": "application/json"}
_ENCODER = msgspec.json.Encoder()
SECONDS_MAX = 30 * 24 * 3_600


class AcquireBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/acquire. `block_seconds`: -1 does not wait, 0 waits until the client goes away."""

    namespace: str = ""
    key: str = ""
    owner: str = ""
    ttl_seconds: int = 0
    block_seconds: int = 0
    if_not_exists: bool = False
    txn_id: str = ""
    lease_id: str = ""  # an addition to lockd: a retry with the same id gets the same lease


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
    """POST /v1/namespace. This server has no queries; the settings are echoed."""

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


class DescribeAnswer(msgspec.Struct, omit_defaults=True):
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


class ErrorAnswer(msgspec.Struct, omit_defaults=True):
    """Every error."""

    error: str
    detail: str
    current_version: int = 0
    current_etag: str = ""
    retry_after_seconds: int = 0


def acquired(leased: KeyRecord, typed: str, correlation: str) -> Acquired:
    """The answer to an acquire, with the key as the client spelled it."""
    grant = leased.granted
    return Acquired(
        namespace=grant.namespace,
        lease_id=grant.id,
        txn_id=grant.transaction,
        key=typed,
        owner=grant.owner,
        expires_at_unix=int(grant.expires_at.timestamp()),
        version=leased.version,
        state_etag=leased.etag,
        fencing_token=grant.token,
        correlation_id=correlation,
    )


def described(namespace: str, key: str, meta: KeyRecord | None, *, over: bool) -> DescribeAnswer:
    """The answer to describe; an unknown key has version 0, and an ended lease is omitted."""
    if meta is None:
        return DescribeAnswer(namespace, key, version=0, metadata=Metadata())
    grant = None if over else meta.lease
    return DescribeAnswer(
        namespace,
        key,
        owner="" if grant is None else grant.owner,
        lease_id="" if grant is None else grant.id,
        expires_at_unix=0 if grant is None else int(grant.expires_at.timestamp()),
        version=meta.version,
        state_etag=meta.etag,
        updated_at_unix=int(meta.updated_at.timestamp()),
        metadata=Metadata(meta.hidden),
    )


class EnqueueMeta(msgspec.Struct):
    """The part `meta` of POST /v1/queue/enqueue; unknown fields are ignored, as in lockd."""

    queue: str = ""
    namespace: str = ""
    delay_seconds: int = 0
    visibility_timeout_seconds: int = 0
    ttl_seconds: int = 0
    max_attempts: int = 0
    attributes: dict[str, msgspec.Raw] | None = None
    payload_content_type: str = ""


class DequeueBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/queue/dequeue and dequeueWithState. `wait_seconds`: -1 does not wait, 0 waits until the client goes."""

    queue: str = ""
    owner: str = ""
    namespace: str = ""
    txn_id: str = ""
    visibility_timeout_seconds: int = 0
    wait_seconds: int = 0
    page_size: int = 1
    start_after: str = ""


class MessageBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/queue/ack, nack and extend: which message, and proof of its claim."""

    queue: str = ""
    message_id: str = ""
    lease_id: str = ""
    fencing_token: int = 0
    meta_etag: str = ""
    namespace: str = ""
    txn_id: str = ""
    state_etag: str = ""
    state_lease_id: str = ""
    state_fencing_token: int = 0
    state_txn_id: str = ""
    delay_seconds: int = 0
    intent: str = ""
    last_error: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)  # any JSON
    extend_by_seconds: int = 0


class StatsBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/queue/stats."""

    queue: str = ""
    namespace: str = ""


class EnqueueAnswer(msgspec.Struct):
    """The answer to an enqueue."""

    namespace: str
    queue: str
    message_id: str
    attempts: int
    max_attempts: int
    not_visible_until_unix: int
    visibility_timeout_seconds: int
    payload_bytes: int
    correlation_id: str


class DeliveredMessage(msgspec.Struct, omit_defaults=True):
    """A delivered message."""

    namespace: str
    queue: str
    message_id: str
    attempts: int | None
    max_attempts: int | None
    not_visible_until_unix: int | None
    visibility_timeout_seconds: int | None
    payload_content_type: str
    payload_bytes: int | None
    correlation_id: str
    lease_id: str
    lease_expires_at_unix: int
    fencing_token: int
    txn_id: str
    meta_etag: str
    failure_attempts: int = 0
    attributes: msgspec.Raw | None = None
    state_etag: str = ""
    state_lease_id: str = ""
    state_lease_expires_at_unix: int = 0
    state_fencing_token: int = 0
    state_txn_id: str = ""


class MessagePart(msgspec.Struct, omit_defaults=True):
    """The part `meta` of an answer to a dequeue."""

    message: DeliveredMessage
    next_cursor: str = ""


class Acked(msgspec.Struct):
    """The answer to an ack."""

    acked: bool
    correlation_id: str


class Nacked(msgspec.Struct):
    """The answer to a nack. `requeued` is false for a message without attempts left: it is dead."""

    requeued: bool
    meta_etag: str
    correlation_id: str


class Extended(msgspec.Struct, omit_defaults=True):
    """The answer to an extend."""

    lease_expires_at_unix: int
    visibility_timeout_seconds: int
    meta_etag: str
    correlation_id: str
    state_lease_expires_at_unix: int = 0


class Stats(msgspec.Struct, omit_defaults=True):
    """The answer to stats. `pending_candidates` are ready and scheduled messages."""

    namespace: str
    queue: str
    waiting_consumers: int | None
    pending_candidates: int | None
    total_consumers: int | None
    has_active_watcher: bool | None
    available: bool | None
    correlation_id: str
    head_message_id: str = ""
    head_enqueued_at_unix: int = 0
    head_not_visible_until_unix: int = 0
    head_age_seconds: int = 0


class ParticipantBody(msgspec.Struct):
    """An enlisted key. `backend_hash` distinguishes lockd's stores; here is one store."""

    key: str = ""
    namespace: str = ""
    backend_hash: str = ""


class TransactionBody(msgspec.Struct):
    """POST /v1/txn/… There is no cluster of coordinators: `tc_term` is accepted and ignored."""

    txn_id: str = ""
    state: str = ""
    participants: list[ParticipantBody] = []
    expires_at_unix: int = 0
    tc_term: int = 0


class TransactionAnswer(msgspec.Struct):
    """The decision that counts."""

    txn_id: str
    state: str


class AttachmentInfo(msgspec.Struct):
    """One attachment."""

    id: str
    name: str
    size: int
    plaintext_sha256: str
    content_type: str
    created_at_unix: int
    updated_at_unix: int


class AttachAnswer(msgspec.Struct, omit_defaults=True):
    """The answer to POST /v1/attachments. `noop`: an attachment of this name exists and was kept."""

    attachment: AttachmentInfo | None
    version: int | None
    noop: bool = False


class AttachmentList(msgspec.Struct):
    """The answer to GET /v1/attachments."""

    namespace: str
    key: str
    attachments: tuple[AttachmentInfo, ...] | None


class AttachmentRemoved(msgspec.Struct, omit_defaults=True):
    """The answer to DELETE /v1/attachment."""

    deleted: bool | None
    version: int = 0


class AttachmentsRemoved(msgspec.Struct, omit_defaults=True):
    """The answer to DELETE /v1/attachments."""

    deleted: int | None
    version: int = 0


def answered(answer: msgspec.Struct, headers: Mapping[str, str] = MappingProxyType({})) -> web.Response:
    """The answer to a successful call."""
    return web.Response(body=_ENCODER.encode(answer), headers={**headers, **_TYPED})


def named_answer(answer: msgspec.Struct, name: str) -> web.Response:
    """The same, with the name of its request."""
    return answered(answer, {"X-Correlation-Id": name})


class WireError(Exception):
    """A request that is refused before it reaches any key."""

    def __init__(self, code: str, detail: str, *, status: int = 400, wait: int = 0) -> None:
        super().__init__(detail)
        self.code, self.detail, self.status, self.wait = code, detail, status, wait


def failed(error: Exception, correlation: str) -> web.Response:
    """The answer to a request that failed."""
    status, failure = _failure(error)
    headers = {"X-Correlation-Id": correlation}
    if failure.retry_after_seconds > 0:
        headers["Retry-After"] = str(failure.retry_after_seconds)
    return web.Response(body=_ENCODER.encode(failure), status=status, headers={**headers, **_TYPED})


def unrouted(status: int) -> web.Response:
    """The answer to an error outside any call."""
    other = ("invalid_request", "") if status < 500 else ("internal_error", "see the log of the server")
    code, detail = _UNROUTED.get(status, other)
    return failed(WireError(code, detail, status=status), "")


def _failure(error: Exception) -> tuple[int, ErrorAnswer]:
    if isinstance(error, WireError):
        return error.status, ErrorAnswer(error.code, error.detail, retry_after_seconds=error.wait)
    if isinstance(error, KeyRefused):
        wait = max(1, math.ceil(error.wait)) if error.code is Refusal.WAITING else 0
        return _STATUS[error.code], ErrorAnswer(error.code.value, error.message, error.version, error.etag, wait)
    if isinstance(error, BadName):
        code = "invalid_namespace" if "namespace" in error.message else "invalid_key"
        return 400, ErrorAnswer(code, error.message)
    if isinstance(error, TooShort):
        return 400, ErrorAnswer("invalid_ttl", error.message)
    if isinstance(error, AttachmentTooLarge):
        return 413, ErrorAnswer("attachment_too_large", error.message)
    # An error of a backend may name files, hosts and keys of the server: it is only logged.
    inside = of_backend(error)
    if isinstance(error, TooLarge):
        return 413, ErrorAnswer("body_too_large", "it is too large for the server's store" if inside else error.message)
    if isinstance(error, UsageError) and not isinstance(error, ConfigError):
        return 400, ErrorAnswer("invalid_request", "the server's store refused it" if inside else error.message)
    if isinstance(error, StoreUnavailable):
        return 503, ErrorAnswer("store_unavailable", "the store is unavailable; try again", retry_after_seconds=1)
    return 500, ErrorAnswer("internal_error", "this call failed; the server's log has it under X-Correlation-Id")


def of_backend(error: Exception) -> bool:
    """Whether a backend raised it, rather than the checks of the call."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("wrasse.backends.")
