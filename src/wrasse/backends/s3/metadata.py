"""Metadata of objects as headers, readable for others, and the nonce that says whose write an object is. Pure.

A name that a header can carry is a header of its own, with what is not plain text escaped by `%`. The rest goes
together into one. Only objects with our nonce are read back that way; those of others are taken as they are.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from urllib.parse import quote, unquote

import msgspec

from wrasse.bounded import UNREADABLE
from wrasse.errors import StoreBroken

_PREFIX = "x-amz-meta-"
NONCE = f"{_PREFIX}wrasse-nonce"
_REST = f"{_PREFIX}wrasse-rest"
_PLAIN_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PLAIN = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")


def new_nonce() -> str:
    """The name of one write."""
    return secrets.token_hex(8)


def to_headers(metadata: Mapping[str, str], nonce: str) -> dict[str, str]:
    """The headers to write an object with."""
    headers = {NONCE: nonce}
    rest = {}
    for name, value in metadata.items():
        if _PLAIN_NAME.fullmatch(name) and not name.startswith("wrasse-") and value:
            headers[_PREFIX + name] = quote(value, safe=_PLAIN)
        else:
            rest[name] = value
    if rest:
        headers[_REST] = quote(json.dumps(rest, ensure_ascii=False, separators=(",", ":")), safe=_PLAIN)
    return headers


def from_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The metadata that an object was written with."""
    own = {name.removeprefix(_PREFIX): value for name, value in headers.items() if name.startswith(_PREFIX)}
    if own.pop("wrasse-nonce", None) is None:
        return own
    rest = own.pop("wrasse-rest", None)
    found = {name: unquote(value) for name, value in own.items()}
    return found if rest is None else found | _rest(rest)


def _rest(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(unquote(text), type=dict[str, str])
    except UNREADABLE:
        raise StoreBroken(
            f"the header {_REST} of an object is not what wrasse wrote", do="write the object's metadata again"
        ) from None
