"""Access control: on loopback every program of this machine may call; elsewhere a token or a client certificate is
needed.

A token has a name, a role and optionally namespaces; calls are logged and counted by its name, never by the token. A
server that would listen beyond loopback without either, or would receive tokens there without TLS, refuses to start.
"""

from __future__ import annotations

import hmac
import logging
import ssl
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Middleware

from wrasse.config.lease_settings import LeaseSettings, Role
from wrasse.config.urls import Address
from wrasse.errors import ConfigError
from wrasse.lease_server.openapi import CALLS
from wrasse.lease_server.wire import Unnamed, WireError, failed
from wrasse.leases.names import checked_namespace

_log = logging.getLogger("wrasse.leases")
_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_RANKS = {role: rank for rank, role in enumerate(Role)}
_NEEDS = {(call.method.upper(), call.path): call.role for call in CALLS}
_LEFT = 499  # counted for a call whose client disconnected before the answer; never sent


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """The owner of a token. Without namespaces it may use all."""

    name: str
    token: bytes = field(repr=False)
    role: Role = Role.ADMIN
    namespaces: frozenset[str] = frozenset()


CALLER: ContextVar[TokenOwner | None] = ContextVar("caller", default=None)
"""The caller of the current request; None where no token is required."""


def allowed_namespace(text: str) -> str:
    """The stored form of the namespace, if the caller may use it."""
    name = checked_namespace(text)
    caller = CALLER.get()
    if caller is not None and caller.namespaces and name not in caller.namespaces:
        extra = {"owner": caller.name, "namespace": name}
        _log.warning("the lease API refused a call to a namespace that its token does not allow", extra=extra)
        raise WireError("forbidden", "the token does not allow this namespace", status=403)
    return name


Call = tuple[str, int]
"""The name of a caller's token, empty without one, and the status of the answer."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a caller must present: a token, or a certificate signed by `authority`; and the server's own TLS files."""

    callers: tuple[TokenOwner, ...] = ()
    certificate: str = ""
    key: str = ""
    authority: str = ""
    insecure: bool = False  # tokens may be sent in clear text

    @property
    def mutual(self) -> bool:
        """Whether callers present certificates."""
        return bool(self.authority)


def access_of(own: LeaseSettings) -> Access:
    """The access rules of the settings; reads token files."""
    callers = [TokenOwner("token", own.token.encode(), Role.ADMIN)] if own.token else []
    for name, each in own.tokens.items():
        token = each.token or _read(name, each.token_file)
        callers.append(TokenOwner(name, token.encode(), Role(each.role), frozenset(each.namespaces)))
    return Access(tuple(callers), own.tls_cert, own.tls_key, own.tls_ca, own.insecure)


def _read(name: str, file: str) -> str:
    try:
        token = Path(file).read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the token file of leases.tokens.{name} cannot be read: {type(error).__name__}", do="check token_file"
        ) from None
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"the token file of leases.tokens.{name} holds no token", do="write one line of ASCII")
    return token


def check_access(address: Address, access: Access) -> None:
    """Refuses a configuration that gives access to every caller."""
    if bool(access.certificate) != bool(access.key):
        raise ConfigError("leases.tls_cert and leases.tls_key belong together", do="name both files, or none")
    if access.mutual and not access.certificate:
        raise ConfigError("leases.tls_ca needs a certificate of the server", do="set leases.tls_cert and tls_key")
    if not address.loopback and not access.callers and not access.mutual:
        raise ConfigError(
            f"the lease API on {address} would serve every caller that can reach it",
            do="set leases.token, or leases.tls_cert, leases.tls_key and leases.tls_ca, or listen on 127.0.0.1",
        )
    if in_clear(address, access) and not access.insecure:
        raise ConfigError(
            f"tokens for the lease API on {address} would be sent without TLS and could be read on the network",
            do="set leases.tls_cert and leases.tls_key, or listen on 127.0.0.1 behind a proxy that has TLS; "
            "or set leases.insecure: true",
        )


def in_clear(address: Address, access: Access) -> bool:
    """Whether tokens leave this machine unencrypted."""
    return not address.loopback and bool(access.callers) and not access.certificate


def tls(access: Access) -> ssl.SSLContext | None:
    """The TLS context, if TLS is configured."""
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


def middleware(access: Access, calls: Counter[Call], *, loopback: bool) -> Middleware:
    """Checks every caller, and counts the answers."""

    @web.middleware
    async def check(request: web.Request, handler: Unnamed) -> web.StreamResponse:
        caller = _token_owner(access.callers, request.headers.get("Authorization", ""))
        refused = _refused(access, caller, request, loopback=loopback)
        CALLER.set(caller)
        status = _LEFT
        try:
            response = await handler(request) if refused is None else failed(refused, "")
            status = response.status
        except Exception as why:
            status = why.status if isinstance(why, web.HTTPException) else 500
            raise
        finally:
            calls["" if caller is None else caller.name, status] += 1
        return response

    return check


def _refused(access: Access, caller: TokenOwner | None, request: web.Request, *, loopback: bool) -> WireError | None:
    """Why a call is refused. On loopback without tokens the Host header must be this machine's, which keeps out web
    sites that call through a browser."""
    if access.callers:
        needs = _NEEDS.get((request.method, request.path), Role.READER)
        if caller is None:
            extra = {"address": request.remote}
            _log.warning("the lease API refused a call whose token is missing or wrong", extra=extra)
            return WireError("unauthorized", "the token is missing or wrong", status=401)
        if _RANKS[caller.role] < _RANKS[needs]:
            extra = {"owner": caller.name, "address": request.remote}
            _log.warning("the lease API refused a call that its token's role does not allow", extra=extra)
            return WireError("forbidden", f"this call needs a token of the role {needs}", status=403)
    elif loopback and not access.mutual:
        host = request.headers.get("Host", "").rpartition(":")[0] or request.headers.get("Host", "")
        if host not in _HOSTS or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return WireError("forbidden", "only programs of this machine may call", status=403)
    return None


def _token_owner(callers: tuple[TokenOwner, ...], authorization: str) -> TokenOwner | None:
    """The owner of the token; every token is compared, each in constant time."""
    scheme, _, token = authorization.encode("utf-8", "surrogateescape").partition(b" ")
    found = None
    for each in callers:
        if hmac.compare_digest(token, each.token) and scheme.lower() == b"bearer":
            found = each
    return found
