"""Maps the store's error replies to our errors: what happened, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from wrasse.backends.s3.address import S3Address
from wrasse.errors import ConfigError, OnlyReads, StoreFull, StoreUnavailable, TooLarge, UsageError, WrasseError

# Refusals that are answers to the caller: the condition failed, or the object does not exist.
_ANSWERS = frozenset({"PreconditionFailed", "NoSuchKey", "ConditionalRequestConflict", "NoSuchUpload", "NotModified"})
_THROTTLED = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"})
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden"})
_WHO = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "InvalidSecurity"})
_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "TemporaryRedirect", "Redirect"})
_FULL = frozenset({"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull"})
_BY_STATUS = {
    301: "PermanentRedirect", 307: "TemporaryRedirect", 304: "NotModified", 403: "AccessDenied", 404: "NoSuchKey",
    409: "ConditionalRequestConflict", 412: "PreconditionFailed", 507: "InsufficientStorage",
}  # fmt: skip
_CODE = re.compile(rb"<Code>([^<]{1,120}+)</Code>")
_PLAIN = re.compile(r"[\w.-]{1,80}", re.ASCII)  # the part of the store's text that is shown


class S3Denied(StoreUnavailable):
    """The store refuses this request. A retry changes nothing, and nothing was changed."""


class Forbidden(S3Denied, OnlyReads):
    """The store does not allow this user the request."""


@dataclass(frozen=True, slots=True)
class S3Failure:
    """A reply that is not a success."""

    status: int
    code: str
    region: str = ""

    def error(self, address: S3Address, of_object: bool) -> WrasseError | None:
        """Our error for it; None if it is an answer to the caller."""
        where = str(address)
        if self.code == "NoSuchBucket" or (self.code == "NoSuchKey" and not of_object):
            return ConfigError(f"there is no bucket {address.bucket!r} at {where}", do="create it, or correct its name")
        if self.code in _ANSWERS:
            return None
        if self.code == "RequestTimeTooSkewed":
            return S3Denied(
                f"{where} refuses requests: this machine's clock is too far from the store's",
                do="set the clock, for example by NTP",
            )
        if self.code in _WHO:
            return ConfigError(
                f"{where} does not accept the credentials ({self.code})",
                do="check the access key, its secret and token",
            )
        if self.code in _REGION:
            hint = f"write region={self.region}" if self.region else "write its region= and endpoint= in the URL"
            return ConfigError(f"{where} is in another region or endpoint ({self.code})", do=hint)
        if self.code in _DENIED:
            return Forbidden(
                f"{where} denies access",
                do="check the credentials; allow s3:GetObject, PutObject, DeleteObject and ListBucket for these keys",
            )
        if self.code in _FULL:
            return StoreFull(f"{where} has no room left", do="free some space or raise the quota; nothing was changed")
        return self._usage(where)

    def _usage(self, where: str) -> WrasseError:
        if self.code in ("KeyTooLongError", "InvalidObjectName", "InvalidURI"):
            return UsageError(f"{where} cannot keep an object under this key", do="use a shorter or plainer key")
        if self.code in ("EntityTooLarge", "MetadataTooLarge", "RequestHeaderSectionTooLarge"):
            return TooLarge(f"{where} refuses the object or its metadata as too large", do="store less")
        return S3Denied(
            f"{where} refused a request with {self.status} {self.code}", do="see the store's documentation of this code"
        )


def failure_of(status: int, headers: Mapping[str, str], body: bytes) -> S3Failure | None:
    """The failure in a reply, if it is one."""
    if status < 300:
        return None
    region = headers.get("x-amz-bucket-region", "")
    return S3Failure(
        status, _code(body) or _BY_STATUS.get(status, "Unknown"), region if _PLAIN.fullmatch(region) else ""
    )


def _code(body: bytes) -> str:
    found = _CODE.search(body[:4096])
    code = found[1].decode("ascii", "replace").strip() if found else ""
    return code if _PLAIN.fullmatch(code) else ""


def unavailable(where: str, status: int, failure: S3Failure | None) -> StoreUnavailable:
    """The error of a store that is temporarily unavailable."""
    code = failure.code if failure is not None else "Unknown"
    if code in _THROTTLED or status == 429:
        return StoreUnavailable(f"{where} throttles us ({code})", do="send fewer requests, or raise its limits")
    return StoreUnavailable(f"{where} is temporarily unavailable ({status} {code})", do="nothing: it is tried again")


def failure_in(body: bytes) -> S3Failure | None:
    """The failure in the body of a success, which some calls send before they are done."""
    if b"<Error>" not in body[:512]:
        return None
    return S3Failure(200, _code(body) or "Unknown")
