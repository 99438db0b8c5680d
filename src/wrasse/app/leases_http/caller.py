"""Whose token a request showed, and whether it may use a namespace."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import dataclass, field

from wrasse.app.leases_http.failures import WireError
from wrasse.app.settings_leases import Role
from wrasse.leases.names import checked_namespace

_log = logging.getLogger("wrasse.leases")


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a token. Without namespaces it may use all."""

    name: str
    token: bytes = field(repr=False)
    role: Role = Role.ADMIN
    namespaces: frozenset[str] = frozenset()


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Who makes the request that is being answered; None where no token is asked for."""


def allowed_namespace(text: str) -> str:
    """The namespace as it is stored, if the caller may use it."""
    name = checked_namespace(text)
    caller = CALLER.get()
    if caller is not None and caller.namespaces and name not in caller.namespaces:
        extra = {"owner": caller.name, "namespace": name}
        _log.warning("the lease API refused a call to a namespace that its token does not allow", extra=extra)
        raise WireError("forbidden", "the token does not allow this namespace", status=403)
    return name
