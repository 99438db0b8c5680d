"""The address of a bucket: `s3://bucket/prefix?endpoint=...&region=...`, and the URLs of its requests. Pure.

Without an endpoint it is AWS's, with the bucket in the host name; with one, the bucket is the first part of the path,
as most other stores expect it. `style=host` or `style=path` overrides this. Only `reached` reads the environment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

from wrasse.backends.url_query import parse_query
from wrasse.errors import ConfigError

EXAMPLE = "s3://my-bucket/wrasse?region=eu-central-1"
_KNOWN = ("endpoint", "region", "style", "profile", "access_key", "secret_key", "session_token")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")


@dataclass(frozen=True, slots=True)
class S3Address:
    """One bucket, and the part of it that is ours: the keys that begin with the prefix."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    style: str = ""
    profile: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, rest: str) -> S3Address:
        """The address in the text after `s3://`."""
        place, _, query = rest.partition("?")
        bucket, _, prefix = place.partition("/")
        if not _BUCKET.fullmatch(bucket):
            # Not shown if it may be a login, which does not belong here.
            shown = "the text before the first slash" if {"@", ":"} & {*bucket} else repr(bucket)
            raise ConfigError(f"{shown} is not the name of a bucket", do=f"write {EXAMPLE}")
        address = cls(bucket, unquote(prefix.strip("/")), **parse_query(query, _KNOWN, "the bucket"))
        address.check()
        return address

    def reached(self) -> S3Address:
        """The same, at the endpoint of the environment if the URL has none."""
        for name in () if self.endpoint else _ENDPOINTS:
            if endpoint := os.environ.get(name):
                if not _is_address(endpoint):
                    raise ConfigError(
                        f"the environment variable {name} is not an address", do="write https://host:port"
                    )
                return replace(self, endpoint=endpoint)
        return self

    def check(self) -> None:
        """Refuses an invalid address before anything is sent."""
        if self.endpoint and not _is_address(self.endpoint):
            raise ConfigError("the endpoint of the bucket is not an address", do="write endpoint=https://host:port")
        if self.style not in ("", "path", "host"):
            raise ConfigError(f"the style {self.style!r} of the bucket's address", do="write style=path or style=host")
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigError(
                "the URL of the bucket has only one of access_key and secret_key",
                do="write both, or neither: then those of the environment or the profile file are used",
            )

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/") + (f" at {self.endpoint}" if self.endpoint else "")

    @property
    def key_prefix(self) -> str:
        """The beginning of every key of ours."""
        return f"{self.prefix}/" if self.prefix else ""

    def origin(self, region: str) -> Origin:
        """Scheme, host and the beginning of the path of every request to the bucket."""
        endpoint = self.endpoint or f"https://s3.{region}.amazonaws.com"
        parts = urlsplit(endpoint)
        path = parts.path.rstrip("/")
        # A dot in the bucket's name would not fit the certificate of the host.
        in_host = self.style == "host" or (not self.style and not self.endpoint and "." not in self.bucket)
        if in_host:
            return Origin(parts.scheme, f"{self.bucket}.{parts.netloc}", path)
        return Origin(parts.scheme, parts.netloc, f"{path}/{self.bucket}")


def _is_address(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        port = parts.port  # raises ValueError, too, if it is not a number or beyond 65535
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username and port != 0


@dataclass(frozen=True, slots=True)
class Origin:
    """The server and path of the requests of one bucket."""

    scheme: str
    host: str
    path: str
