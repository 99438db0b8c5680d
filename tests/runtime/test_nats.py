"""wrasse on NATS as a user runs it: messages, archives and leases, across restarts, without a secret told."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.command_line import wrasse
from processes.daemons import running, until
from servers.nats import Nats, nats
from wrasse import connect
from wrasse.errors import ConfigError

SECRET = "PLANTED-77aa"
HANDLERS = """
import wrasse

app = wrasse.connect("wrasse.yaml")


@app.on("orders.*.paid", start="first")
async def receipt(message):
    await app.streams.publish("receipts.sent", message.payload)
"""


@pytest.fixture
def server() -> Iterator[Nats]:
    with nats(f"authorization {{ user: wrasse, password: {SECRET} }}") as own:
        yield own


@pytest.fixture
def shop(place: Path, server: Nats) -> Path:
    (place / "shop.py").write_text(HANDLERS)
    where = f"nats://127.0.0.1:{server.port}"
    (place / "wrasse.yaml").write_text(
        f"backends: {{streams: '{where}', records: '{where}', objects: 'file:wrasse-data'}}\n"
        f"nats: {{username: wrasse, password: {SECRET}}}\n"
        "archiver: {streams: [{stream: 'orders.*.paid', batch_size: 2, batch_timeout: 1s}]}\n"
    )
    return place


def publish(subject: str, payload: str) -> bool:
    return wrasse("streams", "publish", subject, payload).code == 0


def payloads(subject: str) -> list[str]:
    answer = wrasse("streams", "read", subject, "--json")
    return [json.loads(line)["payload"] for line in answer.out.splitlines()] if answer.code == 0 else []


def test_handlers_get_their_messages_through_a_start_without_a_server_and_its_restart(shop: Path, server: Nats) -> None:
    server.kill()
    with running(shop, "--handler=shop:app") as daemon:
        assert "127.0.0.1" in daemon.said("waiting for the backend")["error"]
        server.start()
        daemon.said("started")
        assert publish("orders.eu.paid", "1")
        until(lambda: payloads("receipts.sent") == ["1"], "a message handled")
        server.restart()
        until(lambda: publish("orders.us.paid", "2"), "a message published")
        until(lambda: "2" in payloads("receipts.sent"), "a message handled after the restart")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
        assert SECRET not in daemon.err


@pytest.mark.full
def test_an_archiver_copies_what_is_on_nats(shop: Path) -> None:
    for number in range(4):
        assert publish("orders.eu.paid", str(number))
    with running(shop, "--role=archiver") as daemon:
        until(lambda: len(wrasse("archives", "list", "--json").json["archives"]) == 2, "two archives")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
    assert wrasse("archives", "verify").code == 0


def test_a_key_on_nats_has_one_holder_and_the_doctor_says_what_the_server_costs(shop: Path) -> None:
    first = wrasse("leases", "acquire", "orders/42", "--ttl=1m", "--json")
    second = wrasse("leases", "acquire", "orders/42", "--ttl=1m", "--json")
    told = wrasse("doctor", "--json")
    checks = {finding["check"]: finding["state"] for finding in told.json["checks"]}
    assert (first.code, second.code != 0, checks["nats"], checks["max_payload"]) == (0, True, "ok", "ok")
    assert SECRET not in told.out + told.err + wrasse("config", "show", "--json").out


def test_a_server_keeps_a_stream_to_its_age_until_its_rule_is_gone(shop: Path) -> None:
    settings = (shop / "wrasse.yaml").read_text()
    assert publish("notes.eu", "1")

    def kept(more: str) -> tuple[object, list[str]]:
        """What is known of the stream after a sweep with these settings, and what the doctor warns of."""
        (shop / "wrasse.yaml").write_text(f"{settings}{more}\n")
        assert wrasse("sweep", "aged-entries").code == 0
        checks = wrasse("doctor", "--json").json["checks"]
        told = [each["state"] for each in checks if each["check"] == "retention"]
        return wrasse("explain", "notes.eu", "--json").json["stream"]["server_age_seconds"], told

    rule = "retention: {'notes.*': 3d}"
    assert kept(rule) == (259_200, ["ok"])
    assert kept(f"{rule}\nsweeps: {{aged_entries: {{enabled: false}}}}") == (259_200, ["warn"])
    assert kept("") == (None, [])


def test_jobs_on_nats_are_refused_with_what_to_use_instead(place: Path) -> None:
    (place / "wrasse.yaml").write_text("backends: {jobs: 'nats://127.0.0.1:4222'}")
    answer = wrasse("config", "check")
    assert (answer.code, "does not support jobs in nats" in answer.err, "sqlite:" in answer.err) == (2, True, True)


def test_a_job_is_refused_where_only_nats_is_named(place: Path, server: Nats) -> None:
    async def program() -> None:
        async with connect(f"nats://wrasse:{SECRET}@127.0.0.1:{server.port}") as app:
            await app.jobs.enqueue("resize", {})

    with pytest.raises(ConfigError, match="no backend serves jobs") as refused:
        asyncio.run(program())
    assert "backends.jobs" in refused.value.do
    assert SECRET not in str(refused.value)


def test_a_program_keeps_messages_and_leases_on_nats_by_its_url(place: Path, server: Nats) -> None:
    url = f"nats://wrasse:{SECRET}@127.0.0.1:{server.port}"

    async def program() -> None:
        async with connect(url) as app, app.lease("orders/42"):
            await app.streams.publish("orders.eu.paid", b"1")

    asyncio.run(program())
    (place / "wrasse.yaml").write_text(f"backends: {{streams: '{url}', records: '{url}'}}")
    assert payloads("orders.eu.paid") == ["1"]
    assert "orders/42" in wrasse("leases", "list", "--json").out
