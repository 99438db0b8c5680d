"""The API as an OpenAPI document, made from the structs that the calls use: what it says is what is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from wrasse import __version__
from wrasse.app.leases_http import wire
from wrasse.app.leases_http.attachments_openapi import ATTACHMENT_CALLS
from wrasse.app.leases_http.openapi_call import HELD, NAMESPACE, NUMBER, SEEN, TOKEN, WHERE, Call, header, query
from wrasse.app.leases_http.queues_openapi import QUEUE_CALLS
from wrasse.app.leases_http.transactions import TRANSACTION_CALLS
from wrasse.app.settings_leases import Role

_TEMPLATE = "#/components/schemas/{name}"
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
        parameters=(
            *WHERE,
            query("public", {"type": "string", "enum": ["0", "1", "true", "false"]}),
            header("X-Lease-ID", required=False),
            header("X-Fencing-Token", required=False, schema=NUMBER),
            header("X-Txn-ID", required=False),
        ),
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
        "get", "/v1/describe", "everything about a key but its state", wire.Described, parameters=WHERE,
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
    structs = {kind for call in CALLS for kind in (call.answer, call.body) if kind is not None} | {wire.Failure}
    _, schemas = msgspec.json.schema_components(sorted(structs, key=lambda kind: kind.__name__), ref_template=_TEMPLATE)
    paths: dict[str, dict[str, object]] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "wrasse leases", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
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
