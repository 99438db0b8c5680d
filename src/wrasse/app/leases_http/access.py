"""Who may call: on loopback anybody of this machine, beyond it only who shows the token or a certificate.

A server that would listen beyond loopback without either refuses to start.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Middleware

from wrasse.app.addresses import Address
from wrasse.app.leases_http.failures import WireError, failed
from wrasse.errors import ConfigError

_HOSTS = ("localhost", "127.0.0.1", "[::1]")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Access:
    """What a caller must show: a token, or a certificate that `authority` signed; files of the server's own."""

    token: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""

    @property
    def mutual(self) -> bool:
        """Whether callers show certificates."""
        return bool(self.authority)


def check_access(address: Address, access: Access) -> None:
    """Refuses to serve everybody."""
    if bool(access.certificate) != bool(access.key):
        raise ConfigError("leases.tls_cert and leases.tls_key belong together", do="name both files, or none")
    if access.mutual and not access.certificate:
        raise ConfigError("leases.tls_ca needs a certificate of the server", do="set leases.tls_cert and tls_key")
    if not address.loopback and not access.token and not access.mutual:
        raise ConfigError(
            f"the lease API on {address} would serve everybody who reaches it",
            do="set leases.token, or leases.tls_cert, leases.tls_key and leases.tls_ca, or listen on 127.0.0.1",
        )


def tls(access: Access) -> ssl.SSLContext | None:
    """How to speak TLS, if at all."""
    if not access.certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(access.certificate, access.key)
        if access.mutual:
            context.load_verify_locations(access.authority)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(Path(each).name for each in (access.certificate, access.key, access.authority) if each)
        raise ConfigError(f"the TLS files {names} cannot be used: {error}", do="check leases.tls_*") from None
    return context


def middleware(access: Access, *, loopback: bool) -> Middleware:
    """Asks every caller. On loopback the Host must be this machine's, so that no web site gets in through a
    browser."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if access.token:
            shown = request.headers.get("Authorization", "")
            if not hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), f"Bearer {access.token}".encode()):
                return failed(WireError("unauthorized", "the token is missing or wrong", status=401), "")
        elif loopback and not access.mutual:
            host = request.headers.get("Host", "").rpartition(":")[0] or request.headers.get("Host", "")
            if host not in _HOSTS or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
                return failed(WireError("forbidden", "only programs of this machine may call", status=403), "")
        return await handler(request)

    return check
