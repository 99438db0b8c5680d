"""Messages as multipart bodies: `meta` and `payload` in, a pair of them for each message out."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from wrasse.app.leases_http import asking
from wrasse.app.leases_http.failures import WireError
from wrasse.app.leases_http.wire_queues import EnqueueMeta, MessagePart
from wrasse.errors import TooLarge
from wrasse.ports.jobs import PAYLOAD_BYTES_MAX

PARTS_MAX = 8
_CHUNK = 1 << 16
_BAD = (HttpProcessingError, web.RequestPayloadError, ValueError, AssertionError, RuntimeError, LookupError)


async def enqueued(request: web.Request, reserve: Callable[[int], None]) -> tuple[EnqueueMeta, bytes, str]:
    """What an enqueue sends: its meta, its payload, and the payload's content type."""
    asking.plain(request)
    if not request.content_type.startswith("multipart/"):
        raise WireError("invalid_content_type", "the body is multipart/related or multipart/form-data")
    found: dict[str, tuple[bytes, str]] = {}
    try:
        async with asyncio.timeout(asking.BODY_SECONDS_MAX):
            reader = await request.multipart()
            for number in range(PARTS_MAX):
                part = await reader.next()
                if part is None:
                    break
                if not isinstance(part, BodyPartReader):
                    raise WireError("multipart_error", "a part has parts of its own")
                name = part.name or ("meta", "payload")[min(number, 1)]
                limit = asking.JSON_BYTES_MAX if name == "meta" else PAYLOAD_BYTES_MAX
                found[name] = (await _bytes(part, limit, reserve), part.headers.get("Content-Type", ""))
    except _BAD as error:
        raise WireError("multipart_error", f"the body is not made of parts: {type(error).__name__}") from None
    except TimeoutError:
        raise WireError("body_too_slow", "the body took too long", status=408) from None
    if "meta" not in found:
        raise WireError("multipart_error", "there is no part named meta")
    meta = asking.decoded(found["meta"][0], EnqueueMeta, "the part meta")
    payload, kind = found.get("payload", (b"", ""))
    return meta, payload, meta.payload_content_type or kind or "application/octet-stream"


def handed_out(messages: Sequence[tuple[MessagePart, bytes]], correlation: str) -> web.Response:
    """Messages as the parts of one answer."""
    boundary, body = secrets.token_hex(16), bytearray()
    for number, (meta, payload) in enumerate(messages):
        named = ("", "") if len(messages) == 1 else (f"meta-{number}.json", f"payload-{number}")
        kind = meta.message.payload_content_type
        _add(body, boundary, "meta", named[0], "application/json", msgspec.json.encode(meta))
        _add(body, boundary, "payload", named[1], kind, payload)
    body += f"--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/related; boundary={boundary}", "X-Correlation-Id": correlation}
    return web.Response(body=bytes(body), headers=headers)


def _add(body: bytearray, boundary: str, name: str, file: str, kind: str, data: bytes) -> None:
    filename = f'; filename="{file}"' if file else ""
    body += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n'
        f"Content-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    ).encode()
    body += data + b"\r\n"


async def _bytes(part: BodyPartReader, limit: int, reserve: Callable[[int], None]) -> bytes:
    read = bytearray()
    while chunk := await part.read_chunk(_CHUNK):
        if len(read) + len(chunk) > limit:
            raise TooLarge(f"a part of more than {limit} bytes", do="send less")
        reserve(len(chunk))
        read += chunk
    return bytes(read)
