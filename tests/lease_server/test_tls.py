"""The lease API of a daemon over TLS: who shows a certificate gets leases, who does not gets none."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from pathlib import Path

import pytest

from cli.command_line import wrasse
from processes.daemons import Daemon, running
from servers.tls import CERTIFICATE, CLIENT_CERTIFICATE, CLIENT_KEY, KEY
from wrasse.api.app import App
from wrasse.config.load import load
from wrasse.errors import ConfigError

SERVER = (f"--set=leases.tls_cert={CERTIFICATE}", f"--set=leases.tls_key={KEY}", "--set=leases.listen=127.0.0.1:0")
MUTUAL = (*SERVER[:2], f"--set=leases.tls_ca={CLIENT_CERTIFICATE}", "--set=leases.listen=0.0.0.0:0")
SHOWN = {"leases.client_cert": str(CLIENT_CERTIFICATE), "leases.client_key": str(CLIENT_KEY)}


def address(daemon: Daemon) -> str:
    return f"https://127.0.0.1:{daemon.said('started')['leases'].rpartition(':')[2]}"


async def saved(daemon: Daemon, **settings: str) -> object:
    """The state of a key that was saved through the daemon and is read again."""
    known = {key.replace("__", "."): value for key, value in settings.items()}
    where = {"leases.server": address(daemon), "backends.records": "memory:", **known}
    async with App(load(environ={}, overrides=where)) as app:
        async with app.lease("orders/1") as lease:
            await lease.save({"paid": True})
        async with app.lease("orders/1") as lease:
            return lease.state


@pytest.fixture
def records(place: Path) -> str:
    return f"--set=backends.records=file://{place}/data"


def test_over_tls_programs_show_a_token(place: Path, records: str) -> None:
    with running(place, "--role=leases", *SERVER, records, "--set=leases.token=secret") as daemon:
        known = {"leases__server_ca": str(CERTIFICATE), "leases__token": "secret"}
        assert asyncio.run(saved(daemon, **known)) == {"paid": True}
        with pytest.raises(ConfigError, match="certificates"):  # nobody vouches for that of the server
            asyncio.run(saved(daemon, leases__token="secret"))


def test_with_certificates_on_both_sides_no_token_is_needed_even_beyond_loopback(place: Path, records: str) -> None:
    with running(place, "--role=leases", *MUTUAL, records) as daemon:
        known = {"leases__server_ca": str(CERTIFICATE), **{k.replace(".", "__"): v for k, v in SHOWN.items()}}
        assert asyncio.run(saved(daemon, **known)) == {"paid": True}
        bare = ssl.create_default_context(cafile=CERTIFICATE)
        with pytest.raises(OSError, match=r"closed connection|certificate required"):
            urllib.request.urlopen(f"{address(daemon)}/healthz", timeout=20, context=bare)


def test_beyond_loopback_certificates_on_one_side_alone_are_not_enough(place: Path, records: str) -> None:
    asked = ("run", "--role=leases", "--listen=", records, *SERVER[:2], "--set=leases.listen=0.0.0.0:0")
    refused = wrasse(*asked)
    assert (refused.code, "would serve every caller" in refused.err) == (2, True)
