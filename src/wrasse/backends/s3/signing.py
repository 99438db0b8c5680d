"""AWS Signature Version 4, for the headers of one request. Pure: the time and the credentials come from outside.

The path and query that are signed are the ones that are sent, byte for byte: nothing between here and the socket
may quote them again.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

EMPTY_HASH = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks. What must stay hidden is not in its text form."""

    key: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    until: datetime | None = None  # when they have to be fetched again


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A request as it will be sent, without the headers that the signature adds."""

    method: str
    host: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    payload_hash: str = EMPTY_HASH


class Signer:
    """Signs for one region and service; keeps the day's key, since deriving it costs more than using it."""

    def __init__(self, region: str, service: str = "s3") -> None:
        self._region = region
        self._service = service
        self._kept: tuple[tuple[str, str], bytes] = (("", ""), b"")

    def headers(self, asked: Unsigned, who: Credentials, at: datetime) -> dict[str, str]:
        """All headers to send with the request."""
        moment = at.strftime("%Y%m%dT%H%M%SZ")
        headers = {**asked.headers, "host": asked.host, "x-amz-date": moment}
        if self._service == "s3":
            headers["x-amz-content-sha256"] = asked.payload_hash
        if who.token:
            headers["x-amz-security-token"] = who.token
        names = sorted(headers)
        signed = ";".join(names)
        lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in names)
        canonical = f"{asked.method}\n{asked.path}\n{asked.query}\n{lines}\n{signed}\n{asked.payload_hash}"
        scope = f"{moment[:8]}/{self._region}/{self._service}/aws4_request"
        text = f"{_ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.new(self._key(who.secret, moment[:8]), text.encode(), hashlib.sha256).hexdigest()
        headers["authorization"] = (
            f"{_ALGORITHM} Credential={who.key}/{scope}, SignedHeaders={signed}, Signature={signature}"
        )
        return headers

    def _key(self, secret: str, day: str) -> bytes:
        if self._kept[0] != (secret, day):
            key = b"AWS4" + secret.encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            self._kept = ((secret, day), key)
        return self._kept[1]


def quoted(raw: bytes) -> str:
    """A key as it stands in a path: slashes stay, every other byte that is not plain is escaped."""
    return quote(raw, safe="-_.~/")


def query_of(pairs: Iterable[tuple[str, str | bytes]]) -> str:
    """A query string in the order that is signed."""
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(pairs))
