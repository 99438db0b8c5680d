"""Store URLs and network addresses: parsing, comparison, and display without secrets.

`sqlite:wrasse.db` is relative to the working directory, three slashes are absolute, `~/` is the home directory.
`memory:` exists as long as the process, `redis://`, `nats://` and similar ones are servers, `s3://bucket/prefix` is a
bucket. Schemes that exist but are not supported by this version are refused by name, not as a typing error.
Addresses are 127.0.0.1:9341, [::1]:9341, localhost:9341 or :9341.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from wrasse.backends.nats.options import SCHEMES as NATS, NatsOptions
from wrasse.backends.redis.options import SCHEMES, RedisOptions
from wrasse.backends.s3.address import S3Address
from wrasse.config.redaction import hide
from wrasse.errors import ConfigError

_PORTS: Final = {"http": 80, "https": 443}
_AWS = re.compile(r"s3[.-](dualstack\.)?([a-z0-9-]+\.)?amazonaws\.com")
HERE = ("sqlite", "memory", *SCHEMES, *NATS)
BUCKETS = ("s3", "file")  # keep objects and records, and jobs that are made of them
ELSEWHERE = ("redis+streams", "postgresql", "az", "gs")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port. Port 0 lets the system choose one."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parses `host:port`; without a host, all addresses of this machine."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ConfigError(f"{text!r} is not host:port", do="write 127.0.0.1:9341 or [::1]:9341")
    if len(port) > 5 or int(port) > 65535:
        raise ConfigError(f"{port[:20]} is not a port", do="use 1 to 65535")
    return Address(host.strip("[]") or "0.0.0.0", int(port))


def same_host(host: str) -> str:
    """A canonical spelling of a host: lower case, no dot at the end, an address in its shortest form. The loopback
    addresses become localhost."""
    host = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return "localhost" if str(address) in ("127.0.0.1", "::1") else str(address)


def same_endpoint(endpoint: str) -> str:
    """The same for the endpoint of an S3; AWS's own become empty, since bucket names are unique there."""
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    host = same_host(parts.hostname or "")
    if _AWS.fullmatch(host):
        return ""
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}{parts.path.rstrip('/')}"


def in_clear(url: str) -> bool:
    """Whether requests to this URL leave the machine without TLS."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not Address(parts.hostname or "", 0).loopback


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """One store. `path` is the file of an sqlite store, the directory of a file store, or what follows the scheme of a
    server's URL, secrets included. As a text it has none."""

    scheme: str
    path: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """The whole URL, for opening the store; never to be displayed."""
        slashes = "//" if self.path.startswith("/") and not self.served else ""
        return f"{self.scheme}:{slashes}{self.path}"

    @property
    def served(self) -> bool:
        """Whether it is on a server, shared by many machines."""
        return self.scheme in (*SCHEMES, *NATS, "s3")

    @property
    def is_nats(self) -> bool:
        """Whether it is a NATS."""
        return self.scheme in NATS

    @property
    def is_bucket(self) -> bool:
        """Whether it stores objects and records, and jobs made of them."""
        return self.scheme in BUCKETS

    def __str__(self) -> str:
        return hide(self.url.partition("?")[0]) if self.served else self.url

    @property
    def place(self) -> str:
        """The location of its objects: the same text for every spelling, so that place and key identify one object."""
        if self.scheme == "s3":
            address = S3Address.parse(self.path.removeprefix("//")).reached()
            return f"s3 {same_endpoint(address.endpoint)} {address.bucket}/{address.key_prefix}"
        return f"{self.scheme} {os.path.realpath(self.path) if self.scheme in ('file', 'sqlite') else self.path}/"

    def resolved(self) -> StoreUrl:
        """The same store with an absolute path."""
        if self.scheme == "memory" or self.served:
            return self
        return StoreUrl(self.scheme, str(Path(self.path).absolute()))


def parse_store(text: str) -> StoreUrl:
    """Parses a URL; the error does not show secrets."""
    scheme, colon, rest = text.partition(":")
    if not colon or not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        raise ConfigError(
            f"{hide(text)!r} is not the URL of a store",
            do="write sqlite:wrasse.db, sqlite:///absolute/path, redis://host:6379/0, nats://host:4222 or memory:",
        )
    if scheme in ELSEWHERE:
        raise ConfigError(f"this version has no {scheme} backend", do="use sqlite:wrasse.db")
    if scheme in BUCKETS:
        return parse_objects(text)
    if scheme not in HERE:
        near = difflib.get_close_matches(scheme, HERE, n=1)
        raise ConfigError(
            f"there is no backend {scheme!r}",
            do=f"write {near[0]}:{hide(rest)}"
            if near
            else "write sqlite:wrasse.db, redis://host:6379/0, s3://bucket/prefix, file:directory or memory:",
        )
    if scheme in SCHEMES:
        RedisOptions.of(text)  # raises if invalid
        return StoreUrl(scheme, rest)
    if scheme in NATS:
        NatsOptions.of(text)
        return StoreUrl(scheme, rest)
    return StoreUrl("sqlite", _path(scheme, rest)) if scheme == "sqlite" else _memory(rest)


def parse_jobs(text: str) -> StoreUrl:
    """The same for a store of jobs."""
    url = parse_store(text)
    if url.is_nats:
        raise ConfigError(
            f"this version does not support jobs in {url.scheme}",
            do="use sqlite:wrasse.db, redis://host:6379/0 or s3://bucket",
        )
    return url


def parse_streams(text: str) -> StoreUrl:
    """The same for a store of streams."""
    url = parse_store(text)
    if url.is_bucket:
        raise ConfigError(
            f"this version does not support streams in {url.scheme}",
            do="use sqlite:wrasse.db, redis://host:6379/0 or nats://host",
        )
    return url


def parse_objects(text: str) -> StoreUrl:
    """The same for a store of objects, such as archives."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "memory":
        return _memory(rest)
    if colon and scheme == "file":
        return StoreUrl(scheme, _path(scheme, rest.rstrip("/") or rest))
    if colon and scheme == "s3":
        S3Address.parse(rest.removeprefix("//"))  # raises if invalid
        return StoreUrl(scheme, rest)
    if colon and scheme in (*ELSEWHERE, *SCHEMES, *NATS):
        raise ConfigError(
            f"this version does not support objects in {scheme}", do="use file:wrasse-data or s3://bucket"
        )
    raise ConfigError(
        f"{hide(text)!r} is not the URL of a store of objects",
        do="write file:wrasse-data, file:///absolute/path or s3://bucket/prefix",
    )


def _memory(rest: str) -> StoreUrl:
    if rest:
        raise ConfigError("memory: takes no name: each process has one", do="write memory:")
    return StoreUrl("memory")


def _path(scheme: str, rest: str) -> str:
    example = {"sqlite": "wrasse.db", "file": "wrasse-data"}[scheme]
    if (
        not rest
        or rest.endswith("/")
        or "\0" in rest
        or (scheme == "sqlite" and rest.rpartition("/")[2] in (".", ".."))
    ):
        raise ConfigError(f"the {scheme} URL names no file", do=f"write {scheme}:{example}")
    if rest.startswith("//"):
        rest = rest[2:]
        if not rest.startswith("/"):
            raise ConfigError(
                f"{scheme}://{rest} has two slashes",
                do=f"write {scheme}:{rest} (relative) or {scheme}:///{rest} (absolute)",
            )
    if rest.startswith("~"):
        rest = os.path.expanduser(rest)
        if rest.startswith("~"):
            raise ConfigError(f"{scheme}:{rest} names no home directory", do=f"write {scheme}:./{rest} for this name")
    return rest
