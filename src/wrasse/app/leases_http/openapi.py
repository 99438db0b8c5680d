"""The API as an OpenAPI document, made from the structs that the calls use: what it says is what is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from wrasse import __version__
from wrasse.app.leases_http import wire
from wrasse.leases.names import KEY_CHARS_MAX, NAMESPACE_CHARS_MAX

_TEMPLATE = "#/components/schemas/{name}"
_KEY = {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "example": "orders/42"}
_NAMESPACE = {"type": "string", "maxLength": NAMESPACE_CHARS_MAX, "default": "default"}
_NUMBER = {"type": "string", "pattern": "^[0-9]{1,19}$"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the document tells it."""

    method: str
    path: str
    about: str
    answer: type | None
    body: type | None = None
    state: bool = False  # the body is the user's JSON
    parameters: Sequence[Mapping[str, object]] = ()
    errors: Sequence[int] = (400, 503)
    empty: bool = False  # may answer 204


def _query(name: str, schema: Mapping[str, object], *, required: bool = False, about: str = "") -> dict[str, object]:
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": about}


def _header(name: str, *, required: bool, schema: Mapping[str, object] | None = None) -> dict[str, object]:
    return {"name": name, "in": "header", "required": required, "schema": schema or {"type": "string"}}


_WHERE = (_query("key", _KEY, required=True), _query("namespace", _NAMESPACE))
_HELD = (
    _header("X-Lease-ID", required=True),
    _header("X-Fencing-Token", required=True, schema=_NUMBER),
    _header("X-Txn-ID", required=True),
)
_SEEN = (_header("X-If-Version", required=False, schema=_NUMBER), _header("X-If-State-ETag", required=False))
_TOKEN = (_header("X-Fencing-Token", required=True, schema=_NUMBER),)

CALLS = (
    Call("post", "/v1/acquire", "take the lease of a key", wire.Acquired, wire.AcquireBody, errors=(400, 409, 503)),
    Call(
        "post", "/v1/keepalive", "renew a lease", wire.Renewed, wire.KeepaliveBody, parameters=_TOKEN,
        errors=(400, 403, 409, 503),
    ),
    Call(
        "post", "/v1/get", "read the state: with the lease's headers what is staged, with public=1 what is committed",
        None,
        parameters=(
            *_WHERE,
            _query("public", {"type": "string", "enum": ["0", "1", "true", "false"]}),
            _header("X-Lease-ID", required=False),
            _header("X-Fencing-Token", required=False, schema=_NUMBER),
            _header("X-Txn-ID", required=False),
        ),
        errors=(400, 403, 409, 503), empty=True,
    ),
    Call(
        "post", "/v1/update", "stage a new state", wire.Updated, state=True,
        parameters=(
            *_WHERE, *_HELD, *_SEEN,
            _header("X-Expected-SHA256", required=False), _header("X-Expected-Bytes", required=False, schema=_NUMBER),
        ),
        errors=(400, 403, 408, 409, 413, 503),
    ),
    Call(
        "post", "/v1/remove", "stage the removal of the state", wire.Removed, parameters=(*_WHERE, *_HELD, *_SEEN),
        errors=(400, 403, 409, 503),
    ),
    Call(
        "post", "/v1/metadata", "stage a change of attributes", wire.MetadataChanged, wire.MetadataBody,
        parameters=(
            *_WHERE, *_HELD, _SEEN[0], _header("X-Lockd-Meta-Query-Hidden", required=False),
        ),
        errors=(400, 403, 409, 503),
    ),
    Call(
        "post", "/v1/release", "give the key back: commit what is staged, or roll it back", wire.Released,
        wire.ReleaseBody, parameters=_TOKEN, errors=(400, 403, 409, 503),
    ),
    Call("get", "/v1/describe", "everything about a key but its state", wire.Described, parameters=_WHERE),
    Call(
        "get", "/v1/keys", "keys in the order of their stored names", wire.KeyList,
        parameters=(
            _query("namespace", _NAMESPACE), _query("prefix", {"type": "string"}), _query("after", {"type": "string"}),
            _query("limit", {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100}),
        ),
    ),
    Call(
        "get", "/v1/namespace", "the settings of a namespace", wire.NamespaceAnswer,
        parameters=(_query("namespace", _NAMESPACE),),
    ),
    Call("post", "/v1/namespace", "accepted, and without effect: there are no queries", wire.NamespaceAnswer,
         wire.NamespaceBody),
)  # fmt: skip


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
        "responses": _responses(call),
    }
    if call.parameters:
        operation["parameters"] = list(call.parameters)
    if call.body is not None:
        operation["requestBody"] = _content({"$ref": _TEMPLATE.format(name=call.body.__name__)})
    if call.state:
        operation["requestBody"] = _content({})
    return operation


def _responses(call: Call) -> dict[str, object]:
    answer = {} if call.answer is None else {"$ref": _TEMPLATE.format(name=call.answer.__name__)}
    responses: dict[str, object] = {"200": {"description": "done", "content": {"application/json": {"schema": answer}}}}
    if call.empty:
        responses["204"] = {"description": "there is no state"}
    failure = {"$ref": _TEMPLATE.format(name="Failure")}
    for status in call.errors:
        responses[str(status)] = {
            "description": "refused" if status < 500 else "the store does not answer",
            "content": {"application/json": {"schema": failure}},
        }
    return responses


def _content(schema: Mapping[str, object]) -> dict[str, object]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}
