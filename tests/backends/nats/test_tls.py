"""NATS over TLS: the server's certificate is checked, ours is sent where it is required."""

from __future__ import annotations

import pytest

from servers.nats import Nats as NatsServer
from servers.nats_logins import nats_with_tls
from servers.tls import CERTIFICATE, CLIENT_CERTIFICATE, CLIENT_KEY
from wrasse.backends.nats.client.connection import NatsConnection
from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.tcp import Tls
from wrasse.errors import ConfigError, StoreUnavailable

TRUSTING = Tls(ca=str(CERTIFICATE))
OURS = Tls(ca=str(CERTIFICATE), cert=str(CLIENT_CERTIFICATE), key=str(CLIENT_KEY))


async def answers(port: int, tls: Tls | None) -> bool:
    link = await NatsConnection.open(NatsOptions(nodes=(("127.0.0.1", port),), tls=tls))
    try:
        return b"account_info" in (await link.request("$JS.API.INFO")).payload
    finally:
        await link.close()


async def test_a_server_is_trusted_by_its_certificate() -> None:
    with nats_with_tls() as server:
        assert await answers(server.port, TRUSTING)
        with pytest.raises(StoreUnavailable, match="certificate"):
            await answers(server.port, Tls())


async def test_a_server_that_asks_for_tls_gets_it_although_nobody_said_so() -> None:
    with nats_with_tls() as server, pytest.raises(StoreUnavailable, match="certificate"):
        await answers(server.port, None)  # encrypted, and its certificate is not one that the system trusts


async def test_a_certificate_that_is_not_checked_needs_no_authority() -> None:
    with nats_with_tls() as server:
        assert await answers(server.port, Tls(verify=False))


async def test_a_server_that_asks_for_a_certificate_gets_ours() -> None:
    with nats_with_tls(asks_client=True) as server:
        assert await answers(server.port, OURS)
        with pytest.raises((StoreUnavailable, ConfigError)):
            await answers(server.port, TRUSTING)


async def test_tls_may_come_before_the_first_word() -> None:
    with nats_with_tls(first=True) as server:
        assert await answers(server.port, Tls(ca=str(CERTIFICATE), first=True))


@pytest.mark.parametrize("tls", [Tls(ca="/nowhere/ca.pem"), Tls(ca=__file__), Tls(cert=__file__)])
async def test_a_file_that_is_no_certificate_is_named_by_its_setting(nats_server: NatsServer, tls: Tls) -> None:
    with pytest.raises(ConfigError, match=r"a file of nats\.tls") as caught:
        await answers(nats_server.port, tls)
    assert "nats.tls" in caught.value.do
