"""Attachments over HTTP and through `hold`: status, fields and headers as lockd's clients know them, bytes as sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import ClientSession

from lease_server.scene import served
from wrasse.clock import SystemClock
from wrasse.errors import StoreUnavailable, TooLarge
from wrasse.leases.attachments import Sent
from wrasse.leases.client import LeaseClient
from wrasse.leases.lease import KeyRefused, Refusal, public
from wrasse.leases.lease_scope import LeaseOptions, Operations, lease_key

CLOCK = SystemClock()
TTL = timedelta(seconds=20)
KEY = "orders/42"
WHERE = {"key": KEY, "namespace": "default"}
ACTOR = Path(__file__).parent / "attach_actor.py"


@pytest.fixture(params=["here", "over HTTP"])
async def operations(request: pytest.FixtureRequest) -> AsyncIterator[Operations]:
    async with served() as server:
        if request.param == "here":
            yield server.leases
            return
        async with LeaseClient(server.url, CLOCK) as client:
            yield client


def held(operations: Operations) -> lease_key:
    return lease_key(operations, KEY, LeaseOptions("me", TTL), CLOCK)


async def committed(operations: Operations, name: str) -> bytes:
    fetched = await operations.attachments.fetch(public("default", KEY), name=name)
    return b"".join([chunk async for chunk in fetched.chunks])


async def test_a_file_is_committed_when_its_block_ends_well(operations: Operations, tmp_path: Path) -> None:
    data = bytes(range(256)) * 9_000
    (tmp_path / "scan.pdf").write_bytes(data)
    async with held(operations) as lease:
        made = await lease.attach("scan.pdf", tmp_path / "scan.pdf", content_type="application/pdf")
        mine = b"".join([piece async for piece in lease.fetch("scan.pdf")])
        before = await operations.attachments.list(public("default", KEY))
    found = await operations.attachments.list(public("default", KEY))
    assert (mine, before, [(each.name, each.sha256) for each in found], await committed(operations, "scan.pdf")) == (
        data, [], [("scan.pdf", hashlib.sha256(data).hexdigest())], data,
    )  # fmt: skip
    assert made.id == found[0].id


async def test_a_body_that_raises_attaches_nothing(operations: Operations) -> None:
    async def body() -> None:
        async with held(operations) as lease:
            await lease.attach("a", b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()
    assert await operations.attachments.list(public("default", KEY)) == []


async def test_a_detached_file_is_gone(operations: Operations) -> None:
    async with held(operations) as lease:
        await lease.attach("a", b"x")
        await lease.attach("b", b"")
    async with held(operations) as lease:
        gone = [await lease.detach("a"), await lease.detach("nosuch")]
    with pytest.raises(KeyRefused) as refused:
        await operations.attachments.fetch(public("default", KEY), name="a")
    assert (gone, refused.value.code, await committed(operations, "b")) == (
        [True, False], Refusal.ATTACHMENT_NOT_FOUND, b"",
    )  # fmt: skip


async def test_more_than_is_allowed_is_refused(operations: Operations) -> None:
    leased = await operations.acquire(KEY, "me", ttl=TTL)

    async def stream() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 1_000

    with pytest.raises((TooLarge, StoreUnavailable)):  # a server that hangs up may do so before its answer
        await operations.attachments.attach(leased.granted, Sent("a", bytes_max=2_000), stream())
    assert await operations.attachments.list(leased.granted) == []


async def raw_lease(client: ClientSession) -> dict[str, str]:
    async with client.post("/v1/acquire", json={"key": KEY, "owner": "me", "block_seconds": -1}) as answer:
        body = await answer.json()
    return {
        "X-Lease-ID": body["lease_id"], "X-Txn-ID": body["txn_id"], "X-Fencing-Token": str(body["fencing_token"]),
    }  # fmt: skip


async def test_the_wire_is_that_of_lockd() -> None:
    async with served() as server:
        client, lease = server.client, await raw_lease(server.client)
        sent = {**WHERE, "name": "a.txt", "content_type": "text/plain"}
        async with client.post("/v1/attachments", params=sent, headers=lease, data=b"hello") as answer:
            made, id = await answer.json(), answer.headers["X-Attachment-ID"]
        async with client.post(
            "/v1/attachments", params={**sent, "prevent_overwrite": "true"}, headers=lease, data=b"other"
        ) as answer:
            noop = await answer.json()
        async with client.get("/v1/attachment", params={**WHERE, "id": id}, headers=lease) as answer:
            got, headers = await answer.read(), answer.headers
        async with client.get("/v1/attachments", params={**WHERE, "public": "1"}) as answer:
            public = await answer.json()
        async with client.delete("/v1/attachments", params=WHERE, headers=lease) as answer:
            removed = await answer.json()
    info = made["attachment"]
    assert sorted(info) == [
        "content_type", "created_at_unix", "id", "name", "plaintext_sha256", "size", "updated_at_unix",
    ]  # fmt: skip
    assert (made["version"], info["id"], noop["noop"], got, public["attachments"], removed) == (
        1, id, True, b"hello", None, {"deleted": 1, "version": 1},
    )  # fmt: skip
    assert (headers["Content-Type"], headers["Content-Length"], headers["X-Attachment-Name"]) == (
        "text/plain", "5", "a.txt",
    )  # fmt: skip


WRONG = {
    "missing_attachment": ("post", {}, {}, 400),
    "invalid_max_bytes": ("post", {"name": "a", "max_bytes": "lots"}, {}, 400),
    "attachment_too_large": ("post", {"name": "a", "max_bytes": "2"}, {}, 413),
    "expected_sha256_mismatch": ("post", {"name": "a"}, {"X-Expected-SHA256": "0" * 64}, 409),
    "expected_bytes_mismatch": ("post", {"name": "a"}, {"X-Expected-Bytes": "9"}, 409),
    "fencing_mismatch": ("post", {"name": "a"}, {"X-Fencing-Token": "9"}, 403),
    "attachment_not_found": ("get", {"name": "nosuch"}, {}, 404),
}


@pytest.mark.parametrize("code", WRONG)
async def test_errors_have_the_codes_that_clients_know(code: str) -> None:
    method, params, headers, status = WRONG[code]
    async with served() as server:
        lease = await raw_lease(server.client)
        path = "/v1/attachments" if method == "post" else "/v1/attachment"
        async with server.client.request(
            method, path, params={**WHERE, **params}, headers={**lease, **headers}, data=b"hello"
        ) as answer:
            assert (answer.status, (await answer.json())["error"]) == (status, code)


async def test_a_sender_that_goes_away_half_way_stages_nothing() -> None:
    async with served() as server:
        lease = await raw_lease(server.client)
        gone = asyncio.Event()

        async def stream() -> AsyncIterator[bytes]:
            yield b"x" * 100_000
            gone.set()
            await asyncio.sleep(30)

        url = f"{server.url}/v1/attachments"
        async with ClientSession() as session:
            sending = asyncio.create_task(
                session.post(url, params={**WHERE, "name": "a"}, headers=lease, data=stream()).__aenter__()
            )
            await gone.wait()
            sending.cancel()
            await asyncio.wait([sending])
        async with server.client.get("/v1/attachments", params=WHERE, headers=lease) as answer:
            assert (await answer.json())["attachments"] is None


async def growth(tmp_path: Path, size: int) -> tuple[int, int]:
    """How much the peak memory of a server on a directory and of its client grew over such an attachment, in MiB."""
    run = await asyncio.create_subprocess_exec(
        sys.executable, ACTOR, str(tmp_path), str(size), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(500):
        out, _ = await run.communicate()
    told = json.loads(out)
    assert told["read"] == size
    return told["server"], told["client"]


async def test_memory_does_not_grow_with_an_attachment(tmp_path: Path) -> None:
    server, client = await growth(tmp_path, 64 << 20)
    assert max(server, client) <= 32, (server, client)


@pytest.mark.full
async def test_a_gibibyte_passes_with_little_memory_on_both_sides(tmp_path: Path) -> None:
    server, client = await growth(tmp_path, 1 << 30)
    assert max(server, client) <= 64, (server, client)
