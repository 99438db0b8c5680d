"""The server around the lease API: who gets in, what is too much, what happens to who waits, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
from aiohttp import ClientSession

from wrasse.backends.memory.connect import Memory
from wrasse.clock import SystemClock
from wrasse.config.urls import Address
from wrasse.errors import ConfigError
from wrasse.lease_server import request_parsing
from wrasse.lease_server.access import Access, TokenOwner
from wrasse.lease_server.server import LeaseServer
from wrasse.leases.leases import Leases
from wrasse.web import listener

ASKED = {"key": "orders", "owner": "me", "block_seconds": -1}


@contextlib.asynccontextmanager
async def running(access: Access) -> AsyncIterator[tuple[LeaseServer, ClientSession]]:
    clock = SystemClock()
    memory = Memory(clock)
    server = LeaseServer(Leases(memory.records, memory.objects, clock), clock, access)
    address = await server.listen(Address("127.0.0.1", 0))
    async with ClientSession(f"http://{address}") as client:
        try:
            yield server, client
        finally:
            await server.close()


async def test_beyond_loopback_it_does_not_start_without_a_token_or_certificates() -> None:
    memory = Memory()
    server = LeaseServer(Leases(memory.records, memory.objects, SystemClock()), SystemClock(), Access())
    with pytest.raises(ConfigError, match="serve every caller"):
        await server.listen(Address("0.0.0.0", 0))


@pytest.mark.parametrize(("shown", "status"), [("Bearer secret", 200), ("Bearer wrong", 401), ("", 401)])
async def test_who_has_the_token_gets_in(shown: str, status: int) -> None:
    headers = {"Authorization": shown} if shown else {}
    async with running(Access((TokenOwner("token", b"secret"),))) as (_, client):
        answer = await client.post("/v1/acquire", json=ASKED, headers=headers)
        assert answer.status == status


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/v1/nosuch", 404, "not_found"), ("DELETE", "/v1/acquire", 405, "method_not_allowed")],
)
async def test_a_call_that_there_is_not_is_answered_like_every_mistake(
    method: str, path: str, status: int, code: str
) -> None:
    async with running(Access()) as (_, client), client.request(method, path) as answer:
        assert (answer.status, (await answer.json())["error"]) == (status, code)


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
async def test_a_web_site_does_not_get_in_through_a_browser(headers: dict[str, str]) -> None:
    async with running(Access()) as (_, client), client.post("/v1/acquire", json=ASKED, headers=headers) as answer:
        assert answer.status == 403


async def test_a_body_that_is_too_long_is_refused() -> None:
    async with running(Access()) as (_, client):
        answer = await client.post("/v1/acquire", data=b"x" * (request_parsing.JSON_BYTES_MAX + 1))
        assert (answer.status, (await answer.json())["error"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", b""),
        (b"POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{", b"body_too_slow"),
    ],
    ids=["head", "body"],
)
async def test_a_client_that_is_too_slow_is_given_up(
    said: bytes, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEAD_SECONDS_MAX", 0.2)
    monkeypatch.setattr(request_parsing, "BODY_SECONDS_MAX", 0.2)
    async with running(Access()) as (_, client):
        url = client._base_url
        assert url is not None
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(said)
        async with asyncio.timeout(10):
            heard = await (reader.readuntil(answer) if answer else reader.read())
        writer.close()
        await writer.wait_closed()
        assert heard.endswith(answer)


async def test_a_client_that_goes_away_no_longer_waits() -> None:
    async with running(Access()) as (server, client):
        async with client.post("/v1/acquire", json=ASKED) as answer:
            first = await answer.json()
        waiting = asyncio.create_task(client.post("/v1/acquire", json={**ASKED, "owner": "gone", "block_seconds": 0}))
        await until(lambda: server.api.waiting == 1)
        waiting.cancel()
        await until(lambda: server.api.waiting == 0)
        body = {"key": "orders", "lease_id": first["lease_id"], "txn_id": first["txn_id"]}
        async with client.post("/v1/release", json=body, headers={"X-Fencing-Token": str(first["fencing_token"])}):
            pass
        async with client.post("/v1/acquire", json={**ASKED, "owner": "next"}) as answer:
            assert (await answer.json())["owner"] == "next"


async def test_a_server_that_stops_gives_no_new_leases_and_says_so() -> None:
    async with running(Access()) as (server, client):
        server.api.drain()
        async with client.post("/v1/acquire", json=ASKED) as answer:
            assert (answer.status, answer.headers["Shutdown-Imminent"]) == (503, "true")


async def test_closing_tells_those_who_wait_at_once() -> None:
    async with running(Access()) as (server, client):
        async with client.post("/v1/acquire", json=ASKED):
            pass
        waiting = asyncio.create_task(client.post("/v1/acquire", json={**ASKED, "owner": "b", "block_seconds": 600}))
        await until(lambda: server.api.waiting == 1)
        async with asyncio.timeout(60):  # the grace is longer
            await server.close(timedelta(seconds=600))
        answer = await waiting
        assert (answer.status, (await answer.json())["error"]) == (503, "shutdown_draining")
        assert server.api.waiting == 0


async def test_the_document_names_every_call_that_is_served() -> None:
    async with running(Access()) as (server, client):
        async with client.get("/v1/openapi.json") as answer:
            told = {(method, path) for path, calls in (await answer.json())["paths"].items() for method in calls}
        assert told == {(route.method.lower(), route.path) for route in server.api.routes()}


async def until(true: Callable[[], bool]) -> None:
    """Waits for a condition, and fails if it does not come."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  (what is waited for happens in the server and tells nobody)
            await asyncio.sleep(0.01)
