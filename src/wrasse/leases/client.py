"""Leases and state over HTTP: the operations of `Leases`, carried out by a lease server.

An acquire carries an id chosen by the client, so that a retry after a lost reply gets the same lease. Other calls are
idempotent by the versions and ids they name. While the server is unavailable, calls are retried for up to `patience`; a
refusal is final and raises the same error as `Leases`.
"""

from __future__ import annotations

import asyncio
import math
import random
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar

import msgspec
from aiohttp import ClientError, ClientSession, ClientSSLError, ClientTimeout, DummyCookieJar, TCPConnector
from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.errors import ConfigError, StoreUnavailable, TooLarge, UsageError
from wrasse.leases.attachments_client import (
    ANSWER_BYTES_MAX,
    RemoteAttachments,
    decoded,
    lease_headers,
    no_lease_api,
    read_whole,
)
from wrasse.leases.lease import KeyRecord, KeyRefused, Lease, Refusal, StateObject
from wrasse.leases.leases import LASTS, STATE_BYTES_MAX, TTL_DEFAULT, TTL_MAX, KeyStateRead, check_state
from wrasse.leases.names import DEFAULT_NAMESPACE, Xids, checked_key, checked_namespace, spoken
from wrasse.leases.transactions.states import Decision
from wrasse.leases.wait_queue import NO_WAIT
from wrasse.ports.page import Page

CALL_SECONDS_MAX = 30.0
"""Seconds for one call including the body of its answer."""
WAIT_AT_ONCE = 20  # seconds that one call waits for a key; longer waits use several calls, below proxy timeouts
_T = TypeVar("_T")
_CODES = {code.value: code for code in Refusal}


class _LeaseAnswer(msgspec.Struct):
    """Every field that an answer of the API may have."""

    lease_id: str = ""
    txn_id: str = ""
    owner: str = ""
    namespace: str = ""
    expires_at_unix: int = 0
    version: int = 0
    state_etag: str = ""
    fencing_token: int = 0
    new_version: int = 0
    new_state_etag: str = ""
    bytes: int = 0
    removed: bool = False
    state: str = ""
    error: str = ""
    detail: str = ""
    current_version: int = 0
    current_etag: str = ""
    retry_after_seconds: int = 0
    updated_at_unix: int = 0
    lasts: float | None = None  # from a header


class _KeyListing(msgspec.Struct):
    """The answer to a listing."""

    keys: tuple[str, ...] | None = None
    next_cursor: str = ""


class LeaseClient:
    """`Operations` on a server. Use it as a context manager, or close it."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        patience: timedelta = timedelta(seconds=10),
    ) -> None:
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._session = ClientSession(
            url,
            headers=headers,
            timeout=ClientTimeout(total=CALL_SECONDS_MAX),
            auto_decompress=False,  # so that limits apply to the bytes on the wire
            cookie_jar=DummyCookieJar(),
            connector=None if tls is None else TCPConnector(ssl=tls),
        )
        self._clock, self._patience = clock, patience.total_seconds()
        self._xids = Xids(clock)
        self._terms: dict[str, float] = {}  # by lease id: monotonic time until which the holder may rely on it
        self.attachments = RemoteAttachments(self._session, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()

    async def acquire(
        self,
        key: str,
        owner: str,
        *,
        namespace: str = "",
        ttl: timedelta = TTL_DEFAULT,
        wait: timedelta | None = NO_WAIT,
        if_not_exists: bool = False,
        id: str = "",
        transaction: str = "",
    ) -> KeyRecord:
        """The lease; see `Leases.acquire`."""
        namespace = checked_namespace(namespace)
        key = checked_key(key, namespace)
        body: dict[str, object] = {"key": spoken(namespace, key), "owner": owner, "ttl_seconds": _whole_seconds(ttl)}
        body |= {"lease_id": id or self._xids.new(), "if_not_exists": if_not_exists, "namespace": namespace}
        body |= {"txn_id": transaction} if transaction else {}
        give_up = None if wait is None else self._clock.monotonic() + wait.total_seconds()
        while True:
            left = WAIT_AT_ONCE if give_up is None else give_up - self._clock.monotonic()
            body["block_seconds"] = -1 if left < 1 else min(int(left), WAIT_AT_ONCE)
            started = self._clock.monotonic()
            try:
                answer, _ = await self._ask("/v1/acquire", json=body)
            except KeyRefused as refused:
                if refused.code is not Refusal.WAITING or left <= 0:
                    raise
                if left < 1:
                    await asyncio.sleep(min(left, 0.1))
                continue
            self._terms[answer.lease_id] = _term_end(answer, started, ttl)
            return _leased(key, answer)

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        """Extends the lease to `ttl` from now."""
        started = self._clock.monotonic()
        body = {**_named(lease), "ttl_seconds": _whole_seconds(ttl)}
        answer, _ = await self._ask("/v1/keepalive", json=body, headers=lease_headers(lease))
        self._terms[lease.id] = _term_end(answer, started, ttl)
        return replace(lease, expires_at=_instant(answer.expires_at_unix))

    async def read(self, lease: Lease) -> KeyStateRead | None:
        """The state as its holder sees it, staged changes included."""
        return await self._read(lease.namespace, lease.key, {}, lease_headers(lease))

    async def read_public(self, namespace: str, key: str) -> KeyStateRead | None:
        """The committed state."""
        return await self._read(namespace, key, {"public": "1"}, {})

    async def page(self, namespace: str, prefix: str, after: str | None, limit: int) -> Page[str]:
        """Keys that begin with the prefix."""
        params = {"namespace": namespace, "prefix": prefix, "limit": str(limit), "after": after or ""}
        body = await self.ask("GET", "/v1/keys", params, {})
        found = decoded(body, _KeyListing)
        keys = found.keys or ()
        return Page(keys, (found.next_cursor,) * len(keys), self._clock.now(), bool(found.next_cursor))

    async def describe(self, namespace: str, key: str) -> KeyRecord | None:
        """The server's description of a key, without tokens and transactions; None if there is no such key."""
        answer = decoded(await self.ask("GET", "/v1/describe", _key_params(namespace, key), {}), _LeaseAnswer)
        lease = (
            Lease(answer.lease_id, answer.owner, 0, _instant(answer.expires_at_unix), "") if answer.lease_id else None
        )
        if lease is None and not answer.updated_at_unix:
            return None
        state = StateObject("", "", answer.state_etag, 0) if answer.state_etag else None
        return KeyRecord(0, lease, answer.version, state, updated_at=_instant(answer.updated_at_unix))

    async def now(self, namespace: str) -> datetime:
        """The local clock, as an estimate of the store's time."""
        return self._clock.now()

    async def update(
        self, lease: Lease, data: bytes, *, if_version: int | None = None, if_etag: str | None = None
    ) -> tuple[int, StateObject]:
        """Stages a new state; returns the version after a commit."""
        check_state(data)
        headers = {**lease_headers(lease), **_conditions(if_version, if_etag)}
        where = _key_params(lease.namespace, lease.key)
        answer, _ = await self._ask("/v1/update", params=where, data=data, headers=headers)
        return answer.new_version, StateObject("", "", answer.new_state_etag, answer.bytes)

    async def remove(self, lease: Lease, *, if_version: int | None = None, if_etag: str | None = None) -> int | None:
        """Stages the removal of the state; None if there was nothing to remove."""
        headers = {**lease_headers(lease), **_conditions(if_version, if_etag)}
        answer, _ = await self._ask("/v1/remove", params=_key_params(lease.namespace, lease.key), headers=headers)
        return answer.new_version if answer.removed else None

    async def release(self, lease: Lease, *, commit: bool = True) -> KeyRecord | None:
        """Releases the key; the answer has no more details."""
        body = {**_named(lease), "rollback": not commit}
        await self._ask("/v1/release", json=body, headers=lease_headers(lease))
        self._terms.pop(lease.id, None)
        return KeyRecord(lease.token)

    async def decide(self, transaction: str, *, commit: bool) -> Decision:
        """Commits or rolls back every key of a transaction; returns the decision that counts."""
        body = {"txn_id": transaction, "state": (Decision.COMMIT if commit else Decision.ROLLBACK).value}
        answer, _ = await self._ask("/v1/txn/decide", json=body)
        if answer.state not in tuple(Decision):
            raise no_lease_api(200)
        return Decision(answer.state)

    def term(self, lease: Lease) -> float:
        """The local monotonic time until which the holder may rely on a lease that was just granted or renewed."""
        return self._terms[lease.id]

    async def _read(
        self, namespace: str, key: str, more: Mapping[str, str], headers: Mapping[str, str]
    ) -> KeyStateRead | None:
        where = _key_params(namespace, key)
        _, seen = await self._ask("/v1/get", params={**where, **more}, headers=headers, raw=True)
        return seen

    async def _ask(
        self,
        path: str,
        *,
        json: Mapping[str, object] | None = None,
        params: Mapping[str, str] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        raw: bool = False,
    ) -> tuple[_LeaseAnswer, KeyStateRead | None]:
        """One POST, retried while the server is unavailable."""
        sent = msgspec.json.encode(json) if json is not None else data
        limit = STATE_BYTES_MAX if raw else ANSWER_BYTES_MAX
        status, body, got = await self._send("POST", path, params, sent, headers, limit)
        return _answered(status, body, got, raw=raw)

    async def ask(self, method: str, path: str, params: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
        """The body of a successful answer to a call without a body."""
        status, body, _ = await self._send(method, path, params, None, headers)
        self.refuse(status, body)
        return body

    def refuse(self, status: int, body: bytes) -> None:
        """Raises the error that this answer stands for, unless it is successful."""
        if status != 200:
            _answered(status, body, {}, raw=False)

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        sent: bytes | None,
        headers: Mapping[str, str] | None,
        limit: int = ANSWER_BYTES_MAX,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        give_up = self._clock.monotonic() + self._patience
        for failed in range(1_000):
            try:
                # A redirect is not followed: the token goes to the configured server only.
                async with self._session.request(
                    method, path, params=params, data=sent, headers=headers, allow_redirects=False
                ) as got:
                    body = await read_whole(got, limit)
                    if got.status < 500:
                        return got.status, body, got.headers
                    trouble = f"the lease server answered {got.status}"
            except (ClientError, TimeoutError, OSError) as error:
                _check_trusted(error)
                trouble = f"the lease server does not answer: {type(error).__name__}"
            pause = min(0.05 * 2**failed, 2.0) * random.uniform(0.5, 1.0)
            if self._clock.monotonic() + pause > give_up:
                break
            await asyncio.sleep(pause)
        raise StoreUnavailable(trouble, do="check that the server runs and can be reached")


def _check_trusted(error: BaseException) -> None:
    """Raises if either side rejects the other's certificate: retries would not help."""
    if isinstance(error, ClientSSLError) or (isinstance(error, OSError) and "[SSL" in str(error)):
        raise ConfigError(
            "the lease server and this program do not accept each other's certificates",
            do="check leases.server, server_ca, client_cert and client_key, and tls_cert and tls_ca of the server",
        ) from error


def _leased(key: str, answer: _LeaseAnswer) -> KeyRecord:
    expires_at, token = _instant(answer.expires_at_unix), answer.fencing_token
    lease = Lease(answer.lease_id, answer.owner, token, expires_at, answer.txn_id, key=key, namespace=answer.namespace)
    state = StateObject("", "", answer.state_etag, 0) if answer.state_etag else None
    return KeyRecord(token, lease, answer.version, state)


def _answered(
    status: int, body: bytes, headers: Mapping[str, str], *, raw: bool
) -> tuple[_LeaseAnswer, KeyStateRead | None]:
    if status == 204:
        return _LeaseAnswer(), None
    try:
        if raw and status == 200:
            token, version = int(headers.get("X-Fencing-Token", "0")), int(headers.get("X-Key-Version", "0"))
            return _LeaseAnswer(), KeyStateRead(body, version, headers.get("ETag", ""), token)
        answer = msgspec.json.decode(body, type=_LeaseAnswer)
        _instant(answer.expires_at_unix)
    except (ValueError, OverflowError, OSError, RecursionError):  # a DecodeError is a ValueError
        raise no_lease_api(status) from None
    if status == 200:
        return replace(answer, lasts=_lasts(headers.get(LASTS, ""))), None
    if answer.error in _CODES:
        raise KeyRefused(
            _CODES[answer.error],
            answer.detail,
            version=answer.current_version,
            etag=answer.current_etag,
            wait=float(answer.retry_after_seconds),
        )
    if status == 413:
        raise TooLarge(answer.detail, do="make it smaller")
    raise UsageError(f"{answer.error}: {answer.detail}", do="see docs/how-to/lease-api.md")


def _lasts(text: str) -> float | None:
    try:
        lasts = float(text)
    except ValueError:
        return None
    return None if math.isnan(lasts) else min(max(lasts, 0.0), TTL_MAX.total_seconds())


def _term_end(answer: _LeaseAnswer, started: float, ttl: timedelta) -> float:
    """The monotonic time until which the holder may rely on a lease requested at `started`. The server may grant less
    than was requested, and says how long; another implementation's lease is as long as was requested."""
    return started + (min(_whole_seconds(ttl), TTL_MAX.total_seconds()) if answer.lasts is None else answer.lasts)


def _named(lease: Lease) -> dict[str, object]:
    return {**_key_params(lease.namespace, lease.key), "lease_id": lease.id, "txn_id": lease.transaction}


def _key_params(namespace: str, key: str) -> dict[str, str]:
    return {"key": spoken(namespace, key), "namespace": namespace or DEFAULT_NAMESPACE}


def _conditions(if_version: int | None, if_etag: str | None) -> dict[str, str]:
    headers = {} if if_version is None else {"X-If-Version": str(if_version)}
    return headers if if_etag is None else {**headers, "X-If-State-ETag": if_etag}


def _whole_seconds(ttl: timedelta) -> int:
    return max(1, int(ttl.total_seconds()))


def _instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
