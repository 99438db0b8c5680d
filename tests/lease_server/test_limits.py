"""What strangers may cost the server: no bytes from outside change the form of an answer, hang it or make it grow."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from io import BytesIO

import pytest
from aiohttp import ClientSession

from lease_server.test_server import running
from wrasse.lease_server import request_parsing, server as serving
from wrasse.lease_server.access import Access, TokenOwner
from wrasse.lease_server.wire import WireError
from wrasse.web import listener
from wrasse.web.listener import ConnectionLimits, caps_within

HEAD = b"POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SECRET = b"SECRET-IN-THE-URL"


async def connect(client: ClientSession) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = client._base_url
    assert url is not None
    return await asyncio.open_connection(url.host, url.port)


async def heard(client: ClientSession, said: bytes) -> bytes:
    """Everything that comes back until the server hangs up."""
    reader, writer = await connect(client)
    writer.write(said)
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET /v1/describe?key=" + SECRET * 1_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /" + SECRET + b" HTTP/9.9\r\n\r\n",
        SECRET + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SECRET,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"G\xc3\x89T /" + SECRET + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        HEAD + b"X-Long: " + SECRET * 1_000 + b"\r\n\r\n",
        HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(1_000)) + b"\r\n",
        HEAD + b"Bad Header " + SECRET + b": 1\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n" + SECRET,
        HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + SECRET + b"\r\n\r\n",
        HEAD + b"Expect: " + SECRET + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"GET /" + SECRET + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"PATCH /v1/acquire?" + SECRET + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET /v1/describe?key=%ff%00 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET //[" + SECRET + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"CONNECT " + SECRET + b":99999 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    ],
    ids=lambda said: said[:40].decode("latin-1").split("\r")[-1],
)
async def test_every_mistake_is_answered_in_json_that_repeats_nothing_of_it(said: bytes) -> None:
    async with running(Access()) as (_, client):
        answer = await heard(client, said)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head, answer
    assert int(head.split()[1]) in (400, 404, 405, 417), answer
    assert set(json.loads(body)) == {"error", "detail"}
    assert SECRET not in answer


@pytest.mark.parametrize("shown", ["Bearer sécret", "Bearer \udcff", "Basic c2VjcmV0", "bearer", "Bearer "])
async def test_a_token_that_is_no_ascii_is_just_wrong(shown: str) -> None:
    async with running(Access((TokenOwner("token", b"secret"),))) as (_, client):
        said = HEAD + b"Authorization: " + shown.encode("utf-8", "surrogateescape") + b"\r\nConnection: close\r\n\r\n"
        answer = await heard(client, said)
    assert answer.startswith(b"HTTP/1.1 401 "), answer


async def test_heads_that_come_byte_by_byte_end_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEAD_SECONDS_MAX", 0.5)
    async with running(Access()) as (_, client):
        reader, writer = await connect(client)

        async def trickle() -> None:
            for byte in HEAD + b"X: " + b"y" * 8_000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)
            await reader.readexactly(1)

        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(trickle(), 20)


async def test_a_second_request_has_a_deadline_for_its_head_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEAD_SECONDS_MAX", 0.5)
    async with running(Access()) as (_, client):
        reader, writer = await connect(client)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /healthz HT")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_a_body_that_trickles_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parsing, "BODY_SECONDS_MAX", 0.5)
    async with running(Access()) as (_, client):
        reader, writer = await connect(client)
        writer.write(HEAD + b"Content-Length: 60000\r\n\r\n")

        async def trickle() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(20):
            await reader.readuntil(b"body_too_slow")
        trickling.cancel()
        writer.close()


async def test_a_chunked_body_without_end_is_refused_at_the_limit() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 60_000

    async with running(Access()) as (_, client), client.post("/v1/acquire", data=endless()) as answer:
        assert (answer.status, (await answer.json())["error"]) == (413, "body_too_large")


async def test_who_pipelines_without_reading_is_cut_off() -> None:
    async with running(Access()) as (_, client):
        async with client.post("/v1/acquire", json={"key": "k", "owner": "a", "block_seconds": -1}):
            pass
        waiting = b'{"key": "k", "owner": "b", "block_seconds": 600}'
        _, writer = await connect(client)
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(waiting) + waiting)

        async def pipeline() -> None:
            while True:
                writer.write(HEAD + b"Content-Length: 60000\r\n\r\n" + b" " * 60_000)
                await writer.drain()
                await asyncio.sleep(0)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(pipeline(), 20)


def test_members_of_a_compressed_state_are_counted() -> None:
    empty = gzip.compress(b"", mtime=0) * request_parsing.MEMBERS_MAX
    for data in (empty + gzip.compress(b"1"), empty[:-9]):
        with pytest.raises(WireError, match=r"members|breaks off"):
            request_parsing._unpacked(data, 100)
    text = b"".join(b"%d," % n for n in range(100_000))
    packed = b"".join(gzip.compress(text[at : at + 100], mtime=0) for at in range(0, len(text), 100))
    assert request_parsing._unpacked(packed, len(text)) == text


async def test_lines_before_the_parts_of_an_enqueue_count_as_its_body() -> None:
    form = {"Content-Type": "multipart/related; boundary=B"}
    meta = b'\r\n--B\r\n\r\n{"queue": "q"}\r\n--B--\r\n'
    async with running(Access()) as (_, client):
        for lines, status in ((1_000, 200), (request_parsing.ENQUEUE_BYTES_MAX // 3, 413)):
            async with client.post("/v1/queue/enqueue", data=BytesIO(b"x\r\n" * lines + meta), headers=form) as answer:
                assert answer.status == status


@pytest.mark.parametrize(
    "data",
    [gzip.compress(b" " * 80_000_000, mtime=0), b"no gzip", gzip.compress(b"{}", mtime=0)[:-4]],
    ids=["bomb", "garbage", "cut"],
)
@pytest.mark.parametrize("path", ["acquire", "update?key=k", "queue/enqueue", "attachments?key=k&name=n"])
async def test_a_stranger_s_compressed_body_is_refused(path: str, data: bytes) -> None:
    headers = {"Content-Encoding": "gzip", "X-Lease-ID": "x", "X-Fencing-Token": "1", "X-Txn-ID": "x"}
    async with running(Access()) as (_, client), client.post(f"/v1/{path}", data=data, headers=headers) as answer:
        assert answer.status in (400, 403, 413)
        assert (answer.content_type, "error" in await answer.json()) == ("application/json", True)


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, zlib.compress, lambda data: gzip.compress(b" ") + gzip.compress(data)],
    ids=["gzip", "zlib", "two members"],
)
async def test_a_holder_may_send_its_state_compressed(pack: object) -> None:
    assert callable(pack)
    async with running(Access()) as (_, client):
        async with client.post("/v1/acquire", json={"key": "k", "owner": "me"}) as answer:
            lease = await answer.json()
        held = {"X-Lease-ID": lease["lease_id"], "X-Txn-ID": lease["txn_id"], "Content-Encoding": "gzip"}
        held |= {"X-Fencing-Token": str(lease["fencing_token"])}
        state = b'{"a": [' + b"1," * 100_000 + b"1]}"
        async with client.post("/v1/update?key=k", data=pack(state), headers=held) as answer:
            assert (answer.status, (await answer.json())["bytes"]) == (200, len(state) - 1)
        bad = {**held, "Content-Encoding": "br"}
        async with client.post("/v1/update?key=k", data=b"{}", headers=bad) as answer:
            assert (answer.status, (await answer.json())["error"]) == (400, "invalid_content_encoding")


async def test_more_bytes_than_the_server_may_hold_are_asked_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(Access()) as (server, client):
        monkeypatch.setattr(server.api._bodies, "_left", 150_000)
        async with client.post("/v1/acquire", json={"key": "k", "owner": "me"}) as answer:
            lease = await answer.json()
        held = {"X-Lease-ID": lease["lease_id"], "X-Txn-ID": lease["txn_id"]}
        held |= {"X-Fencing-Token": str(lease["fencing_token"])}
        for size, status in ((100_000, 503), (70_000, 200), (70_000, 200)):
            async with client.post("/v1/update?key=k", data=b'"' + b"a" * size + b'"', headers=held) as answer:
                assert answer.status == status
                assert status == 200 or answer.headers["Retry-After"] == "1"


async def test_the_idlest_connection_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "caps_within", lambda *_: ConnectionLimits(4, 4))
    async with running(Access()) as (_, client):
        half_open = [await connect(client) for _ in range(20)]
        async with client.get("/healthz") as answer:
            assert answer.status == 200
        for _, writer in half_open:
            writer.close()


def test_the_caps_leave_descriptors_to_other_work() -> None:
    assert caps_within(1_024, 512, descriptors=256) == ConnectionLimits(64, 64)
    assert caps_within(1_024, 512, descriptors=1 << 20) == ConnectionLimits(1_024, 512)
    assert caps_within(1_024, 512, descriptors=-1) == ConnectionLimits(1_024, 512)
