"""Network addresses as people write them: 127.0.0.1:9341, [::1]:9341, localhost:9341, :9341."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from wrasse.errors import ConfigError


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
    """Turns `host:port` into an Address; no host means every one of this machine's."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ConfigError(f"{text!r} is not host:port", do="write 127.0.0.1:9341 or [::1]:9341")
    if len(port) > 5 or int(port) > 65535:
        raise ConfigError(f"{port[:20]} is not a port", do="use 1 to 65535")
    return Address(host.strip("[]") or "0.0.0.0", int(port))


def in_clear(url: str) -> bool:
    """Whether what is sent to this URL leaves the machine without TLS."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not Address(parts.hostname or "", 0).loopback
