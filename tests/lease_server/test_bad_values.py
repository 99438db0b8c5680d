"""Every field of every call with values that no client should send: a refusal that the document names, never a 500."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from aiohttp import ClientSession, FormData

from lease_server.test_server import running
from wrasse.lease_server.access import Access
from wrasse.lease_server.openapi import CALLS, Call, document
from wrasse.lease_server.wire import EnqueueMeta, MessageBody

DEEP = b"[" * 20_000 + b"]" * 20_000
JSON = [
    b"0", b"-1", b"1", b"31536000", b"253402300799", b"1000000000000", b"9223372036854775807",
    b"9223372036854775808", b"-9223372036854775808",
    b"1" * 400, b"1e300", b"1e999", b"0.5", b"NaN", b"Infinity", b"true", b"null", b'""', b'" "', b'"x"', b'"12"',
    b'"\\u0000"',
    b'"\\ud800 lone"', b'"\xff"', b'"\xed\xa0\x80"', b'"' + b"a" * 5_000 + b'"', b'"../../etc/passwd"',
    b'"/"', b"[]", b"{}",
    b'{"a": {"b": "\xff"}}', b"[" * 900 + b"]" * 900, DEEP, b"",
]  # fmt: skip
TEXT = [
    "", " ", "0", "-1", "9" * 19, "9" * 400, "1e3", "٣", "x", "a" * 5_000, "../../etc/passwd", "/", "%00", "%FF",
    "%ED%A0%80", "true", "\x7f",
]  # fmt: skip
HEADERS = ["", "0", "-1", "9" * 19, "9" * 400, "x", "ü", "\udcff", "a" * 5_000, "\x01", "../../etc/passwd"]
GOOD = {"key": "k", "owner": "me", "queue": "q", "name": "n", "block_seconds": -1, "wait_seconds": -1}
GOOD |= {"state": "commit"}


async def context(client: ClientSession) -> dict[str, Any]:
    """What calls need to get as far as possible: a lease and a message."""
    body = {"key": "k", "owner": "me", "block_seconds": -1, "ttl_seconds": 600}
    async with client.post("/v1/acquire", json=body) as answer:
        lease = await answer.json()
    known = {**GOOD, "lease_id": lease["lease_id"], "txn_id": lease["txn_id"]}
    return {**known, "X-Lease-ID": lease["lease_id"], "X-Txn-ID": lease["txn_id"],
            "X-Fencing-Token": str(lease["fencing_token"])}  # fmt: skip


async def message(client: ClientSession) -> dict[str, Any]:
    """A message that is held."""
    parts = FormData()
    parts.add_field("meta", '{"queue": "q"}', content_type="application/json")
    async with client.post("/v1/queue/enqueue", data=parts):
        pass
    asked = {"queue": "q", "owner": "me", "wait_seconds": -1, "visibility_timeout_seconds": 600}
    async with client.post("/v1/queue/dequeue", json=asked) as answer:
        found = json.loads((await answer.read()).split(b"\r\n\r\n")[1].split(b"\r\n")[0])["message"]
    return {name: found[name] for name in ("message_id", "lease_id", "fencing_token", "meta_etag", "txn_id")}


def bodies(kind: type | None, known: dict[str, Any]) -> list[bytes]:
    """The body with each field in turn being each value; and bodies that are none."""
    if kind is None:
        return [b"{}"]
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    good = {name: json.dumps(known[name]).encode() for name in names if name in known}
    made = [*JSON, b'{"key": "a", "key": "b"}', b'{"', b"\xff", b"{" * 5, b'{"nobody": 1}']
    for name in names:
        for value in JSON:
            fields = {**good, name: value}
            made.append(b"{" + b", ".join(b'"%s": %s' % (each.encode(), text) for each, text in fields.items()) + b"}")
    return made


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
async def test_no_value_breaks_a_call(call: Call) -> None:
    said = document()["paths"][call.path][call.method]["responses"]
    async with running(Access()) as (_, client):
        known = await context(client)
        if call.body is MessageBody:
            known |= await message(client)
        for query, headers, body in _requests(call, known):
            status, kind, answer = await _ask(client, call, query, headers, body)
            assert status is None or str(status) in said, (status, query, headers, body[:200], answer[:300])
            assert status is None or status < 500, (query, headers, body[:200], answer[:300])
            assert status is None or status < 400 or kind == "application/json", (query, headers, body[:200])


async def test_no_value_breaks_an_enqueue() -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="meta"\r\nContent-Type: %s\r\n\r\n%s\r\n--b--\r\n'
    sent = [head % (b"application/json", each) for each in bodies(EnqueueMeta, {"queue": "q"})]
    sent += [head % (each.encode("utf-8", "surrogateescape"), b'{"queue": "q"}') for each in HEADERS]
    sent += [b"", b"--b", b"--b--", b"--b\r\n\r\n", b"x" * 100_000, b"--b\r\n" + b"X: y\r\n" * 10_000]
    call = next(call for call in CALLS if call.path == "/v1/queue/enqueue")
    async with running(Access()) as (_, client):
        for body in sent:
            for kind in ("multipart/form-data; boundary=b", "multipart/related; boundary=b", "multipart/mixed"):
                status, _, answer = await _ask(client, call, "", {"Content-Type": kind}, body)
                assert status in (200, 400, 413), (body[:200], answer[:200])


def _requests(call: Call, known: dict[str, Any]) -> list[tuple[str, dict[str, str], bytes]]:
    names: dict[str, list[str]] = {"query": [], "header": []}
    for each in call.parameters:
        names[str(each["in"])].append(str(each["name"]))
    headers = {name: known[name] for name in names["header"] if name in known}
    good = {name: quote(str(known[name])) for name in names["query"] if name in known}
    body = json.dumps({name: value for name, value in known.items() if name in GOOD}).encode() if call.state else b"{}"
    asked = [(_query(good), headers, each) for each in ([*JSON] if call.state else bodies(call.body, known))]
    body = asked[0][2] if call.body is None else b"{}"
    asked += [(_query({**good, n: v if "%" in v else quote(v)}), headers, body) for n in names["query"] for v in TEXT]
    asked += [(_query(good), {**headers, n: v}, body) for n in (*names["header"], "Content-Type") for v in HEADERS]
    return asked


def _query(parts: dict[str, str]) -> str:
    return "&".join(f"{name}={value}" for name, value in parts.items())


async def _ask(
    client: ClientSession, call: Call, query: str, headers: dict[str, str], body: bytes
) -> tuple[int | None, str, bytes]:
    """One request on a connection of its own, in bytes: a client library would refuse to send most of them."""
    url = client._base_url
    assert url is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    lines = [f"{call.method.upper()} {call.path}?{query} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}"]
    writer.write("\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body)
    try:
        async with asyncio.timeout(1 if b"_seconds" in body else 20):
            answer = await reader.read()
    except TimeoutError:
        assert b"_seconds" in body, "a call that waits was asked to"
        return None, "", b""
    finally:
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    kind = next((line.split(b": ")[1] for line in head.split(b"\r\n") if line.startswith(b"Content-Type: ")), b"")
    return int(head.split()[1]), kind.decode(), rest
