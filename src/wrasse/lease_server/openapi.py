"""The API as an OpenAPI document, generated from the structs that check the calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from wrasse import __version__
from wrasse.config.lease_settings import Role
from wrasse.lease_server import wire
from wrasse.lease_server.wire import AttachAnswer, AttachmentList, AttachmentRemoved, AttachmentsRemoved
from wrasse.leases.names import KEY_CHARS_MAX, NAMESPACE_CHARS_MAX

KEY = {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "example": "orders/42"}
NAMESPACE = {"type": "string", "maxLength": NAMESPACE_CHARS_MAX, "default": "default"}
NUMBER = {"type": "string", "pattern": "^[0-9]{1,19}$"}
_MESSAGE = (400, 403, 404, 409, 503)
_TEMPLATE = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the document."""

    method: str
    path: str
    about: str
    answer: type | None
    body: type | None = None
    state: bool = False  # the body is the user's JSON
    sends: str = ""  # the content type of a body that is not JSON
    gives: str = ""  # the content type of an answer that is not JSON
    parameters: Sequence[Mapping[str, object]] = ()
    errors: Sequence[int] = (400, 503)
    empty: bool = False  # may answer 204
    role: Role = Role.WRITER  # the role that its caller's token needs


def query(name: str, schema: Mapping[str, object], *, required: bool = False, about: str = "") -> dict[str, object]:
    """A query parameter."""
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": about}


def header(name: str, *, required: bool, schema: Mapping[str, object] | None = None) -> dict[str, object]:
    """A header parameter."""
    return {"name": name, "in": "header", "required": required, "schema": schema or {"type": "string"}}


WHERE = (query("key", KEY, required=True), query("namespace", NAMESPACE))
HELD = (
    header("X-Lease-ID", required=True),
    header("X-Fencing-Token", required=True, schema=NUMBER),
    header("X-Txn-ID", required=True),
)
SEEN = (header("X-If-Version", required=False, schema=NUMBER), header("X-If-State-ETag", required=False))
TOKEN = (header("X-Fencing-Token", required=True, schema=NUMBER),)


def _transaction(name: str, about: str, *errors: int, role: Role = Role.WRITER) -> Call:
    answer, body = wire.TransactionAnswer, wire.TransactionBody
    return Call("post", f"/v1/txn/{name}", about, answer, body, errors=errors, role=role)


TRANSACTION_CALLS = (
    _transaction("decide", "commit or roll back a transaction; answers what counts", 400, 409, 413, 503),
    _transaction("commit", "carry out a commit that was decided, or decide for it", 400, 404, 409, 413, 503),
    _transaction("rollback", "carry out a rollback that was decided, or decide for it", 400, 404, 409, 413, 503),
    _transaction("replay", "carry a transaction to its end, if it is decided or overdue", 400, 404, 409, 503,
                 role=Role.ADMIN),
)  # fmt: skip


_BY_NAME = query("name", {"type": "string", "maxLength": 255, "example": "scan.pdf"})
_BY_ID = query("id", {"type": "string"})
_READ = (
    *WHERE,
    query("public", {"type": "string", "enum": ["0", "1", "true", "false"]}),
    header("X-Lease-ID", required=False),
    header("X-Fencing-Token", required=False, schema=NUMBER),
    header("X-Txn-ID", required=False),
)

ATTACHMENT_CALLS = (
    Call(
        "post", "/v1/attachments", "stage an attachment: the body is its bytes, in pieces", AttachAnswer,
        sends="application/octet-stream",
        parameters=(
            *WHERE, *HELD,
            query("name", {"type": "string", "minLength": 1, "maxLength": 255, "example": "scan.pdf"}, required=True),
            query("content_type", {"type": "string", "maxLength": 255}),
            query("max_bytes", NUMBER),
            query("prevent_overwrite", {"type": "string", "enum": ["0", "1", "true", "false"]}),
            header("X-Expected-SHA256", required=False), header("X-Expected-Bytes", required=False, schema=NUMBER),
        ),
        errors=(400, 403, 408, 409, 413, 503),
    ),
    Call(
        "get", "/v1/attachments", "attachments: with the lease's headers as staged, with public=1 as committed",
        AttachmentList, parameters=_READ, errors=(400, 403, 409, 503), role=Role.READER,
    ),
    Call(
        "get", "/v1/attachment", "the bytes of an attachment, by name or id", None, gives="*/*",
        parameters=(*_READ, _BY_NAME, _BY_ID), errors=(400, 403, 404, 409, 503), role=Role.READER,
    ),
    Call(
        "delete", "/v1/attachment", "stage the removal of an attachment", AttachmentRemoved,
        parameters=(*WHERE, *HELD, _BY_NAME, _BY_ID), errors=(400, 403, 409, 503),
    ),
    Call(
        "delete", "/v1/attachments", "stage the removal of every attachment", AttachmentsRemoved,
        parameters=(*WHERE, *HELD), errors=(400, 403, 409, 503),
    ),
)  # fmt: skip


QUEUE_CALLS = (
    Call(
        "post", "/v1/queue/enqueue", "store a message: the parts meta (JSON) and payload", wire.EnqueueAnswer,
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
    Call("post", "/v1/queue/ack", "a message is done, and gone", wire.Acked, wire.MessageBody, errors=_MESSAGE),
    Call(
        "post", "/v1/queue/nack", "a message failed, or is put off: visible again after a while, or dead", wire.Nacked,
        wire.MessageBody, errors=_MESSAGE,
    ),
    Call("post", "/v1/queue/extend", "hold a message for longer", wire.Extended, wire.MessageBody, errors=_MESSAGE),
    Call("post", "/v1/queue/stats", "what waits in a queue", wire.Stats, wire.StatsBody, role=Role.READER),
)  # fmt: skip


_BYTES: Mapping[str, object] = {"type": "string", "format": "binary"}

_LEASES = (
    Call("post", "/v1/acquire", "take the lease of a key", wire.Acquired, wire.AcquireBody, errors=(400, 409, 503)),
    Call(
        "post", "/v1/keepalive", "renew a lease", wire.Renewed, wire.KeepaliveBody, parameters=TOKEN,
        errors=(400, 403, 409, 503),
    ),
    Call(
        "post", "/v1/get", "read the state: with the lease's headers what is staged, with public=1 what is committed",
        None,
        parameters=_READ,
        errors=(400, 403, 409, 503), empty=True, role=Role.READER,
    ),
    Call(
        "post", "/v1/update", "stage a new state", wire.Updated, state=True,
        parameters=(
            *WHERE, *HELD, *SEEN,
            header("X-Expected-SHA256", required=False), header("X-Expected-Bytes", required=False, schema=NUMBER),
        ),
        errors=(400, 403, 408, 409, 413, 503),
    ),
    Call(
        "post", "/v1/remove", "stage the removal of the state", wire.Removed, parameters=(*WHERE, *HELD, *SEEN),
        errors=(400, 403, 409, 503),
    ),
    Call(
        "post", "/v1/metadata", "stage a change of attributes", wire.MetadataChanged, wire.MetadataBody,
        parameters=(
            *WHERE, *HELD, SEEN[0], header("X-Lockd-Meta-Query-Hidden", required=False),
        ),
        errors=(400, 403, 409, 503),
    ),
    Call(
        "post", "/v1/release", "give the key back: commit what is staged, or roll it back", wire.Released,
        wire.ReleaseBody, parameters=TOKEN, errors=(400, 403, 409, 503),
    ),
    Call(
        "get", "/v1/describe", "everything about a key but its state", wire.DescribeAnswer, parameters=WHERE,
        role=Role.READER,
    ),
    Call(
        "get", "/v1/keys", "keys in the order of their stored names", wire.KeyList,
        parameters=(
            query("namespace", NAMESPACE), query("prefix", {"type": "string"}), query("after", {"type": "string"}),
            query("limit", {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100}),
        ),
        role=Role.READER,
    ),
    Call(
        "get", "/v1/namespace", "the settings of a namespace", wire.NamespaceAnswer,
        parameters=(query("namespace", NAMESPACE),), role=Role.READER,
    ),
    Call("post", "/v1/namespace", "accepted, and without effect: there are no queries", wire.NamespaceAnswer,
         wire.NamespaceBody, role=Role.ADMIN),
)  # fmt: skip

CALLS = (*_LEASES, *TRANSACTION_CALLS, *ATTACHMENT_CALLS, *QUEUE_CALLS)


def document() -> dict[str, Any]:
    """The whole document."""
    structs = {kind for call in CALLS for kind in (call.answer, call.body) if kind is not None} | {wire.ErrorAnswer}
    _, schemas = msgspec.json.schema_components(sorted(structs, key=lambda kind: kind.__name__), ref_template=_TEMPLATE)
    paths: dict[str, dict[str, object]] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "wrasse leases", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _operation(call: Call) -> dict[str, object]:
    name = call.path.removeprefix("/v1/").replace("/", "_")
    operation: dict[str, object] = {
        "operationId": f"{call.method}_{name}",
        "summary": call.about,
        "x-wrasse-role": call.role,
        "responses": _responses(call),
    }
    if call.parameters:
        operation["parameters"] = list(call.parameters)
    if call.body is not None:
        operation["requestBody"] = _content({"$ref": _TEMPLATE.format(name=call.body.__name__)})
    if call.state:
        operation["requestBody"] = _content({})
    if call.sends:
        operation["requestBody"] = _content(_BYTES, call.sends)
    return operation


def _responses(call: Call) -> dict[str, object]:
    answer = {} if call.answer is None else {"$ref": _TEMPLATE.format(name=call.answer.__name__)}
    content = {"application/json": {"schema": answer}} if not call.gives else {call.gives: {"schema": _BYTES}}
    responses: dict[str, object] = {"200": {"description": "done", "content": content}}
    if call.empty:
        responses["204"] = {"description": "there is no state"}
    failure = {"$ref": _TEMPLATE.format(name="Failure")}
    reads = (408, 413) if call.body is not None or call.state or call.sends else ()
    for status in sorted({400, 401, 403, 503, *reads, *call.errors}):
        responses[str(status)] = {
            "description": "refused" if status < 500 else "the store does not answer",
            "content": {"application/json": {"schema": failure}},
        }
    return responses


def _content(schema: Mapping[str, object], kind: str = "application/json") -> dict[str, object]:
    return {"required": True, "content": {kind: {"schema": schema}}}
