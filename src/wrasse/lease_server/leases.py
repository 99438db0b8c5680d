"""The calls of the API. Each translates, asks `Leases` once, and translates the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from datetime import timedelta
from typing import Any

from aiohttp import web

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.ids import uuid7
from wrasse.lease_server import request_parsing, wire
from wrasse.lease_server.access import CALLER, allowed_namespace
from wrasse.lease_server.attachments import AttachmentApi
from wrasse.lease_server.queues.routes import QueueApi
from wrasse.lease_server.responses import Named, Unnamed, WireError, answered, failed, of_backend
from wrasse.lease_server.transactions import TransactionApi
from wrasse.leases.lease import KeyRecord, Lease, presented_lease
from wrasse.leases.leases import LASTS, KeyStateRead, Leases
from wrasse.leases.names import checked_key
from wrasse.leases.xid import is_xid

KEYS_MAX = 1_000
TTL_SECONDS_MAX = 10**9
"""Longest time that a caller may name for a lease; it gets at most leases.ttl_max."""
_TYPED = {"Content-Type": "application/json"}
_log = logging.getLogger("wrasse.leases")


class LeaseApi:
    """The calls, over one `Leases`. After `drain` new leases are refused, also to those who wait for one, while
    everything else goes on."""

    def __init__(self, leases: Leases, clock: Clock) -> None:
        self._leases, self._clock = leases, clock
        self._bodies = request_parsing.Bodies()
        self._queues = QueueApi(leases, clock, self._bodies)
        self.draining = False
        self._waits: set[asyncio.Timeout] = set()  # of those who wait for a lease
        self._busy = 0  # calls under way
        self._idle = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many callers wait for a key."""
        return self._leases.waiting

    def drain(self) -> None:
        """Gives no new leases any more, and tells whoever waits for one."""
        self.draining = True
        for limit in self._waits:
            limit.reschedule(0.0)  # long ago

    async def quiet(self) -> None:
        """Until no call is under way."""
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def finished(self) -> None:
        """Until what is left to do after the last answers about messages is done."""
        await self._queues.service.close()
        self._bodies.close()

    def routes(self) -> list[web.RouteDef]:
        """What to serve."""
        posts = {
            "keepalive": self._keepalive, "get": self._get, "update": self._update, "remove": self._remove,
            "metadata": self._metadata, "release": self._release, "namespace": self._namespace,
        }  # fmt: skip
        gets = {"describe": self._describe, "keys": self._keys, "namespace": self._namespace}
        return [
            web.post("/v1/acquire", self._call(self._acquire)),
            *(web.post(f"/v1/{path}", self._unnamed(handler)) for path, handler in posts.items()),
            *(web.get(f"/v1/{path}", self._unnamed(handler)) for path, handler in gets.items()),
            *AttachmentApi(self._leases).routes(self._call),
            *TransactionApi(self._leases).routes(self._call),
            *self._queues.routes(self._call),
        ]

    def _call(self, handler: Named) -> Unnamed:
        """A call whose answer says which request it is for."""

        async def named(request: web.Request) -> web.StreamResponse:
            name = request_parsing.correlation(request, self._clock)
            return await self._answer(handler(request, name), request, name)

        return named

    def _unnamed(self, handler: Unnamed) -> Unnamed:
        """A call whose answer does not say so, unless it is an error: then only is a name made up."""

        async def unnamed(request: web.Request) -> web.StreamResponse:
            return await self._answer(handler(request), request, "")

        return unnamed

    async def _answer(
        self, answering: Awaitable[web.StreamResponse], request: web.Request, name: str
    ) -> web.StreamResponse:
        self._busy += 1
        try:
            response = await answering
        except Exception as error:
            name = name or request_parsing.correlation(request, self._clock)
            response = failed(error, name)
            if response.status == 500:
                _log.exception("a call of the lease API failed", extra=_named(name))
            elif isinstance(error, StoreUnavailable):
                _log.warning("a call of the lease API had no store: %s", error.message, extra=_named(name))
            elif isinstance(error, UsageError) and of_backend(error):
                _log.warning("the store refused a call of the lease API: %s", error.message, extra=_named(name))
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()
        if self.draining:
            response.headers["Shutdown-Imminent"] = "true"
        return response

    async def _acquire(self, request: web.Request, name: str) -> web.Response:
        came = self._clock.monotonic()
        asked = await request_parsing.json_body(request, wire.AcquireBody)
        if self.draining:
            raise _stopping()
        if not asked.owner:
            raise WireError("missing_owner", "owner is missing: say who you are")
        ttl = _ttl(asked.ttl_seconds)
        if asked.lease_id and not is_xid(asked.lease_id):
            raise WireError("invalid_lease", "lease_id is 20 characters of 0-9 and a-v")
        transaction = request_parsing.checked_transaction(
            asked.txn_id or request.headers.get("X-Txn-ID", ""), "invalid_txn"
        )
        typed = asked.key or request.query.get("key", "") or uuid7(self._clock)
        wait = _wait(asked.block_seconds)
        acquiring = self._leases.acquire(
            typed,
            asked.owner,
            namespace=allowed_namespace(asked.namespace),
            ttl=ttl,
            wait=wait,
            if_not_exists=asked.if_not_exists,
            id=asked.lease_id,
            transaction=transaction,
        )
        leased = await (acquiring if wait == timedelta(0) else self._unless_drained(acquiring))
        headers = {"X-Key-Version": str(leased.version), "X-Correlation-Id": name, **self._granted(leased.held, came)}
        return answered(wire.acquired(leased, typed, name), headers)

    async def _unless_drained(self, acquiring: Coroutine[Any, Any, KeyRecord]) -> KeyRecord:
        """What a wait gives; one that the end of this server would outlast is given up at once."""
        try:
            async with asyncio.timeout(None) as limit:
                self._waits.add(limit)
                try:
                    return await acquiring
                finally:
                    self._waits.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise _stopping() from None

    async def _keepalive(self, request: web.Request) -> web.Response:
        came = self._clock.monotonic()
        token = request_parsing.token(request)
        asked = await request_parsing.json_body(request, wire.KeepaliveBody)
        lease = await self._leases.renew(_held_in_body(asked, token, request), _ttl(asked.ttl_seconds))
        return answered(wire.Renewed(int(lease.expires_at.timestamp())), self._granted(lease, came))

    def _granted(self, lease: Lease, came: float) -> dict[str, str]:
        """The token, and until when its holder may rely on the lease: in seconds from the moment at which the call
        came, so that the caller can count from before it asked, however long it had to wait for the key."""
        lasts = max(0.0, self._leases.term(lease) - came)
        return {"X-Fencing-Token": str(lease.token), LASTS: f"{lasts:.3f}"}

    async def _get(self, request: web.Request) -> web.Response:
        namespace, key = request_parsing.named(request)
        if request.query.get("public") in ("1", "true"):
            return _state(await self._leases.read_public(namespace, key), leased=False)
        token = request_parsing.token(request)
        lease = request.headers.get("X-Lease-ID", "")
        if not lease:
            raise WireError("missing_params", "the header X-Lease-ID is missing (or read with public=1)")
        held = presented_lease(namespace, key, lease, token, request.headers.get("X-Txn-ID", ""))
        return _state(await self._leases.read(held), leased=True)

    async def _update(self, request: web.Request) -> web.Response:
        held = request_parsing.held(request)
        version, etag = request_parsing.if_version(request), request_parsing.if_etag(request)
        async with self._bodies.state(request, lambda: self._leases.check(held)) as data:
            number, state = await self._leases.update(held, data, if_version=version, if_etag=etag)
        answer = wire.Updated(number, state.etag, state.size, wire.Metadata())
        return answered(answer, {"ETag": state.etag, "X-Key-Version": str(number)})

    async def _remove(self, request: web.Request) -> web.Response:
        held = request_parsing.held(request)
        version = await self._leases.remove(
            held, if_version=request_parsing.if_version(request), if_etag=request_parsing.if_etag(request)
        )
        if version is None:
            return answered(wire.Removed(False))
        return answered(wire.Removed(True, version), {"X-Key-Version": str(version)})

    async def _metadata(self, request: web.Request) -> web.Response:
        held = request_parsing.held(request)
        asked = await request_parsing.json_body(request, wire.MetadataBody)
        hidden = asked.query_hidden
        if hidden is None:
            text = request.headers.get("X-Lockd-Meta-Query-Hidden", "").lower()
            if text not in ("1", "true", "0", "false"):
                raise WireError("invalid_metadata", "the body names no attribute")
            hidden = text in ("1", "true")
        version = await self._leases.hide(held, hidden, if_version=request_parsing.if_version(request))
        answer = wire.MetadataChanged(held.namespace, request.query["key"], version, wire.Metadata(hidden))
        return answered(answer, {"X-Key-Version": str(version)})

    async def _release(self, request: web.Request) -> web.Response:
        token = request_parsing.token(request)
        asked = await request_parsing.json_body(request, wire.ReleaseBody)
        await self._leases.release(_held_in_body(asked, token, request), commit=not asked.rollback)
        return answered(wire.Released(True))

    async def _describe(self, request: web.Request) -> web.Response:
        namespace, key = request_parsing.named(request)
        meta = await self._leases.describe(namespace, key)
        lease = None if meta is None else meta.lease
        over = lease is not None and lease.expires_at <= await self._leases.now(namespace)
        return answered(wire.described(namespace, request.query["key"], meta, over=over))

    async def _keys(self, request: web.Request) -> web.Response:
        namespace = allowed_namespace(request.query.get("namespace", ""))
        text = request.query.get("limit", "100")
        limit = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
        if not 1 <= limit <= KEYS_MAX:
            raise WireError("invalid_limit", f"limit is 1 to {KEYS_MAX}")
        prefix = request.query.get("prefix", "").lower()
        page = await self._leases.page(namespace, prefix, request.query.get("after") or None, limit)
        return answered(wire.KeyList(namespace, page.items, page.cursor or ""))

    async def _namespace(self, request: web.Request) -> web.Response:
        asked = wire.NamespaceBody(request.query.get("namespace", ""))
        if request.method == "POST":
            asked = await request_parsing.json_body(request, wire.NamespaceBody)
        namespace = allowed_namespace(asked.namespace or request.query.get("namespace", ""))
        return answered(wire.NamespaceAnswer(namespace, asked.query or wire.QueryEngines("", "")))


def _named(request: str) -> dict[str, str]:
    caller = CALLER.get()
    return {"request_id": request} if caller is None else {"request_id": request, "owner": caller.name}


def _stopping() -> WireError:
    return WireError("shutdown_draining", "this server is stopping; ask another", status=503, wait=1)


def _ttl(seconds: int) -> timedelta:
    if not 0 <= seconds <= TTL_SECONDS_MAX:
        raise WireError("invalid_ttl", f"ttl_seconds is 0 to {TTL_SECONDS_MAX}")
    return timedelta(seconds=seconds)


def _wait(seconds: int) -> timedelta | None:
    if seconds < 0:
        return timedelta(0)
    return None if seconds == 0 else timedelta(seconds=min(seconds, TTL_SECONDS_MAX))


def _held_in_body(asked: wire.KeepaliveBody | wire.ReleaseBody, token: int, request: web.Request) -> Lease:
    if not asked.key:
        raise WireError("missing_key", "key is missing")
    if not asked.lease_id:
        raise WireError("missing_lease", "lease_id is missing")
    transaction = asked.txn_id or request.headers.get("X-Txn-ID", "")
    if not transaction:
        raise WireError("missing_txn", "txn_id is missing: send the one that the acquire gave")
    namespace = allowed_namespace(asked.namespace)
    return presented_lease(namespace, checked_key(asked.key, namespace), asked.lease_id, token, transaction)


def _state(seen: KeyStateRead | None, *, leased: bool) -> web.Response:
    if seen is None:
        return web.Response(status=204)
    headers = {"ETag": seen.etag, "X-Key-Version": str(seen.version), **_TYPED}
    if leased:
        headers["X-Fencing-Token"] = str(seen.token)
    return web.Response(body=seen.data, headers=headers)
