"""Answers: a struct as JSON, or an error with one status and code each, and a text of our own."""

from __future__ import annotations

import math
import traceback
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import msgspec
from aiohttp import web

from wrasse.errors import ConfigError, StoreUnavailable, TooLarge, UsageError
from wrasse.lease_server.wire import ErrorAnswer
from wrasse.leases.attachments import AttachmentTooLarge
from wrasse.leases.leases import TooShort
from wrasse.leases.names import BadName
from wrasse.leases.refusal import KeyRefused, Refusal

_STATUS = {
    Refusal.WAITING: 409,
    Refusal.ALREADY_EXISTS: 409,
    Refusal.LEASE_REQUIRED: 403,
    Refusal.LEASE_EXPIRED: 403,
    Refusal.FENCING_MISMATCH: 403,
    Refusal.MISSING_TRANSACTION: 400,
    Refusal.TRANSACTION_MISMATCH: 409,
    Refusal.TRANSACTION_ROLLED_BACK: 409,
    Refusal.TRANSACTION_COMMITTED: 409,
    Refusal.TRANSACTION_PENDING: 409,
    Refusal.TRANSACTION_UNKNOWN: 404,
    Refusal.VERSION_CONFLICT: 409,
    Refusal.ETAG_MISMATCH: 409,
    Refusal.ATTACHMENT_NOT_FOUND: 404,
    Refusal.SHA256_MISMATCH: 409,
    Refusal.BYTES_MISMATCH: 409,
}


_UNROUTED = {
    400: ("invalid_request", "the request is not valid HTTP: a line or header is too long or malformed"),
    404: ("not_found", "there is no such call: see /v1/openapi.json"),
    405: ("method_not_allowed", "this call takes another method: see /v1/openapi.json"),
    413: ("body_too_large", "the body is too long"),
    417: ("invalid_request", "the header Expect names something that this server does not support"),
}


Unnamed = Callable[[web.Request], Awaitable[web.StreamResponse]]
Named = Callable[[web.Request, str], Awaitable[web.StreamResponse]]
"""A handler that gets the name of its request, which its answer has as X-Correlation-Id."""
Wrap = Callable[[Named], Unnamed]
"""Makes handlers for aiohttp; maps errors to answers."""
_TYPED = {"Content-Type": "application/json"}
_ENCODER = msgspec.json.Encoder()


def answered(answer: msgspec.Struct, headers: Mapping[str, str] = MappingProxyType({})) -> web.Response:
    """The answer to a successful call."""
    return web.Response(body=_ENCODER.encode(answer), headers={**headers, **_TYPED})


def named_answer(answer: msgspec.Struct, name: str) -> web.Response:
    """The same, with the name of its request."""
    return answered(answer, {"X-Correlation-Id": name})


class WireError(Exception):
    """A request that is refused before it reaches any key."""

    def __init__(self, code: str, detail: str, *, status: int = 400, wait: int = 0) -> None:
        super().__init__(detail)
        self.code, self.detail, self.status, self.wait = code, detail, status, wait


def failed(error: Exception, correlation: str) -> web.Response:
    """The answer to a request that failed."""
    status, failure = _failure(error)
    headers = {"X-Correlation-Id": correlation}
    if failure.retry_after_seconds > 0:
        headers["Retry-After"] = str(failure.retry_after_seconds)
    return web.Response(body=_ENCODER.encode(failure), status=status, headers={**headers, **_TYPED})


def unrouted(status: int) -> web.Response:
    """The answer to an error outside any call."""
    other = ("invalid_request", "") if status < 500 else ("internal_error", "see the log of the server")
    code, detail = _UNROUTED.get(status, other)
    return failed(WireError(code, detail, status=status), "")


def _failure(error: Exception) -> tuple[int, ErrorAnswer]:
    if isinstance(error, WireError):
        return error.status, ErrorAnswer(error.code, error.detail, retry_after_seconds=error.wait)
    if isinstance(error, KeyRefused):
        wait = max(1, math.ceil(error.wait)) if error.code is Refusal.WAITING else 0
        return _STATUS[error.code], ErrorAnswer(error.code.value, error.message, error.version, error.etag, wait)
    if isinstance(error, BadName):
        code = "invalid_namespace" if "namespace" in error.message else "invalid_key"
        return 400, ErrorAnswer(code, error.message)
    if isinstance(error, TooShort):
        return 400, ErrorAnswer("invalid_ttl", error.message)
    if isinstance(error, AttachmentTooLarge):
        return 413, ErrorAnswer("attachment_too_large", error.message)
    # An error of a backend may name files, hosts and keys of the server: it is only logged.
    inside = of_backend(error)
    if isinstance(error, TooLarge):
        return 413, ErrorAnswer("body_too_large", "it is too large for the server's store" if inside else error.message)
    if isinstance(error, UsageError) and not isinstance(error, ConfigError):
        return 400, ErrorAnswer("invalid_request", "the server's store refused it" if inside else error.message)
    if isinstance(error, StoreUnavailable):
        return 503, ErrorAnswer("store_unavailable", "the store is unavailable; try again", retry_after_seconds=1)
    return 500, ErrorAnswer("internal_error", "this call failed; the server's log has it under X-Correlation-Id")


def of_backend(error: Exception) -> bool:
    """Whether a backend raised it, rather than the checks of the call."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("wrasse.backends.")
