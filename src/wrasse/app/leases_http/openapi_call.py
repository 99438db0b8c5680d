"""How the OpenAPI document tells one call: its parameters, what it takes, what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wrasse.app.settings_leases import Role
from wrasse.leases.names import KEY_CHARS_MAX, NAMESPACE_CHARS_MAX

KEY = {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "example": "orders/42"}
NAMESPACE = {"type": "string", "maxLength": NAMESPACE_CHARS_MAX, "default": "default"}
NUMBER = {"type": "string", "pattern": "^[0-9]{1,19}$"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the document tells it."""

    method: str
    path: str
    about: str
    answer: type | None
    body: type | None = None
    state: bool = False  # the body is the user's JSON
    sends: str = ""  # the content type of a body that is no JSON
    gives: str = ""  # the content type of an answer that is no JSON
    parameters: Sequence[Mapping[str, object]] = ()
    errors: Sequence[int] = (400, 503)
    empty: bool = False  # may answer 204
    role: Role = Role.WRITER  # what its caller's token must allow


def query(name: str, schema: Mapping[str, object], *, required: bool = False, about: str = "") -> dict[str, object]:
    """A parameter in the address."""
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": about}


def header(name: str, *, required: bool, schema: Mapping[str, object] | None = None) -> dict[str, object]:
    """A parameter in the headers."""
    return {"name": name, "in": "header", "required": required, "schema": schema or {"type": "string"}}


WHERE = (query("key", KEY, required=True), query("namespace", NAMESPACE))
HELD = (
    header("X-Lease-ID", required=True),
    header("X-Fencing-Token", required=True, schema=NUMBER),
    header("X-Txn-ID", required=True),
)
SEEN = (header("X-If-Version", required=False, schema=NUMBER), header("X-If-State-ETag", required=False))
TOKEN = (header("X-Fencing-Token", required=True, schema=NUMBER),)
