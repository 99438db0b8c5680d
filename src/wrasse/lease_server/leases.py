"""The calls of the lease API for leases, state, attachments and transactions; errors and draining of all calls.

Each handler parses the request, calls `Leases` once, and encodes the answer. The bytes of attachments are streamed in
both directions, never collected in memory. Transactions are lockd's txn/{decide,commit,rollback,replay}: `decide`
writes the decision and carries it out; a different decision later gets the first one as its answer. `commit` and
`rollback` carry out an earlier decision, or decide for the keys they name. `replay` finishes one transaction.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable, UsageError, WrasseError
from wrasse.ids import uuid7
from wrasse.lease_server import request_parsing, wire
from wrasse.lease_server.access import CALLER, allowed_namespace
from wrasse.lease_server.queues import QueueApi
from wrasse.lease_server.wire import (
    AttachAnswer,
    AttachmentInfo,
    AttachmentList,
    AttachmentRemoved,
    AttachmentsRemoved,
    Named,
    ParticipantBody,
    TransactionAnswer,
    TransactionBody,
    Unnamed,
    WireError,
    Wrap,
    answered,
    failed,
    of_backend,
)
from wrasse.leases.attachments import BYTES_MAX, CONTENT_TYPE, AttachmentTooLarge, Fetched, Sent
from wrasse.leases.lease import Attachment, KeyRecord, Lease, presented_lease, public
from wrasse.leases.leases import LASTS, KeyStateRead, Leases
from wrasse.leases.names import checked_key, is_xid
from wrasse.leases.transactions.states import Decision, Participant

_TRUE = ("1", "true")
EXPIRES_MAX = 253_402_300_799  # the end of the year 9999
KEYS_MAX = 1_000
TTL_SECONDS_MAX = 10**9
"""Longest time that a caller may request for a lease; it gets at most leases.ttl_max."""
_TYPED = {"Content-Type": "application/json"}
_log = logging.getLogger("wrasse.leases")


class AttachmentApi:
    """The calls, over one `Leases`."""

    def __init__(self, leases: Leases) -> None:
        self._attachments = leases.attachments

    def routes(self, call: Wrap) -> list[web.RouteDef]:
        """The routes; `call` maps errors to answers."""
        return [
            web.post("/v1/attachments", call(self._attach)),
            web.get("/v1/attachments", call(self._list)),
            web.delete("/v1/attachments", call(self._remove_all)),
            web.get("/v1/attachment", call(self._fetch), allow_head=False),
            web.delete("/v1/attachment", call(self._remove)),
        ]

    async def _attach(self, request: web.Request, name: str) -> web.Response:
        lease = request_parsing.lease_of(request)
        request_parsing.plain(request)
        sent = _sent_attachment(request)
        if request.content_length is not None and request.content_length > sent.bytes_max:
            raise AttachmentTooLarge(f"the attachment has {request.content_length} bytes", do="allow more")
        attached = await self._attachments.attach(lease, sent, request_parsing.pieces(request))
        info = _info(attached.attachment)
        answer = AttachAnswer(info, attached.version, noop=not attached.staged)
        headers = {"X-Attachment-ID": info.id, "X-Key-Version": str(attached.version)}
        return answered(answer, headers)

    async def _list(self, request: web.Request, name: str) -> web.Response:
        whose = _whose(request)
        found = await self._attachments.list(whose)
        infos = tuple(_info(each) for each in found) or None
        return answered(AttachmentList(whose.namespace, request.query["key"], infos))

    async def _fetch(self, request: web.Request, name: str) -> web.StreamResponse:
        whose = _whose(request)
        wanted, id = _name_and_id(request)
        fetched = await self._attachments.fetch(whose, name=wanted, id=id)
        return await _stream(request, fetched)

    async def _remove(self, request: web.Request, name: str) -> web.Response:
        request_parsing.named(request)
        wanted, id = _name_and_id(request)
        count, version = await self._attachments.remove(request_parsing.lease_of(request), name=wanted, id=id)
        return answered(AttachmentRemoved(bool(count), version if count else 0))

    async def _remove_all(self, request: web.Request, name: str) -> web.Response:
        count, version = await self._attachments.remove(request_parsing.lease_of(request), every=True)
        return answered(AttachmentsRemoved(count, version if count else 0))


async def _stream(request: web.Request, fetched: Fetched) -> web.StreamResponse:
    """Sends the bytes. An error after the first byte can only be signalled by closing the connection."""
    attachment = fetched.attachment
    response = web.StreamResponse(headers=_headers(attachment))
    response.content_length = attachment.object.size
    async with aclosing(fetched.chunks) as chunks:
        await response.prepare(request)
        try:
            async for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
        except WrasseError as error:
            _log.warning("the transfer of an attachment failed: %s", type(error).__name__)
            if request.transport is not None:
                request.transport.abort()
    return response


def _headers(attachment: Attachment) -> dict[str, str]:
    info = _info(attachment)
    return {
        "Content-Type": info.content_type,
        "Content-Disposition": "attachment",  # so that a browser does not display it
        "X-Content-Type-Options": "nosniff",
        "X-Attachment-ID": info.id,
        "X-Attachment-Name": info.name,
        "X-Attachment-Size": str(info.size),
        "X-Attachment-SHA256": info.plaintext_sha256,
        "X-Attachment-Created-At": str(info.created_at_unix),
        "X-Attachment-Updated-At": str(info.updated_at_unix),
    }


def _sent_attachment(request: web.Request) -> Sent:
    name = request.query.get("name", "").strip()
    if not name:
        raise WireError("missing_attachment", "the parameter name is missing")
    most = request.query.get("max_bytes", "")
    if most and not re.fullmatch(r"[0-9]{1,18}", most):
        raise WireError("invalid_max_bytes", "max_bytes is not a whole number")
    sha256, size = request_parsing.expected(request)
    return Sent(
        name,
        request.query.get("content_type", "").strip() or request.headers.get("Content-Type", "") or CONTENT_TYPE,
        min(int(most), BYTES_MAX) if most and int(most) else BYTES_MAX,
        sha256,
        request.content_length if size is None else size,
        request.query.get("prevent_overwrite", "").lower() in _TRUE,
    )


def _whose(request: web.Request) -> Lease:
    return (
        public(*request_parsing.named(request))
        if request.query.get("public") in _TRUE
        else request_parsing.lease_of(request)
    )


def _name_and_id(request: web.Request) -> tuple[str, str]:
    name, id = request.query.get("name", "").strip(), request.query.get("id", "").strip()
    if not name and not id:
        raise WireError("missing_attachment", "the parameter name or id is missing")
    return name, id


def _info(attachment: Attachment) -> AttachmentInfo:
    return AttachmentInfo(
        attachment.id,
        attachment.name,
        attachment.object.size,
        attachment.sha256,
        attachment.content_type,
        int(attachment.created_at.timestamp()),
        int(attachment.updated_at.timestamp()),
    )


class TransactionApi:
    """The calls."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def routes(self, call: Wrap) -> list[web.RouteDef]:
        """What to serve."""
        posts = {"decide": self._decide, "commit": self._commit, "rollback": self._rollback, "replay": self._replay}
        return [web.post(f"/v1/txn/{name}", call(handler)) for name, handler in posts.items()]

    async def _decide(self, request: web.Request, name: str) -> web.Response:
        body = await _transaction_body(request)
        states = [each.value for each in Decision]
        if body.state not in states:
            raise WireError("invalid_txn_state", f"state is one of {', '.join(states)}")
        return _answer(body, await self._decide_keys(body, Decision(body.state)))

    async def _commit(self, request: web.Request, name: str) -> web.Response:
        return await self._end(await _transaction_body(request), Decision.COMMIT)

    async def _rollback(self, request: web.Request, name: str) -> web.Response:
        return await self._end(await _transaction_body(request), Decision.ROLLBACK)

    async def _replay(self, request: web.Request, name: str) -> web.Response:
        body = await _transaction_body(request)
        self._leases.note_traffic()
        return _answer(body, await self._leases.transactions.replay(body.txn_id))

    async def _end(self, body: TransactionBody, state: Decision) -> web.Response:
        if not body.participants:
            self._leases.note_traffic()
            return _answer(body, await self._leases.transactions.carried_out(body.txn_id, state))
        found = await self._decide_keys(body, state)
        if found is not state:
            raise WireError("txn_conflict", f"the transaction was decided for {found.value} before", status=409)
        return _answer(body, found)

    async def _decide_keys(self, body: TransactionBody, state: Decision) -> Decision:
        self._leases.note_traffic()
        until = datetime.fromtimestamp(body.expires_at_unix, UTC) if body.expires_at_unix else None
        keys = _participants(body.participants)
        namespace = keys[0].namespace if keys else ""
        return await self._leases.transactions.decide(body.txn_id, state, keys, until, namespace)


async def _transaction_body(request: web.Request) -> TransactionBody:
    body = await request_parsing.json_body(request, TransactionBody)
    if not body.txn_id:
        raise WireError("missing_txn", "txn_id is missing")
    request_parsing.checked_transaction(body.txn_id, "invalid_txn_id")
    if not 0 <= body.expires_at_unix <= EXPIRES_MAX:
        raise WireError("invalid_expiry", "expires_at_unix is no time in seconds")
    return body


def _participants(named: Sequence[ParticipantBody]) -> list[Participant]:
    keys = []
    for each in named:
        if not each.key:
            raise WireError("missing_key", "a participant has no key")
        namespace = allowed_namespace(each.namespace)
        keys.append(Participant(namespace, checked_key(each.key, namespace)))
    return keys


def _answer(body: TransactionBody, state: Decision) -> web.Response:
    return answered(TransactionAnswer(body.txn_id, state.value))


class LeaseApi:
    """The calls, over one `Leases`. After `drain` new leases are refused, also to waiting callers; others go on."""

    def __init__(self, leases: Leases, clock: Clock) -> None:
        self._leases, self._clock = leases, clock
        self._bodies = request_parsing.Bodies()
        self._queues = QueueApi(leases, clock, self._bodies)
        self.draining = False
        self._waits: set[asyncio.Timeout] = set()  # one per caller that waits for a lease
        self._busy = 0  # running calls
        self._idle = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many callers wait for a key."""
        return self._leases.waiting

    def drain(self) -> None:
        """Refuses new leases from now on, also to waiting callers."""
        self.draining = True
        for limit in self._waits:
            limit.reschedule(0.0)  # in the past: expires at once

    async def quiet(self) -> None:
        """Waits until no call is running."""
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def finished(self) -> None:
        """Waits until the background tasks of queues are done."""
        await self._queues.service.close()
        self._bodies.close()

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
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
        """A handler whose answer names its request."""

        async def named(request: web.Request) -> web.StreamResponse:
            name = request_parsing.correlation(request, self._clock)
            return await self._answer(handler(request, name), request, name)

        return named

    def _unnamed(self, handler: Unnamed) -> Unnamed:
        """A handler whose answer does not name its request, except for errors."""

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
        arrived_at = self._clock.monotonic()
        body = await request_parsing.json_body(request, wire.AcquireBody)
        if self.draining:
            raise _stopping()
        if not body.owner:
            raise WireError("missing_owner", "owner is missing: say who you are")
        ttl = _ttl(body.ttl_seconds)
        if body.lease_id and not is_xid(body.lease_id):
            raise WireError("invalid_lease", "lease_id is 20 characters of 0-9 and a-v")
        transaction = request_parsing.checked_transaction(
            body.txn_id or request.headers.get("X-Txn-ID", ""), "invalid_txn"
        )
        typed = body.key or request.query.get("key", "") or uuid7(self._clock)
        wait = _wait(body.block_seconds)
        acquiring = self._leases.acquire(
            typed,
            body.owner,
            namespace=allowed_namespace(body.namespace),
            ttl=ttl,
            wait=wait,
            if_not_exists=body.if_not_exists,
            id=body.lease_id,
            transaction=transaction,
        )
        leased = await (acquiring if wait == timedelta(0) else self._unless_drained(acquiring))
        headers = {
            "X-Key-Version": str(leased.version),
            "X-Correlation-Id": name,
            **self._granted(leased.granted, arrived_at),
        }
        return answered(wire.acquired(leased, typed, name), headers)

    async def _unless_drained(self, acquiring: Coroutine[Any, Any, KeyRecord]) -> KeyRecord:
        """The result of a wait; a drain ends it at once."""
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
        arrived_at = self._clock.monotonic()
        token = request_parsing.token(request)
        body = await request_parsing.json_body(request, wire.KeepaliveBody)
        lease = await self._leases.renew(_lease_of_body(body, token, request), _ttl(body.ttl_seconds))
        return answered(wire.Renewed(int(lease.expires_at.timestamp())), self._granted(lease, arrived_at))

    def _granted(self, lease: Lease, arrived_at: float) -> dict[str, str]:
        """Headers with the token, and for how many seconds from the arrival of the call its holder may rely on the
        lease. The caller counts from before it sent the request, however long it waited for the key."""
        lasts = max(0.0, self._leases.term(lease) - arrived_at)
        return {"X-Fencing-Token": str(lease.token), LASTS: f"{lasts:.3f}"}

    async def _get(self, request: web.Request) -> web.Response:
        namespace, key = request_parsing.named(request)
        if request.query.get("public") in ("1", "true"):
            return _state(await self._leases.read_public(namespace, key), leased=False)
        token = request_parsing.token(request)
        id = request.headers.get("X-Lease-ID", "")
        if not id:
            raise WireError("missing_params", "the header X-Lease-ID is missing (or read with public=1)")
        lease = presented_lease(namespace, key, id, token, request.headers.get("X-Txn-ID", ""))
        return _state(await self._leases.read(lease), leased=True)

    async def _update(self, request: web.Request) -> web.Response:
        lease = request_parsing.lease_of(request)
        version, etag = request_parsing.if_version(request), request_parsing.if_etag(request)
        async with self._bodies.state(request, lambda: self._leases.check(lease)) as data:
            number, state = await self._leases.update(lease, data, if_version=version, if_etag=etag)
        answer = wire.Updated(number, state.etag, state.size, wire.Metadata())
        return answered(answer, {"ETag": state.etag, "X-Key-Version": str(number)})

    async def _remove(self, request: web.Request) -> web.Response:
        lease = request_parsing.lease_of(request)
        version = await self._leases.remove(
            lease, if_version=request_parsing.if_version(request), if_etag=request_parsing.if_etag(request)
        )
        if version is None:
            return answered(wire.Removed(False))
        return answered(wire.Removed(True, version), {"X-Key-Version": str(version)})

    async def _metadata(self, request: web.Request) -> web.Response:
        lease = request_parsing.lease_of(request)
        body = await request_parsing.json_body(request, wire.MetadataBody)
        hidden = body.query_hidden
        if hidden is None:
            text = request.headers.get("X-Lockd-Meta-Query-Hidden", "").lower()
            if text not in ("1", "true", "0", "false"):
                raise WireError("invalid_metadata", "the body names no attribute")
            hidden = text in ("1", "true")
        version = await self._leases.hide(lease, hidden, if_version=request_parsing.if_version(request))
        answer = wire.MetadataChanged(lease.namespace, request.query["key"], version, wire.Metadata(hidden))
        return answered(answer, {"X-Key-Version": str(version)})

    async def _release(self, request: web.Request) -> web.Response:
        token = request_parsing.token(request)
        body = await request_parsing.json_body(request, wire.ReleaseBody)
        await self._leases.release(_lease_of_body(body, token, request), commit=not body.rollback)
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
        body = wire.NamespaceBody(request.query.get("namespace", ""))
        if request.method == "POST":
            body = await request_parsing.json_body(request, wire.NamespaceBody)
        namespace = allowed_namespace(body.namespace or request.query.get("namespace", ""))
        return answered(wire.NamespaceAnswer(namespace, body.query or wire.QueryEngines("", "")))


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


def _lease_of_body(body: wire.KeepaliveBody | wire.ReleaseBody, token: int, request: web.Request) -> Lease:
    if not body.key:
        raise WireError("missing_key", "key is missing")
    if not body.lease_id:
        raise WireError("missing_lease", "lease_id is missing")
    transaction = body.txn_id or request.headers.get("X-Txn-ID", "")
    if not transaction:
        raise WireError("missing_txn", "txn_id is missing: send the one that the acquire gave")
    namespace = allowed_namespace(body.namespace)
    return presented_lease(namespace, checked_key(body.key, namespace), body.lease_id, token, transaction)


def _state(state: KeyStateRead | None, *, leased: bool) -> web.Response:
    if state is None:
        return web.Response(status=204)
    headers = {"ETag": state.etag, "X-Key-Version": str(state.version), **_TYPED}
    if leased:
        headers["X-Fencing-Token"] = str(state.token)
    return web.Response(body=state.data, headers=headers)
