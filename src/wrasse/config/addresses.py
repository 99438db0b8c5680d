"""Parsing of network addresses: 127.0.0.1:9341, [::1]:9341, localhost:9341, :9341."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from wrasse.errors import ConfigError

_PORTS: Final = {"http": 80, "https": 443}
_AWS = re.compile(r"s3[.-](dualstack\.)?([a-z0-9-]+\.)?amazonaws\.com")


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
