"""The role leases: a daemon that serves the API, sweeps while nobody calls, and stops cleanly."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cli.command_line import wrasse
from processes.daemons import Daemon, running, until
from wrasse.api.app import App
from wrasse.config.load import load

IDLE = ("--idle-sweep-grace=200ms", "--sweeper-interval=200ms", "--idle-sweep-op-delay=0s")


def call(daemon: Daemon, path: str, body: object, **headers: str) -> tuple[int, Any]:
    """One call of the API."""
    url = f"http://{daemon.said('started')['leases']}/v1/{path}"
    asked = urllib.request.Request(url, json.dumps(body).encode(), {k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(asked, timeout=20) as got:
            return got.status, json.loads(got.read() or b"null")
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


def acquired(daemon: Daemon, ttl: int) -> Any:
    status, lease = call(daemon, "acquire", {"key": "a", "owner": "me", "ttl_seconds": ttl, "block_seconds": -1})
    assert status == 200
    return lease


def test_the_role_leases_serves_the_api_and_sweeps_while_idle(place: Path) -> None:
    (place / "wrasse.yaml").write_text("backends: {records: 'sqlite:wrasse.db'}\nleases: {listen: '127.0.0.1:0'}")
    with running(place, "--role=leases", *IDLE) as daemon:
        acquired(daemon, 1)
        cleared = until(lambda: daemon.metrics().get("wrasse_leases_cleared_total") or None, "the lease is cleared")
        assert cleared == 1
        assert daemon.metrics()["wrasse_leases_acquired_total"] == 1
        assert daemon.metrics()['wrasse_leases_http_requests_total{caller="",status="200"}'] == 1
        daemon.signal()
        assert daemon.end() == 0


def test_programs_may_ask_a_server_for_their_leases(place: Path) -> None:
    (place / "wrasse.yaml").write_text("backends: {records: 'file:data'}\nleases: {listen: '127.0.0.1:0'}")
    with running(place, "--role=leases") as daemon:

        async def work() -> object:
            server = f"http://{daemon.said('started')['leases']}"
            where = {"leases.server": server, "backends.records": "memory:"}
            async with App(load(environ={}, overrides=where)) as app:
                async with app.lease("orders/42") as lease:
                    await lease.save({"paid": True})
                async with app.lease("orders/42") as lease:
                    return lease.state

        assert asyncio.run(work()) == {"paid": True}
        assert wrasse("leases", "get", "orders/42").out == '{"paid":true}\n'


def test_beyond_loopback_it_refuses_to_start_without_a_token(place: Path) -> None:
    refused = wrasse("run", "--role=leases", "--set=leases.listen=0.0.0.0:0", "--listen=")
    assert (refused.code, "would serve every caller" in refused.err) == (2, True)


def test_the_role_all_opens_no_port_for_leases_unasked(place: Path) -> None:
    with running(place) as daemon:
        assert daemon.said("started")["leases"] == ""


def test_doctor_tells_of_tokens_that_travel_in_clear_text(place: Path) -> None:
    beyond = ("doctor", "--set=leases.listen=0.0.0.0:1", "--set=leases.token=planted")
    refused, allowed = wrasse(*beyond), wrasse(*beyond, "--set=leases.insecure=true")
    assert (refused.code != 0, "would be sent without TLS" in refused.out) == (True, True)
    assert "leases.insecure: tokens are sent without TLS" in allowed.out
    assert "planted" not in refused.out + allowed.out
