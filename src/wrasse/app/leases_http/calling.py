"""How a program speaks TLS with a lease server: whose certificate it believes, and which it shows."""

from __future__ import annotations

import ssl
from pathlib import Path

from wrasse.app.addresses import in_clear
from wrasse.app.settings_leases import LeaseSettings
from wrasse.clock import Clock
from wrasse.errors import ConfigError
from wrasse.leases.client import LeaseClient


def token_in_clear(own: LeaseSettings) -> bool:
    """Whether this program's token leaves the machine unencrypted."""
    return bool(own.token) and in_clear(own.server)


def client_tls(own: LeaseSettings) -> ssl.SSLContext | None:
    """The settings' own way; None where they leave it to the system's. Refuses to send a token in clear text."""
    if token_in_clear(own) and not own.insecure:
        raise ConfigError(
            "leases.token would travel to leases.server without TLS, for all on the way to read",
            do="use https:// in leases.server, or set leases.insecure: true",
        )
    if bool(own.client_cert) != bool(own.client_key):
        raise ConfigError("leases.client_cert and leases.client_key belong together", do="name both files, or none")
    if not own.server_ca and not own.client_cert:
        return None
    try:
        context = ssl.create_default_context(cafile=own.server_ca or None)
        if own.client_cert:
            context.load_cert_chain(own.client_cert, own.client_key)
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(Path(each).name for each in (own.server_ca, own.client_cert, own.client_key) if each)
        raise ConfigError(
            f"the TLS files {names} cannot be used: {error}", do="check leases.server_ca, client_cert and client_key"
        ) from None
    return context


def lease_client(own: LeaseSettings, clock: Clock) -> LeaseClient:
    """The client of `leases.server`."""
    return LeaseClient(own.server, clock, token=own.token, tls=client_tls(own))
