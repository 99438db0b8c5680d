"""The lease API as lockd's clients speak it, and what every exchange looked like, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import MultipartReader, MultipartWriter

from lease_server.scene import Served
from wire.dumps import shown

TRANSACTION, OTHER, OPEN = "d5arif5qkajneqfrmsb0", "d5arif5qkajneqfrmsbg", "d5arif5qkajneqfrmsc0"
HOUR_S = 1_200  # what leases last here; no more than 30 minutes are given
_OF_THE_SERVER = ("date", "server", "content-length", "connection")


class Caller:
    """Calls a server, and notes what was sent and what came back."""

    def __init__(self, server: Served) -> None:
        self._client = server.client
        self.lines: list[str] = []

    async def call(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None, name: str = ""
    ) -> Any:
        """One exchange; gives the JSON of the answer, if it is that."""
        data = body if isinstance(body, str | bytes) or body is None else json.dumps(body)
        sent = dict(headers or {})
        self.lines += [f"## {name}"] if name else []
        self.lines += [f"> {method} {path}", *(f"> {key}: {text}" for key, text in sorted(sent.items()))]
        self.lines += [f"> body {shown(data.encode() if isinstance(data, str) else data)}"] if data is not None else []
        async with self._client.request(method, path, data=data, headers=sent) as answer:
            raw = await answer.read()
            self._note(answer, raw)
            return json.loads(raw) if raw and answer.content_type == "application/json" else {}

    async def enqueue(self, queue: str, payload: bytes, **meta: object) -> Any:
        """Sends one message."""
        with MultipartWriter("form-data", boundary="boundary") as body:
            part = body.append_json({"queue": queue, **meta})
            part.set_content_disposition("form-data", name="meta")
            part = body.append(payload, {"Content-Type": "text/plain"})  # type: ignore[arg-type]
            part.set_content_disposition("form-data", name="payload")
        self.lines += [
            "> POST /v1/queue/enqueue",
            f"> meta {json.dumps({'queue': queue, **meta})}",
            f"> payload {shown(payload)}",
        ]
        async with self._client.post("/v1/queue/enqueue", data=body) as answer:
            raw = await answer.read()
            self._note(answer, raw)
            return json.loads(raw)

    async def dequeue(self, queue: str, path: str = "dequeue", **more: object) -> Any:
        """Takes one message; gives what was said of it."""
        asked = {"queue": queue, "owner": "me", "wait_seconds": -1, **more}
        self.lines += [f"> POST /v1/queue/{path}", f"> body {json.dumps(asked)}"]
        async with self._client.post(f"/v1/queue/{path}", json=asked) as answer:
            reader = MultipartReader.from_response(answer)
            parts = []
            while (part := await reader.next()) is not None:
                headers = " | ".join(f"{key}: {text}" for key, text in part.headers.items())
                data = bytes(await part.read())  # type: ignore[union-attr]
                parts.append((headers, data))
            self._note(answer, b"")
            self.lines += [line for headers, data in parts for line in (f"< part {headers}", f"< {shown(data)}")]
            return json.loads(parts[0][1])["message"]

    async def settle(self, path: str, message: Mapping[str, Any], **more: object) -> Any:
        """Says what becomes of a message."""
        shown_fields = {
            name: message[name] for name in ("queue", "message_id", "lease_id", "fencing_token", "meta_etag")
        }
        return await self.call("POST", f"/v1/queue/{path}", {**shown_fields, **more})

    def _note(self, answer: Any, raw: bytes) -> None:
        kept = sorted(f"{key}: {text}" for key, text in answer.headers.items() if key.lower() not in _OF_THE_SERVER)
        self.lines += [" | ".join([f"< {answer.status}", *kept]), f"< {shown(raw)}".rstrip()]

    async def acquire(self, key: str, **more: object) -> Any:
        """A lease of this key."""
        return await self.call(
            "POST", "/v1/acquire", {"key": key, "owner": "w1", "ttl_seconds": HOUR_S, "block_seconds": -1, **more}
        )

    async def update(self, lease: Mapping[str, Any], state: object) -> None:
        """Stages the state of a key."""
        await self.call("POST", f"/v1/update?key={lease['key']}", state, headers=lease_headers(lease))

    async def release(self, lease: Mapping[str, Any], *, rollback: bool = False) -> None:
        """Gives a key back, which commits what is staged."""
        body = {"key": lease["key"], "lease_id": lease["lease_id"], "txn_id": lease["txn_id"], "rollback": rollback}
        await self.call("POST", "/v1/release", body, headers={"X-Fencing-Token": str(lease["fencing_token"])})


def lease_headers(lease: Mapping[str, Any]) -> dict[str, str]:
    """How a holder shows its lease."""
    return {
        "X-Lease-ID": lease["lease_id"],
        "X-Txn-ID": lease["txn_id"],
        "X-Fencing-Token": str(lease["fencing_token"]),
    }


async def keys_and_state(caller: Caller) -> None:
    """Keys that are free, held, never committed, with state, with attachments, with metadata, removed."""
    lease = await caller.acquire("orders/1")
    await caller.update(lease, {"paid": 1})
    await caller.call("POST", "/v1/metadata?key=orders/1", {"query_hidden": True}, headers=lease_headers(lease))
    await caller.release(lease)
    lease = await caller.acquire("orders/1")
    await caller.update(lease, {"paid": 2})
    await caller.call("POST", "/v1/keepalive", {**_named(lease), "ttl_seconds": HOUR_S}, headers=lease_headers(lease))
    await caller.call("GET", "/v1/describe?key=orders/1")
    await caller.call("POST", "/v1/get?key=orders/1&public=1")
    lease = await caller.acquire("files")
    path = "/v1/attachments?key=files&name=scan.txt"
    headers = {**lease_headers(lease), "Content-Type": "text/plain"}
    await caller.call("POST", path, b"attached", headers=headers)
    await caller.release(lease)
    lease = await caller.acquire("files")
    await caller.call("POST", "/v1/attachments?key=files&name=staged.bin", b"\x00\x01", headers=lease_headers(lease))
    lease = await caller.acquire("removed")
    await caller.update(lease, {"a": 1})
    await caller.release(lease)
    lease = await caller.acquire("removed")
    await caller.call("POST", "/v1/remove?key=removed", headers=lease_headers(lease))
    await caller.release(lease)
    await caller.acquire("other", namespace="team-a")
    await caller.call(
        "POST", "/v1/acquire", {"key": "other", "owner": "w2", "namespace": "team-a", "block_seconds": -1}
    )


def _named(lease: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": lease["key"], "lease_id": lease["lease_id"], "txn_id": lease["txn_id"]}


async def transactions(caller: Caller) -> None:
    """A transaction that is committed, one that is rolled back, one that is open."""
    for id, end in ((TRANSACTION, "commit"), (OTHER, "rollback"), (OPEN, "")):
        for key in ("a", "b"):
            await caller.update(await caller.acquire(f"{key}-{end or 'open'}", txn_id=id), {"new": True})
        if end:
            await caller.call("POST", "/v1/txn/decide", {"txn_id": id, "state": end})


async def messages(caller: Caller) -> None:
    """Messages that wait, are delayed, held, given back, acked, and dead."""
    await caller.enqueue("orders", b"waits", attributes={"n": 1})
    await caller.settle("ack", await caller.dequeue("orders"))
    await caller.enqueue("orders", b"held", visibility_timeout_seconds=HOUR_S)
    await caller.dequeue("orders", visibility_timeout_seconds=HOUR_S)
    await caller.enqueue("again", b"\x00again")
    await caller.settle("nack", await caller.dequeue("again"), delay_seconds=HOUR_S, last_error={"why": "busy"})
    await caller.enqueue("again", b"later", delay_seconds=HOUR_S)
    await caller.enqueue("spent", b"spent", max_attempts=1)
    await caller.settle("nack", await caller.dequeue("spent"), delay_seconds=0)
    await caller.enqueue("stateful", b"with state")
    await caller.dequeue("stateful", "dequeueWithState", visibility_timeout_seconds=HOUR_S)
