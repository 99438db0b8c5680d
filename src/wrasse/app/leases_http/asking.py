"""What a request says: its body within limits and in time, its headers and parameters, checked and named.

A body that is too long is refused before it is read, one that comes too slowly is given up, and JSON is read strictly:
a field nobody knows is an error, not a surprise.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import TypeVar

import msgspec
from aiohttp import web

from wrasse.app.leases_http.failures import WireError
from wrasse.clock import Clock
from wrasse.ids import uuid7
from wrasse.leases.names import checked_key, checked_namespace
from wrasse.leases.rules import Held
from wrasse.leases.xid import is_xid

JSON_BYTES_MAX = 64 << 10
STATE_BYTES_MAX = 100 << 20
BODY_SECONDS_MAX = 60.0
_CHUNK = 1 << 16

T = TypeVar("T")


async def body(request: web.Request, limit: int) -> bytes:
    """All of the body, if it is short enough and comes in time."""
    length = request.content_length
    if length is not None and length > limit:
        raise WireError("body_too_large", f"a body of more than {limit} bytes", status=413)
    if length is not None and request.content.is_eof():
        return request.content.read_nowait()  # it came with its headers, as small ones do
    read = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for chunk in request.content.iter_chunked(_CHUNK):
                read += chunk
                if len(read) > limit:
                    raise WireError("body_too_large", f"a body of more than {limit} bytes", status=413)
    except TimeoutError:
        raise WireError("body_too_slow", f"the body took more than {BODY_SECONDS_MAX:g} s", status=408) from None
    return bytes(read)


async def json_body(request: web.Request, kind: type[T]) -> T:
    """The body as one of our structs; an empty one has all defaults."""
    data = await body(request, JSON_BYTES_MAX)
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError("invalid_body", f"the body is not what this call takes: {error}") from None


async def state_body(request: web.Request) -> bytes:
    """The body as JSON without the spaces in between; numbers stay as they were written."""
    data = await body(request, STATE_BYTES_MAX)
    if not data.strip():
        raise WireError("missing_body", "the state to store is the body")
    _check_expected(request, data)
    try:
        msgspec.json.decode(data)  # what is decoded is thrown away: the format below does not look closely
        return msgspec.json.format(data, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("invalid_body", f"the state is no JSON: {error}") from None


def correlation(request: web.Request, clock: Clock) -> str:
    """The caller's name for this request, if it is a printable one; else a new one, which sorts by time."""
    given = request.headers.get("X-Correlation-Id", "")
    return given if given and len(given) <= 128 and given.isascii() and given.isprintable() else uuid7(clock)


def named(request: web.Request) -> tuple[str, str]:
    """The namespace and the key in the parameters."""
    query = request.query
    key = query.get("key")
    if not key:
        raise WireError("missing_key", "the parameter key is missing")
    namespace = checked_namespace(query.get("namespace", ""))
    return namespace, checked_key(key, namespace)


def token(request: web.Request) -> int:
    """The fencing token in the headers."""
    text = request.headers.get("X-Fencing-Token", "")
    if not text:
        raise WireError("missing_fencing_token", "the header X-Fencing-Token is missing")
    return _number(text, "invalid_fencing_token", "X-Fencing-Token")


def held(request: web.Request, key: str) -> Held:
    """What the holder of this key shows."""
    shown = token(request)
    lease = request.headers.get("X-Lease-ID", "")
    if not lease:
        raise WireError("missing_lease", "the header X-Lease-ID is missing")
    transaction = request.headers.get("X-Txn-ID", "")
    if not transaction:
        raise WireError("missing_txn", "the header X-Txn-ID is missing")
    return Held(key, lease, shown, transaction)


def if_version(request: web.Request) -> int | None:
    """The version that the caller saw, if it says."""
    text = request.headers.get("X-If-Version", "")
    return _number(text, "invalid_version", "X-If-Version") if text else None


def if_etag(request: web.Request) -> str | None:
    """The etag that the caller saw, if it says."""
    return request.headers.get("X-If-State-ETag") or None


def checked_transaction(text: str, code: str) -> str:
    """A transaction that the caller named; it must have the form of one."""
    if text and not is_xid(text):
        raise WireError(code, "a transaction is 20 characters of 0-9 and a-v, as an acquire gives them")
    return text


def expected(request: web.Request) -> tuple[str, int | None]:
    """The checksum and the size that the caller says its body has, if it says."""
    checksum = request.headers.get("X-Expected-SHA256", "").lower()
    if checksum and not re.fullmatch(r"[0-9a-f]{64}", checksum):
        raise WireError("invalid_expected_sha256", "X-Expected-SHA256 is 64 hexadecimal digits")
    size = request.headers.get("X-Expected-Bytes", "")
    return checksum, _number(size, "invalid_expected_bytes", "X-Expected-Bytes") if size else None


def _check_expected(request: web.Request, sent: bytes) -> None:
    """Refuses a body that is not the one the caller meant to send."""
    checksum, size = expected(request)
    if checksum and hashlib.sha256(sent).hexdigest() != checksum:
        raise WireError("expected_sha256_mismatch", "the body has another checksum", status=409)
    if size is not None and size != len(sent):
        raise WireError("expected_bytes_mismatch", f"the body has {len(sent)} bytes", status=409)


def _number(text: str, code: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise WireError(code, f"{name} is not a whole number")
    return int(text)
