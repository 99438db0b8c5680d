"""Parsing of requests: the body within limits of size and time, headers and parameters, each checked.

A body that is too long is refused before it is read, one that arrives too slowly is aborted, and JSON is parsed
strictly: an unknown field is an error. A large or compressed state is read only for the holder of the key, and decoded
outside the event loop; the total size of all such bodies is bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from aiohttp import web

from wrasse.clock import Clock
from wrasse.ids import uuid7
from wrasse.lease_server.access import allowed_namespace
from wrasse.lease_server.wire import WireError
from wrasse.leases.lease import Lease, presented_lease
from wrasse.leases.leases import STATE_BYTES_MAX
from wrasse.leases.names import checked_key, is_xid
from wrasse.ports.jobs import PAYLOAD_BYTES_MAX

JSON_BYTES_MAX = 64 << 10
"""Maximum bytes of a decompressed body, except for states, messages and attachments."""
ENQUEUE_BYTES_MAX = PAYLOAD_BYTES_MAX + JSON_BYTES_MAX + (64 << 10)
"""Maximum bytes of the body of an enqueue: payload, meta, and multipart overhead."""
STATE_BYTES_AT_ONCE = 64 << 10
"""An uncompressed state up to this size is decoded at once; a longer one in a thread, after the lease is checked."""
BODY_SECONDS_MAX = 60.0
"""Seconds that a body may take; longer only at BODY_BYTES_PER_SECOND_MIN or more."""
BODY_IDLE_SECONDS_MAX = 20.0
"""Seconds that a body may arrive without a byte."""
BODY_BYTES_PER_SECOND_MIN = 64 << 10
"""Minimum rate of a body that takes longer than BODY_SECONDS_MAX."""
BODIES_BYTES_MAX = 256 << 20
"""Maximum bytes of states and messages in memory for all requests; beyond it 503, to be retried."""
DECODERS_MAX = 2
"""Number of threads that decode states."""
MEMBERS_MAX = 10_000
"""Maximum members of a compressed body: concatenated gzip files, as some tools write them."""
_FED = 64 << 10
_RATIO_MAX = 1_032  # highest compression ratio of deflate
_ENCODINGS = ("gzip", "x-gzip", "deflate")

T = TypeVar("T")


class Bodies:
    """The large bodies of one server: a bound on their bytes, and threads that decode them."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self._left = bytes_max
        self._threads = ThreadPoolExecutor(DECODERS_MAX, "wrasse-decode")

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def room(self) -> AsyncIterator[Callable[[int], None]]:
        """A function that reserves bytes until the end of this context."""
        taken = 0

        def reserve(size: int) -> None:
            nonlocal taken
            if size > self._left:
                said = "the server has its maximum of request bytes in memory: try again"
                raise WireError("overloaded", said, status=503, wait=1)
            self._left -= size
            taken += size

        try:
            yield reserve
        finally:
            self._left += taken

    @asynccontextmanager
    async def state(self, request: web.Request, check: Callable[[], Awaitable[object]]) -> AsyncIterator[bytes]:
        """The body as compact JSON. `check` refuses a caller that does not hold the key."""
        encoding, length = _encoding(request), request.content_length
        if not encoding and length is not None and length <= STATE_BYTES_AT_ONCE:
            try:
                data = _state(await body(request, STATE_BYTES_MAX), "", *expected(request))
            except WireError:
                await check()
                raise
            yield data
            return
        await check()
        async with self.room() as reserve:
            sent = await body(request, STATE_BYTES_MAX, reserve)
            reserve(min(len(sent) * _RATIO_MAX, STATE_BYTES_MAX) if encoding else len(sent))  # for the decoded copy
            loop = asyncio.get_running_loop()
            yield await loop.run_in_executor(self._threads, _state, sent, encoding, *expected(request))


async def body(request: web.Request, limit: int, reserve: Callable[[int], None] | None = None) -> bytes:
    """The complete body as sent, if it is within the limits of size and time."""
    length = request.content_length
    if length is not None and length > limit:
        raise too_large(limit)
    if length is not None and request.content.is_eof():
        if reserve is not None:
            reserve(length)
        return request.content.read_nowait()  # it arrived with its headers, as small ones do
    read = bytearray()
    async for chunk in pieces(request):
        if len(read) + len(chunk) > limit:
            raise too_large(limit)
        if reserve is not None:
            reserve(len(chunk))
        read += chunk
    return bytes(read)


async def pieces(request: web.Request) -> AsyncIterator[bytes]:
    """The body in chunks as they arrive; one that stalls or is too slow is aborted."""
    now = asyncio.get_running_loop().time
    began, read = now(), 0
    while True:
        whole = began + BODY_SECONDS_MAX + read / BODY_BYTES_PER_SECOND_MIN
        try:
            async with asyncio.timeout_at(min(whole, now() + BODY_IDLE_SECONDS_MAX)):
                chunk = await request.content.readany()
        except TimeoutError:
            said = f"the body came too slowly: after {now() - began:.0f} s it had {read} bytes"
            raise WireError("body_too_slow", said, status=408) from None
        except web.RequestPayloadError:
            raise WireError("invalid_body", "the body broke off, or its chunks are malformed") from None
        if not chunk:
            return
        read += len(chunk)
        yield chunk


def too_large(limit: int) -> WireError:
    """The refusal of a body for its size."""
    return WireError("body_too_large", f"a body of more than {limit} bytes", status=413)


async def json_body(request: web.Request, kind: type[T]) -> T:
    """The body decoded into a struct; an empty one has all defaults."""
    data = await body(request, JSON_BYTES_MAX)
    encoding = _encoding(request)
    if encoding:
        data = _unpacked(data, JSON_BYTES_MAX)
    return decoded(data, kind, "the body")


def decoded(data: bytes, kind: type[T], what: str) -> T:
    """Bytes decoded into a struct."""
    try:
        if not data.isascii():
            data.decode()  # msgspec does not check raw parts
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("invalid_body", f"{what} is not what this call takes: {error}") from None


def plain(request: web.Request) -> None:
    """Refuses a compressed body where bytes are streamed."""
    if _encoding(request):
        raise WireError("invalid_content_encoding", "this call takes no compressed body")


def _encoding(request: web.Request) -> str:
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding and encoding != "identity" and encoding not in _ENCODINGS:
        raise WireError("invalid_content_encoding", f"Content-Encoding is one of {', '.join(_ENCODINGS)}")
    return "" if encoding == "identity" else encoding


def _unpacked(data: bytes, limit: int) -> bytes:
    """The decompressed body, if it is within the limit. Fed in chunks, because zlib copies what follows a member."""
    parts, size, members = [], 0, 0
    unpack = None
    try:
        for at in range(0, len(data), _FED):
            piece = data[at : at + _FED]
            while piece:
                if unpack is None or unpack.eof:
                    members += 1
                    if members > MEMBERS_MAX:
                        raise WireError("invalid_body", f"a compressed body of more than {MEMBERS_MAX} members")
                    unpack = zlib.decompressobj(wbits=47)  # either header
                parts.append(unpack.decompress(piece, limit + 1 - size))
                size += len(parts[-1])
                if size > limit:
                    raise too_large(limit)
                piece = unpack.unused_data
    except zlib.error:
        raise WireError("invalid_body", "the body is not compressed as Content-Encoding says") from None
    if unpack is not None and not unpack.eof:
        raise WireError("invalid_body", "the compressed body breaks off")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _state(data: bytes, encoding: str, checksum: str, size: int | None) -> bytes:
    """Compact JSON; numbers stay as written. No Python objects are created: they would take many times its size."""
    if encoding:
        data = _unpacked(data, STATE_BYTES_MAX)
    if not data or data.isspace():
        raise WireError("missing_body", "the state to store is the body")
    if checksum and hashlib.sha256(data).hexdigest() != checksum:
        raise WireError("expected_sha256_mismatch", "the body has another checksum", status=409)
    if size is not None and size != len(data):
        raise WireError("expected_bytes_mismatch", f"the body has {len(data)} bytes", status=409)
    try:
        if not data.isascii():
            data.decode()  # the formatter below does not check strings
        return msgspec.json.format(data, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("invalid_body", f"the state is no JSON: {error}") from None


def correlation(request: web.Request, clock: Clock) -> str:
    """The caller's name for this request, if it is printable; else a new one, which sorts by time."""
    given = request.headers.get("X-Correlation-Id", "")
    return given if given and len(given) <= 128 and given.isascii() and given.isprintable() else uuid7(clock)


def named(request: web.Request) -> tuple[str, str]:
    """The namespace and the key in the parameters."""
    query = request.query
    key = query.get("key")
    if not key:
        raise WireError("missing_key", "the parameter key is missing")
    namespace = allowed_namespace(query.get("namespace", ""))
    return namespace, checked_key(key, namespace)


def token(request: web.Request) -> int:
    """The fencing token in the headers."""
    text = request.headers.get("X-Fencing-Token", "")
    if not text:
        raise WireError("missing_fencing_token", "the header X-Fencing-Token is missing")
    return _number(text, "invalid_fencing_token", "X-Fencing-Token")


def lease_of(request: web.Request) -> Lease:
    """The lease that the caller presents."""
    namespace, key = named(request)
    fencing = token(request)
    lease = request.headers.get("X-Lease-ID", "")
    if not lease:
        raise WireError("missing_lease", "the header X-Lease-ID is missing")
    transaction = request.headers.get("X-Txn-ID", "")
    if not transaction:
        raise WireError("missing_txn", "the header X-Txn-ID is missing")
    return presented_lease(namespace, key, lease, fencing, transaction)


def if_version(request: web.Request) -> int | None:
    """The version that the caller expects, if given."""
    text = request.headers.get("X-If-Version", "")
    return _number(text, "invalid_version", "X-If-Version") if text else None


def if_etag(request: web.Request) -> str | None:
    """The etag that the caller expects, if given."""
    return request.headers.get("X-If-State-ETag") or None


def checked_transaction(text: str, code: str) -> str:
    """A transaction id from the caller, checked."""
    if text and not is_xid(text):
        raise WireError(code, "a transaction is 20 characters of 0-9 and a-v, as an acquire gives them")
    return text


def expected(request: web.Request) -> tuple[str, int | None]:
    """The checksum and the size that the caller expects, if given."""
    checksum = request.headers.get("X-Expected-SHA256", "").lower()
    if checksum and not re.fullmatch(r"[0-9a-f]{64}", checksum):
        raise WireError("invalid_expected_sha256", "X-Expected-SHA256 is 64 hexadecimal digits")
    size = request.headers.get("X-Expected-Bytes", "")
    return checksum, _number(size, "invalid_expected_bytes", "X-Expected-Bytes") if size else None


def _number(text: str, code: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise WireError(code, f"{name} is not a whole number")
    return int(text)
