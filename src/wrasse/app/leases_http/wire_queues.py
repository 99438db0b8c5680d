"""Bodies and answers of the queue calls: strict structs in, plain structs out, whole seconds, zero values left out."""

from __future__ import annotations

import msgspec

SECONDS_MAX = 30 * 24 * 3_600


class EnqueueMeta(msgspec.Struct):
    """The part `meta` of POST /v1/queue/enqueue; fields that nobody knows are let pass, as in lockd."""

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
    """POST /v1/queue/ack, nack and extend: which message, and proof of holding it."""

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


class Enqueued(msgspec.Struct):
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


class Message(msgspec.Struct, omit_defaults=True):
    """A message that was handed out."""

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

    message: Message
    next_cursor: str = ""


class Acked(msgspec.Struct):
    """The answer to an ack."""

    acked: bool
    correlation_id: str


class Nacked(msgspec.Struct):
    """The answer to a nack. `requeued` is false for a message that has no attempts left: it is dead."""

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
    """The answer to stats. `pending_candidates` are messages that wait, delayed ones included."""

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
