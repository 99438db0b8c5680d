"""The calls for queues, as the OpenAPI document tells them."""

from __future__ import annotations

from wrasse.app.leases_http import wire_queues as wire
from wrasse.app.leases_http.openapi_call import Call
from wrasse.app.settings_leases import Role

_HELD = (400, 403, 404, 409, 503)

QUEUE_CALLS = (
    Call(
        "post", "/v1/queue/enqueue", "store a message: the parts meta (JSON) and payload", wire.Enqueued,
        sends="multipart/form-data", errors=(400, 408, 409, 413, 503),
    ),
    Call(
        "post", "/v1/queue/dequeue", "take messages: for each the parts meta and payload", None, wire.DequeueBody,
        gives="multipart/related", errors=(400, 409, 503),
    ),
    Call(
        "post", "/v1/queue/dequeueWithState", "take a message and the lease of its state", None, wire.DequeueBody,
        gives="multipart/related", errors=(400, 409, 503),
    ),
    Call("post", "/v1/queue/ack", "a message is done, and gone", wire.Acked, wire.MessageBody, errors=_HELD),
    Call(
        "post", "/v1/queue/nack", "a message failed, or is put off: visible again after a while, or dead", wire.Nacked,
        wire.MessageBody, errors=_HELD,
    ),
    Call("post", "/v1/queue/extend", "hold a message for longer", wire.Extended, wire.MessageBody, errors=_HELD),
    Call("post", "/v1/queue/stats", "what waits in a queue", wire.Stats, wire.StatsBody, role=Role.READER),
)  # fmt: skip
